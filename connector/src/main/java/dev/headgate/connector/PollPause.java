package dev.headgate.connector;

import java.util.concurrent.locks.LockSupport;

/**
 * The pause between two looks at a log without new events: a quarter of the silence so far, so that waiting adds a fixed share to the gap between
 * two events; at most a millisecond, where an idle partition costs about 3 % of a core.
 */
final class PollPause {
  private static final long PAUSE_NS_MIN = 20_000;
  private static final long PAUSE_NS_MAX = 1_000_000;
  private static final int SHARE = 4;

  private long sinceNs = System.nanoTime();

  /** Something came. */
  void restart() {
    sinceNs = System.nanoTime();
  }

  void pause() {
    long silenceNs = System.nanoTime() - sinceNs;
    LockSupport.parkNanos(Math.min(PAUSE_NS_MAX, Math.max(PAUSE_NS_MIN, silenceNs / SHARE)));
  }
}
