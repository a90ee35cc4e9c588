package dev.headgate.connector;

import dev.headgate.connector.log.Committed;
import dev.headgate.connector.log.LogReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** Some columns of some partitions: what every mode of reading shares. */
final class EventScan implements Scan, Batch {
  private final SourceOptions options;
  private final StructType schema;

  private EventScan(SourceOptions options, StructType schema) {
    this.options = options;
    this.schema = schema;
  }

  static final class Builder implements ScanBuilder, SupportsPushDownRequiredColumns {
    private final SourceOptions options;
    private StructType schema = EventSchema.TYPE;

    Builder(SourceOptions options) {
      this.options = options;
    }

    @Override
    public void pruneColumns(StructType required) {
      schema = required;
    }

    @Override
    public Scan build() {
      return new EventScan(options, schema);
    }
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public String description() {
    return "headgate " + options.path() + " " + options.partitions();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return ChunkCounts.metrics();
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    return new EventStream(this);
  }

  /** From each partition's start to what is committed now, or to the end that was asked for. */
  @Override
  public InputPartition[] planInputPartitions() {
    return ranges(starts(), ends());
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new ReaderFactory(
        schema,
        options.filterValues().orElse(null),
        options.skipsCorrupt(),
        options.link().orElse(null),
        options.wakeups().orElse(null),
        options.table().orElse(null));
  }

  Map<Integer, Long> starts() {
    Map<Integer, Long> starts = new TreeMap<>();
    for (int partition : options.partitions()) {
      Long start = options.startOffsets().get(partition);
      starts.put(partition, start != null ? start : first(partition));
    }
    return starts;
  }

  Map<Integer, Long> ends() {
    Map<Integer, Long> ends = new TreeMap<>();
    for (int partition : options.partitions()) {
      ends.put(partition, Math.min(next(partition), options.endOffsets().getOrDefault(partition, Long.MAX_VALUE)));
    }
    return ends;
  }

  /** Ranges that end, one for each segment, so that a long partition is read by several tasks. */
  InputPartition[] ranges(Map<Integer, Long> starts, Map<Integer, Long> ends) {
    List<LogRange> ranges = new ArrayList<>();
    ends.forEach(
        (partition, end) -> {
          long start = starts.getOrDefault(partition, 0L);
          for (long first : start < end ? segments(partition) : new long[0]) {
            if (first > start && first < end) {
              ranges.add(range(partition, start, first));
              start = first;
            }
          }
          if (start < end) {
            ranges.add(range(partition, start, end));
          }
        });
    return ranges.toArray(InputPartition[]::new);
  }

  /** Ranges without end, one for each partition. */
  InputPartition[] unending(Map<Integer, Long> starts) {
    if (!options.endOffsets().isEmpty()) {
      throw new IllegalArgumentException("option 'endOffsets' is for reads that end, real-time mode has no end");
    }
    return options.partitions().stream()
        .map(partition -> range(partition, starts.get(partition), LogRange.NO_END))
        .toArray(InputPartition[]::new);
  }

  private LogRange range(int partition, long start, long end) {
    return new LogRange(options.directory(partition).toString(), partition, start, end);
  }

  private long first(int partition) {
    try {
      return new Committed(options.directory(partition)).first();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private long next(int partition) {
    try {
      return new Committed(options.directory(partition)).next();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private long[] segments(int partition) {
    try {
      return LogReader.segments(options.directory(partition));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}
