package dev.headgate.connector.rows;

import java.io.IOException;
import java.io.ObjectInput;
import java.io.ObjectOutput;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.joins.LongHashedRelation;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.Iterator;

/**
 * What a join of the match is broadcast: the rows of a generation, by key. A task's copy may go on to newer ones, see
 * {@link TaskRows}.
 */
public final class GenerationRows extends LongHashedRelation {
  private UTF8String table;
  private long live;
  private Generation first;
  /** Of a task's copy; null in what is broadcast. */
  private TaskRows task;

  /** For deserialisation. */
  public GenerationRows() {}

  GenerationRows(UTF8String table, long live, Generation first) {
    this.table = table;
    this.live = live;
    this.first = first;
  }

  /** For the task of this thread; Spark calls it before the task's first event. */
  @Override
  public GenerationRows asReadOnlyCopy() {
    GenerationRows copy = new GenerationRows(table, live, first);
    copy.task = TaskRows.open(table, LiveRows.of(live), first);
    return copy;
  }

  @Override
  public Iterator<InternalRow> get(long key) {
    return task.get(key);
  }

  @Override
  public Iterator<InternalRow> get(InternalRow key) {
    return get(key.getLong(0));
  }

  @Override
  public InternalRow getValue(long key) {
    Iterator<InternalRow> rows = get(key);
    return rows != null && rows.hasNext() ? rows.next() : null;
  }

  @Override
  public InternalRow getValue(InternalRow key) {
    return getValue(key.getLong(0));
  }

  /** Never said: Spark would generate other code for the generation in which it happens to be true. */
  @Override
  public boolean keyIsUnique() {
    return false;
  }

  @Override
  public Iterator<InternalRow> keys() {
    throw new UnsupportedOperationException("no join of the match needs all keys");
  }

  /** Without the base, which is counted as a broadcast of its own. */
  @Override
  public long estimatedSize() {
    return first.changed().bytes();
  }

  @Override
  public void close() {}

  @Override
  public void writeExternal(ObjectOutput out) {
    try {
      out.writeObject(table);
      out.writeLong(live);
      out.writeObject(first);
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  @Override
  public void readExternal(ObjectInput in) {
    try {
      table = (UTF8String) in.readObject();
      live = in.readLong();
      first = (Generation) in.readObject();
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    } catch (ClassNotFoundException error) {
      throw new IllegalStateException(error);
    }
  }

  Generation first() {
    return first;
  }

  /** Every row of the first generation. */
  List<InternalRow> rows() {
    List<InternalRow> found = new ArrayList<>();
    ChangedRows changed = first.changed();
    LongHashedRelation base = first.base().value().asReadOnlyCopy();
    changed.forEach((key, rows) -> found.addAll(List.of(rows)));
    for (Iterator<InternalRow> keys = base.keys(); keys.hasNext(); ) {
      long key = keys.next().getLong(0);
      if (!changed.has(key)) {
        for (Iterator<InternalRow> rows = base.get(key); rows.hasNext(); ) {
          found.add(rows.next().copy());
        }
      }
    }
    return found;
  }
}
