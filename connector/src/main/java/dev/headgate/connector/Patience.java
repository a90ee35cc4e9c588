package dev.headgate.connector;

import java.util.concurrent.locks.LockSupport;

/**
 * How long to sleep until looking again? A quarter of the silence so far, so that waiting adds a fixed share to the gap between
 * two events; at most a millisecond, where an idle partition costs about 3 % of a core.
 */
final class Patience {
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
