package dev.headgate.connector.rows;

import java.io.Serializable;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.function.BiConsumer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * The rows of some keys, for any number of threads.
 *
 * <p>Every key of every event is looked for here first, and mostly in vain: so it is a table of long numbers, where a map of
 * objects would make one for each look. Not a relation of Spark's: each takes a megabyte at once, and a few changes a second
 * would have the collector work all the time.
 */
final class ChangedRows implements Serializable {
  static final ChangedRows NONE = new ChangedRows(Map.of());

  /** Each in the first free place from that of its last bits on: keys are hashes. */
  private final long[] keys;

  /** Those of each key; null where a place is free, as at least every other one is. */
  private final UnsafeRow[][] rows;

  private ChangedRows(Map<Long, UnsafeRow[]> all) {
    int places = 2 * Integer.highestOneBit(2 * all.size() + 1);
    keys = new long[places];
    rows = new UnsafeRow[places][];
    all.forEach(
        (key, found) -> {
          int place = place(key);
          keys[place] = key;
          rows[place] = found;
        });
  }

  /** Where a key is, or may be put. */
  private int place(long key) {
    int last = keys.length - 1;
    int place = (int) key & last;
    while (rows[place] != null && keys[place] != key) {
      place = place + 1 & last;
    }
    return place;
  }

  /** These, and rows whose first column is the key in the place of all of that key. */
  ChangedRows with(Iterator<InternalRow> read, UnsafeProjection flat) {
    Map<Long, UnsafeRow[]> newer = new HashMap<>();
    while (read.hasNext()) {
      UnsafeRow row = flat.apply(read.next()).copy();
      newer.merge(row.getLong(0), new UnsafeRow[] {row}, ChangedRows::together);
    }
    Map<Long, UnsafeRow[]> all = new HashMap<>();
    forEach(all::put);
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
    UnsafeRow[] found = rows[place(key)];
    return found == null ? null : new Rows(found);
  }

  boolean has(long key) {
    return rows[place(key)] != null;
  }

  void forEach(BiConsumer<Long, UnsafeRow[]> each) {
    for (int place = 0; place < keys.length; place++) {
      if (rows[place] != null) {
        each.accept(keys[place], rows[place]);
      }
    }
  }

  /** Of all rows. */
  long bytes() {
    return Arrays.stream(rows).filter(Objects::nonNull).flatMap(Arrays::stream).mapToLong(UnsafeRow::getSizeInBytes).sum();
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
