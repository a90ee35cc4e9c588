package dev.headgate.connector.link;

import java.io.Closeable;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;

/** The connection to one dispatcher, of one partition of one run: rows are collected, and sent with the next `passed`. */
final class LinkEnd implements Closeable {
  private static final byte[] MAGIC = {'H', 'G', 'M', '1'};
  private static final int HELLO_BYTES = 84;
  private static final int ACCEPTED = 0x06;
  private static final byte ROW = 1;
  private static final byte PASSED = 2;
  private static final byte GENERATION = 3;
  private static final int ANSWER_TIMEOUT_MS = 10_000;
  private static final int FRAME_BYTES = 14;
  private static final int BUFFER_BYTES = 64 * 1024 / FRAME_BYTES * FRAME_BYTES;

  private final SocketChannel channel;
  private final ByteBuffer buffer = ByteBuffer.allocateDirect(BUFFER_BYTES).order(ByteOrder.LITTLE_ENDIAN);

  private boolean rowsSincePassed;

  private LinkEnd(SocketChannel channel) {
    this.channel = channel;
  }

  /** Connects to a dispatcher by its number, says hello and waits for the answer; blocks for ten seconds at most. */
  static LinkEnd open(LinkAddress address, int dispatcher, int partition, long startOffset) throws IOException {
    // A channel, not a stream: a write that waits for a slow dispatcher must end when Spark interrupts the task.
    SocketChannel channel = SocketChannel.open();
    try {
      LinkAddress.Endpoint endpoint = address.dispatchers().get(dispatcher);
      channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
      channel.socket().connect(new InetSocketAddress(endpoint.host(), endpoint.port()), ANSWER_TIMEOUT_MS);
      LinkEnd end = new LinkEnd(channel);
      end.hello(address, dispatcher, partition, startOffset);
      return end;
    } catch (IOException | RuntimeException e) {
      channel.close();
      throw e;
    }
  }

  private void hello(LinkAddress address, int dispatcher, int partition, long startOffset) throws IOException {
    ByteBuffer hello = ByteBuffer.allocate(HELLO_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    hello.put(MAGIC).put(address.token()).putLong(address.run()).putLong(address.generation());
    hello.putInt(partition).putInt(address.partitions()).putLong(startOffset);
    hello.putInt(dispatcher).putInt(address.dispatchers().size());
    write(hello.rewind());
    channel.socket().setSoTimeout(ANSWER_TIMEOUT_MS);
    if (channel.socket().getInputStream().read() != ACCEPTED) {
      throw new IOException("dispatcher " + dispatcher + " refused the match link " + address + " partition " + partition);
    }
  }

  /** Adds a row; whether earlier ones had to be sent to make room. */
  boolean row(long offset, int target, byte verdict) throws IOException {
    rowsSincePassed = true;
    return frame(ROW, verdict, target, offset);
  }

  /** Whether a row has come since `passed` was sent. */
  boolean hasRows() {
    return rowsSincePassed;
  }

  /** Sends the rows, and that every event below `offset` is complete. */
  void passed(long offset) throws IOException {
    rowsSincePassed = false;
    frame(PASSED, (byte) 0, 0, offset);
    flush();
  }

  /** Sends the rows, that every event below `offset` is complete, and of which generation the others are. */
  void generation(long offset, long generation) throws IOException {
    rowsSincePassed = false;
    frame(PASSED, (byte) 0, 0, offset);
    frame(GENERATION, (byte) 0, 0, generation);
    flush();
  }

  private boolean frame(byte kind, byte verdict, int target, long offset) throws IOException {
    boolean full = buffer.remaining() < FRAME_BYTES;
    if (full) {
      flush();
    }
    buffer.put(kind).put(verdict).putInt(target).putLong(offset);
    return full;
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

  @Override
  public void close() throws IOException {
    channel.close();
  }
}
