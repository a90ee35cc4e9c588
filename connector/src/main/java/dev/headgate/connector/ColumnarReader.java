package dev.headgate.connector;

import java.io.IOException;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A range that ends, chunk by chunk. */
final class ColumnarReader implements PartitionReader<ColumnarBatch> {
  private final EventReader events;
  private final LogRange range;
  private ColumnarBatch batch;

  ColumnarReader(EventReader events, LogRange range) {
    this.events = events;
    this.range = range;
  }

  @Override
  public boolean next() throws IOException {
    batch = events.next(range.end());
    return batch != null;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return events.metrics();
  }

  @Override
  public void close() throws IOException {
    events.close();
  }
}
