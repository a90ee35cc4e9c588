package dev.headgate.connector.kafka;

import dev.headgate.connector.link.LinkAddress;
import java.util.Arrays;

/** The rows of one event: targets with their highest verdict, sorted by outbox partition and target. */
final class OutboxRows {
  private static final int FIRST_ROWS = 64;

  private final int partitions;
  private final int rowsMax;
  private long[] rows = new long[FIRST_ROWS];
  private int count;

  OutboxRows(int partitions, int rowsMax) {
    this.partitions = partitions;
    this.rowsMax = rowsMax;
  }

  /** Adds a row. A target may come several times, once for each conjunction of its filter. */
  void add(int target, byte verdict) {
    if (count == rowsMax) {
      throw new IllegalStateException("an event has over " + rowsMax + " rows");
    }
    if (count == rows.length) {
      rows = Arrays.copyOf(rows, Math.min(2 * count, rowsMax));
    }
    // Partitions are below 2^16, targets below 2^31, verdicts below 2^3: their order is that of the numbers.
    long partition = LinkAddress.dispatcherOf(target, partitions);
    rows[count++] = partition << 34 | (long) target << 3 | verdict;
  }

  /** Merges the rows of each target; they are in order then. */
  long[] merged() {
    Arrays.sort(rows, 0, count);
    int kept = 0;
    for (int i = 0; i < count; i++) {
      if (kept > 0 && rows[kept - 1] >> 3 == rows[i] >> 3) {
        kept--;
      }
      rows[kept++] = rows[i];
    }
    count = kept;
    return rows;
  }

  int count() {
    return count;
  }

  void clear() {
    count = 0;
  }

  static int partition(long row) {
    return (int) (row >> 34);
  }

  static int target(long row) {
    return (int) (row >> 3) & Integer.MAX_VALUE;
  }

  static byte verdict(long row) {
    return (byte) (row & 7);
  }
}
