package dev.headgate.connector;

import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;

/** The log as a stream, in micro-batches (ranges that end) or in real time (one range without end for each partition). */
final class EventStream implements MicroBatchStream, SupportsRealTimeMode {
  private final EventScan scan;

  EventStream(EventScan scan) {
    this.scan = scan;
  }

  /** The next offset of every partition. */
  private static final class LogOffset extends Offset {
    private final Map<Integer, Long> offsets;

    LogOffset(Map<Integer, Long> offsets) {
      this.offsets = new TreeMap<>(offsets);
    }

    @Override
    public String json() {
      return offsets.entrySet().stream()
          .map(entry -> "\"" + entry.getKey() + "\":" + entry.getValue())
          .collect(Collectors.joining(",", "{", "}"));
    }
  }

  /** The next offset of one partition, as a real-time task reports it. */
  record PartitionPosition(int partition, long offset) implements PartitionOffset {}

  private static Map<Integer, Long> offsets(Offset offset) {
    return ((LogOffset) offset).offsets;
  }

  @Override
  public Offset initialOffset() {
    return new LogOffset(scan.starts());
  }

  @Override
  public Offset latestOffset() {
    return new LogOffset(scan.ends());
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new LogOffset(SourceOptions.offsets(json));
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return scan.ranges(offsets(start), offsets(end));
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    return scan.unending(offsets(start));
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] positions) {
    Map<Integer, Long> merged = new TreeMap<>();
    for (PartitionOffset position : positions) {
      PartitionPosition of = (PartitionPosition) position;
      merged.put(of.partition(), of.offset());
    }
    return new LogOffset(merged);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return scan.createReaderFactory();
  }

  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {}
}
