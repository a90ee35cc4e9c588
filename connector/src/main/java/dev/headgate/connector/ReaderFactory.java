package dev.headgate.connector;

import dev.headgate.connector.link.LinkAddress;
import dev.headgate.connector.log.FilterValues;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Makes a task's reader: columns for a range that ends, rows for one that does not.
 *
 * @param filterValues null: no pruning
 * @param skipsCorrupt whether damaged chunks are passed over; else they end the reading
 * @param link null: nobody wants to know
 * @param wakeups see {@link SourceOptions}; null: nobody tells
 * @param table see {@link SourceOptions}; null: of none
 */
record ReaderFactory(
    StructType schema, List<String> filterValues, boolean skipsCorrupt, LinkAddress link, String wakeups, String table)
    implements PartitionReaderFactory {
  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return !((LogRange) partition).unending();
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    LogRange range = (LogRange) partition;
    return new ColumnarReader(new EventReader(range, schema, wanted(), skipsCorrupt), range);
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    LogRange range = (LogRange) partition;
    try {
      GrowthWait growth = new GrowthWait(wakeups == null ? null : Path.of(wakeups, "log-" + range.partition() + ".wake"));
      EventReader events = new EventReader(range, schema, wanted(), skipsCorrupt);
      return RealTimeReader.open(range, events, growth, link, table == null ? null : UTF8String.fromString(table));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private FilterValues wanted() {
    return filterValues == null ? FilterValues.ALL : FilterValues.of(filterValues);
  }
}
