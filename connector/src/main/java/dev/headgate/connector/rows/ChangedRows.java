package dev.headgate.connector.rows;

import java.io.Serializable;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.function.BiConsumer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * The rows of some keys, for any number of threads.
 *
 * <p>Not a relation of Spark's: each takes a megabyte at once, and a few changes a second would have the collector work all the
 * time.
 */
final class ChangedRows implements Serializable {
  static final ChangedRows NONE = new ChangedRows(Map.of());

  private final Map<Long, UnsafeRow[]> rows;

  private ChangedRows(Map<Long, UnsafeRow[]> rows) {
    this.rows = rows;
  }

  /** These, and rows whose first column is the key in the place of all of that key. */
  ChangedRows with(Iterator<InternalRow> read, UnsafeProjection flat) {
    Map<Long, UnsafeRow[]> newer = new HashMap<>();
    while (read.hasNext()) {
      UnsafeRow row = flat.apply(read.next()).copy();
      newer.merge(row.getLong(0), new UnsafeRow[] {row}, ChangedRows::together);
    }
    Map<Long, UnsafeRow[]> all = new HashMap<>(rows);
    all.putAll(newer);
    return new ChangedRows(all);
  }

  private static UnsafeRow[] together(UnsafeRow[] some, UnsafeRow[] more) {
    UnsafeRow[] all = Arrays.copyOf(some, some.length + more.length);
    System.arraycopy(more, 0, all, some.length, more.length);
    return all;
  }

  /** Null for a key that has not changed. */
  Iterator<InternalRow> get(long key) {
    UnsafeRow[] found = rows.get(key);
    return found == null ? null : new Rows(found);
  }

  boolean has(long key) {
    return rows.containsKey(key);
  }

  void forEach(BiConsumer<Long, UnsafeRow[]> each) {
    rows.forEach(each);
  }

  /** Of all rows. */
  long bytes() {
    return rows.values().stream().flatMap(Arrays::stream).mapToLong(UnsafeRow::getSizeInBytes).sum();
  }

  private static final class Rows extends AbstractIterator<InternalRow> {
    private final UnsafeRow[] rows;
    private int next;

    Rows(UnsafeRow[] rows) {
      this.rows = rows;
    }

    @Override
    public boolean hasNext() {
      return next < rows.length;
    }

    @Override
    public InternalRow next() {
      return rows[next++];
    }
  }
}
