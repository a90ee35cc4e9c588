package dev.headgate.connector;

import java.io.Closeable;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.util.concurrent.locks.LockSupport;

/**
 * The wait for a partition to grow. Its writer tells (docs/spec/log-format.md, "Wake-ups"): a partition in silence costs nothing, and its
 * next event is noticed at once. Just after an event, and where no writer tells, the reader looks again and again.
 *
 * <p>Then a pause is a quarter of the silence so far, so that waiting adds a fixed share to the gap between two events; at most a
 * millisecond, where an idle partition costs about 3 % of a core. One thread uses it.
 */
final class GrowthWait implements Closeable {
  private static final long PAUSE_NS_MIN = 20_000;
  private static final long PAUSE_NS_MAX = 1_000_000;
  private static final int SHARE = 4;
  /** A busy partition grows again within it: to go to sleep each time would cost more than looking. */
  private static final long LISTEN_AFTER_NS = 250_000;
  private static final long RECONNECT_NS = 1_000_000_000;

  private final UnixDomainSocketAddress address;
  /** Takes all that a socket holds of bytes that were sent one by one. */
  private final ByteBuffer told = ByteBuffer.allocateDirect(4096);
  private long sinceNs = System.nanoTime();
  private long connectAtNs = sinceNs;
  private volatile Selector selector;
  private volatile Thread pausing;
  private SocketChannel channel;

  /**
   * @param socket where the partition's writer tells; null: nowhere
   */
  GrowthWait(Path socket) {
    this.address = socket == null ? null : UnixDomainSocketAddress.of(socket);
  }

  /** Something came. */
  void restart() {
    sinceNs = System.nanoTime();
  }

  /**
   * Pauses until the partition may have grown since the end of the last pause, or the thread is interrupted.
   *
   * @param atMostNs the longest pause
   */
  void pause(long atMostNs) {
    pausing = Thread.currentThread();
    long now = System.nanoTime();
    long silenceNs = now - sinceNs;
    if (silenceNs >= LISTEN_AFTER_NS && isConnected(now)) {
      try {
        listen(Math.max(1, atMostNs / 1_000_000));
        return;
      } catch (IOException e) {
        disconnect(); // the writer's process has ended, or this thread is interrupted
      }
    }
    LockSupport.parkNanos(Math.min(atMostNs, Math.min(PAUSE_NS_MAX, Math.max(PAUSE_NS_MIN, silenceNs / SHARE))));
  }

  /** Ends the pause, or else the next one, at once; another thread calls it. */
  void wake() {
    Selector selecting = selector;
    if (selecting != null) {
      selecting.wakeup();
    }
    LockSupport.unpark(pausing);
  }

  private void listen(long timeoutMs) throws IOException {
    if (selector.select(timeoutMs) == 0) {
      return;
    }
    selector.selectedKeys().clear();
    if (channel.read(told.clear()) < 0) {
      throw new IOException("the writer is gone");
    }
  }

  private boolean isConnected(long now) {
    if (channel == null && address != null && now - connectAtNs >= 0) {
      connectAtNs = now + RECONNECT_NS;
      try {
        channel = SocketChannel.open(address);
        channel.configureBlocking(false);
        selector = Selector.open();
        channel.register(selector, SelectionKey.OP_READ);
      } catch (IOException e) {
        disconnect(); // it is not there yet, or its name is too long for a socket: looking does as well
      }
    }
    return channel != null;
  }

  private void disconnect() {
    try (SocketChannel gone = channel;
        Selector unused = selector) {
      channel = null;
      selector = null;
    } catch (IOException e) {
      // Nothing was to be sent.
    }
  }

  @Override
  public void close() {
    disconnect();
  }
}
