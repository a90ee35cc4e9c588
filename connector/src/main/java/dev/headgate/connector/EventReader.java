package dev.headgate.connector;

import dev.headgate.connector.log.Chunk;
import dev.headgate.connector.log.Columns;
import dev.headgate.connector.log.LogReader;
import dev.headgate.connector.log.FilterValues;
import java.io.Closeable;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.function.Predicate;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Chunks of one partition as Spark columns. A chunk's columns are readable until the next one is asked for. */
final class EventReader implements Closeable {
  private final LogRange range;
  private final StructType schema;
  private final List<String> stored;
  private final BufferAllocator allocator;
  private final LogReader log;
  private Columns columns;
  /** The part of `columns` that lies in the range, where that begins or ends inside the chunk; else null. */
  private VectorSchemaRoot part;

  private long firstOffset;

  EventReader(LogRange range, StructType schema, FilterValues wanted, boolean skipsCorrupt) {
    this.range = range;
    this.schema = schema;
    this.stored =
        Arrays.stream(schema.fieldNames()).filter(Predicate.not(EventSchema.OF_PLACE::contains)).toList();
    this.allocator =
        ArrowUtils.rootAllocator().newChildAllocator("headgate partition " + range.partition(), 0, Long.MAX_VALUE);
    this.log = new LogReader(Path.of(range.directory()), range.start(), wanted, skipsCorrupt, allocator);
  }

  /** What the range has of the next chunk below `end`, or null when there is none. */
  ColumnarBatch next(long end) throws IOException {
    release();
    try (Chunk chunk = log.next(end)) {
      if (chunk == null) {
        return null;
      }
      firstOffset = Math.max(range.start(), chunk.header.firstOffset());
      int count = (int) (Math.min(range.end(), chunk.header.end()) - firstOffset);
      VectorSchemaRoot root = stored.isEmpty() ? null : load(chunk, count);
      ColumnVector[] vectors = new ColumnVector[schema.size()];
      int nextStored = 0;
      for (int i = 0; i < vectors.length; i++) {
        StructField field = schema.fields()[i];
        vectors[i] =
            switch (field.name()) {
              case EventSchema.PARTITION -> new SequenceVector(field.dataType(), range.partition(), 0);
              case EventSchema.OFFSET -> new SequenceVector(field.dataType(), firstOffset, 1);
              case EventSchema.APPEND_TIME -> new SequenceVector(field.dataType(), chunk.header.appendTimeUs(), 0);
              default -> new ArrowColumnVector(root.getVector(nextStored++));
            };
      }
      return new ColumnarBatch(vectors, count);
    }
  }

  private VectorSchemaRoot load(Chunk chunk, int count) throws IOException {
    if (columns == null || !columns.fit(chunk.schema)) {
      closeColumns();
      columns = new Columns(chunk.schema, stored, allocator);
    }
    columns.load(chunk);
    if (count == chunk.header.count()) {
      return columns.root();
    }
    part = columns.root().slice((int) (firstOffset - chunk.header.firstOffset()), count);
    return part;
  }

  /** The offset of the current batch's row 0. */
  long firstOffset() {
    return firstOffset;
  }

  /** The offset behind everything that `next` has looked at. */
  long position() {
    return log.position();
  }

  /** What the reading took so far. */
  CustomTaskMetric[] metrics() {
    return ChunkCounts.of(log);
  }

  private void release() {
    if (part != null) {
      part.close();
      part = null;
    }
    if (columns != null) {
      columns.clear();
    }
  }

  private void closeColumns() {
    if (columns != null) {
      columns.close();
      columns = null;
    }
  }

  @Override
  public void close() throws IOException {
    release();
    closeColumns();
    log.close();
    allocator.close();
  }
}
