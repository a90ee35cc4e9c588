package dev.headgate.connector.link;

import java.io.Closeable;
import java.io.IOException;

/** Told how far a partition has been read. */
public interface Progress extends Closeable {
  /** Nobody: a real-time query without a match link. */
  Progress NONE =
      new Progress() {
        @Override
        public long dueInNs() {
          return Long.MAX_VALUE;
        }

        @Override
        public void passed(long offset) {}

        @Override
        public void generation(long offset, long generation) {}

        @Override
        public void close() {}
      };

  /** Nanoseconds until `passed` should be said again, although the reader has more to read, or nothing. */
  long dueInNs();

  /** Whether it should be said now. */
  default boolean due() {
    return dueInNs() <= 0;
  }

  /** Every event below `offset` has been read and every row that came of it has been written. */
  void passed(long offset) throws IOException;

  /** The same as `passed`; and events from `offset` on are matched by another generation of filters. */
  void generation(long offset, long generation) throws IOException;
}
