package dev.headgate.connector.link;

import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * The connection of one partition of one run: rows and progress, in the order of the log.
 *
 * <p>The reader of a Spark task opens and closes it and says `passed`; the writer of the same task finds it here by (run,
 * partition) and adds rows. Both are called by the task's one thread, never at the same time. Why `passed` may vouch for
 * every earlier row: Spark pulls. The task's loop is "next row, write it"; it asks for the next row only after it wrote the
 * one before. Generated code returns to that loop as soon as one input row made an output row (`shouldStop`), with the
 * event's remaining rows buffered, and reads the source again only when the buffer is empty; without generated
 * code, every operator that a match needs (project, filter, explode, broadcast join) is a lazy iterator that asks its
 * child only when its own rows of the last one are used up. Operators that would read ahead (sort, aggregate, exchange) are
 * refused by real-time mode.
 */
public final class MatchLink implements Progress {
  private record Key(long run, int partition) {}

  private static final ConcurrentMap<Key, MatchLink> OPEN = new ConcurrentHashMap<>();

  private static final byte[] MAGIC = {'H', 'G', 'M', '1'};
  private static final int HELLO_BYTES = 84;
  private static final int ACCEPTED = 0x06;
  private static final int ANSWER_TIMEOUT_MS = 10_000;
  private static final byte ROW = 1;
  private static final byte PASSED = 2;
  private static final int FRAME_BYTES = 14;
  private static final int BUFFER_BYTES = 64 * 1024 / FRAME_BYTES * FRAME_BYTES;
  private static final long SILENCE_NS_MAX = 1_000_000_000L;

  private final Key key;
  private final SocketChannel channel;
  private final ByteBuffer buffer = ByteBuffer.allocateDirect(BUFFER_BYTES).order(ByteOrder.LITTLE_ENDIAN);
  private boolean sentSincePassed;
  private long passedAtNs;

  private MatchLink(Key key, SocketChannel channel) {
    this.key = key;
    this.channel = channel;
  }

  /** Connects, says hello and waits for the answer; blocks for ten seconds at most. */
  public static MatchLink open(LinkAddress address, int partition, long startOffset) throws IOException {
    // A channel, not a stream: a write that waits for a slow dispatcher must end when Spark interrupts the task.
    SocketChannel channel = SocketChannel.open();
    try {
      channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
      channel.socket().connect(new InetSocketAddress(address.host(), address.port()), ANSWER_TIMEOUT_MS);
      MatchLink link = new MatchLink(new Key(address.run(), partition), channel);
      link.hello(address, startOffset);
      if (OPEN.putIfAbsent(link.key, link) != null) {
        throw new IOException("partition " + partition + " of run " + address.run() + " has a match link already");
      }
      return link;
    } catch (IOException | RuntimeException e) {
      channel.close();
      throw e;
    }
  }

  static MatchLink of(long run, int partition) throws IOException {
    MatchLink link = OPEN.get(new Key(run, partition));
    if (link == null) {
      throw new IOException("partition " + partition + " of run " + run + " has no match link: its reader is not in this process");
    }
    return link;
  }

  private void hello(LinkAddress address, long startOffset) throws IOException {
    ByteBuffer hello = ByteBuffer.allocate(HELLO_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    hello.put(MAGIC).put(address.token()).putLong(address.run()).putLong(address.generation());
    hello.putInt(key.partition).putInt(address.partitions()).putLong(startOffset);
    write(hello.rewind());
    channel.socket().setSoTimeout(ANSWER_TIMEOUT_MS);
    InputStream answers = channel.socket().getInputStream();
    if (answers.read() != ACCEPTED) {
      throw new IOException("the dispatcher refused the match link " + address + " partition " + key.partition);
    }
    passedAtNs = System.nanoTime();
  }

  /** One match. It leaves at the latest with the next `passed`. */
  void row(long offset, int target, byte verdict) throws IOException {
    frame(ROW, verdict, target, offset);
  }

  @Override
  public boolean due() {
    return sentSincePassed || System.nanoTime() - passedAtNs >= SILENCE_NS_MAX;
  }

  @Override
  public void passed(long offset) throws IOException {
    frame(PASSED, (byte) 0, 0, offset);
    flush();
    sentSincePassed = false;
    passedAtNs = System.nanoTime();
  }

  private void frame(byte kind, byte verdict, int target, long offset) throws IOException {
    if (buffer.remaining() < FRAME_BYTES) {
      flush();
      sentSincePassed = true;
    }
    buffer.put(kind).put(verdict).putInt(target).putLong(offset);
  }

  private void flush() throws IOException {
    write(buffer.flip());
    buffer.clear();
  }

  private void write(ByteBuffer bytes) throws IOException {
    while (bytes.hasRemaining()) {
      channel.write(bytes);
    }
  }

  /** Ends the connection; what was not sent counts for nothing. May be called twice. */
  @Override
  public void close() throws IOException {
    OPEN.remove(key, this);
    channel.close();
  }
}
