package dev.headgate.connector.link;

import java.io.Closeable;
import java.io.IOException;

/** Told how far a partition has been read. */
public interface Progress extends Closeable {
  /** Nobody: a real-time query without a match link. */
  Progress NONE =
      new Progress() {
        @Override
        public boolean due() {
          return false;
        }

        @Override
        public void passed(long offset) {}

        @Override
        public void close() {}
      };

  /** Whether `passed` should be said again, although the reader has more to read. */
  boolean due();

  /** Every event below `offset` has been read and every row that came of it has been written. */
  void passed(long offset) throws IOException;
}
