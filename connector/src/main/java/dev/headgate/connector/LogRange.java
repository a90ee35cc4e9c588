package dev.headgate.connector;

import org.apache.spark.sql.connector.read.InputPartition;

/** What one task reads: the offsets `start` (included) to `end` of one partition, or on and on. */
record LogRange(String directory, int partition, long start, long end) implements InputPartition {
  static final long NO_END = Long.MAX_VALUE;

  boolean unending() {
    return end == NO_END;
  }
}
