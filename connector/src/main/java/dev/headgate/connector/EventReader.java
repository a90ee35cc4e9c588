package dev.headgate.connector;

import dev.headgate.connector.log.Chunk;
import dev.headgate.connector.log.LogReader;
import dev.headgate.connector.log.Wanted;
import java.io.Closeable;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.function.Predicate;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
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
  private Chunk chunk;
  private VectorSchemaRoot root;
  private long firstOffset;

  EventReader(LogRange range, StructType schema, Wanted wanted) {
    this.range = range;
    this.schema = schema;
    this.stored =
        Arrays.stream(schema.fieldNames()).filter(Predicate.not(EventSchema.OF_PLACE::contains)).toList();
    this.allocator =
        ArrowUtils.rootAllocator().newChildAllocator("headgate partition " + range.partition(), 0, Long.MAX_VALUE);
    this.log = new LogReader(Path.of(range.directory()), range.start(), wanted, allocator);
  }

  /** What the range has of the next chunk below `end`, or null when there is none. */
  ColumnarBatch next(long end) throws IOException {
    release();
    chunk = log.next(end);
    if (chunk == null) {
      return null;
    }
    firstOffset = Math.max(range.start(), chunk.header.firstOffset());
    int count = (int) (Math.min(range.end(), chunk.header.end()) - firstOffset);
    if (!stored.isEmpty()) {
      root = chunk.columns(stored, allocator);
      if (count < chunk.header.count()) {
        VectorSchemaRoot whole = root;
        root = whole.slice((int) (firstOffset - chunk.header.firstOffset()), count);
        whole.close();
      }
    }
    ColumnVector[] columns = Arrays.stream(schema.fields()).map(this::column).toArray(ColumnVector[]::new);
    return new ColumnarBatch(columns, count);
  }

  private ColumnVector column(StructField field) {
    return switch (field.name()) {
      case EventSchema.PARTITION -> new PlaceVector(field.dataType(), range.partition(), 0);
      case EventSchema.OFFSET -> new PlaceVector(field.dataType(), firstOffset, 1);
      case EventSchema.APPEND_TIME -> new PlaceVector(field.dataType(), chunk.header.appendTimeUs(), 0);
      default -> new ArrowColumnVector(root.getVector(stored.indexOf(field.name())));
    };
  }

  /** The offset of the current batch's row 0. */
  long firstOffset() {
    return firstOffset;
  }

  /** The offset behind everything that `next` has looked at. */
  long position() {
    return log.position();
  }

  private void release() {
    if (root != null) {
      root.close();
      root = null;
    }
    if (chunk != null) {
      chunk.close();
      chunk = null;
    }
  }

  @Override
  public void close() throws IOException {
    release();
    log.close();
    allocator.close();
  }
}
