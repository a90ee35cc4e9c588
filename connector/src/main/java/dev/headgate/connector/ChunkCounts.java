package dev.headgate.connector;

import dev.headgate.connector.log.LogReader;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** The chunks that a read took up and those that it passed over, as Spark's metrics of a scan. Spark makes the public classes. */
public final class ChunkCounts {
  private static final String READ = "chunksRead";
  private static final String SKIPPED = "chunksSkipped";

  private ChunkCounts() {}

  /** Chunks whose bodies were read. */
  public static final class Read extends CustomSumMetric {
    @Override
    public String name() {
      return READ;
    }

    @Override
    public String description() {
      return "chunks read";
    }
  }

  /** Chunks passed over by their Bloom filters. */
  public static final class Skipped extends CustomSumMetric {
    @Override
    public String name() {
      return SKIPPED;
    }

    @Override
    public String description() {
      return "chunks skipped";
    }
  }

  private record Count(String name, long value) implements CustomTaskMetric {}

  static CustomMetric[] metrics() {
    return new CustomMetric[] {new Read(), new Skipped()};
  }

  static CustomTaskMetric[] of(LogReader log) {
    return new CustomTaskMetric[] {new Count(READ, log.chunksRead()), new Count(SKIPPED, log.chunksSkipped())};
  }
}
