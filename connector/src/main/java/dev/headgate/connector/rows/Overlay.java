package dev.headgate.connector.rows;

import java.io.IOException;
import java.io.ObjectInput;
import java.io.ObjectOutput;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.joins.LongHashedRelation;
import scala.collection.Iterator;

/**
 * Rows of the match table by key: those of a broadcast base, and instead of them, where there are any, those of a key
 * that has changed since.
 *
 * <p>A key is answered as a whole by one of the two: so nothing of a changed key's old rows is left. The base is a
 * broadcast of its own, which generations share; on a cluster it goes to an executor once.
 */
public final class Overlay extends LongHashedRelation {
  private Broadcast<LongHashedRelation> kept;
  private LongHashedRelation changed;
  /** This task's copy of the base; null in what is broadcast. */
  private LongHashedRelation base;

  /** For deserialisation. */
  public Overlay() {}

  Overlay(Broadcast<LongHashedRelation> kept, LongHashedRelation changed) {
    this(kept, changed, null);
  }

  private Overlay(Broadcast<LongHashedRelation> kept, LongHashedRelation changed, LongHashedRelation base) {
    this.kept = kept;
    this.changed = changed;
    this.base = base;
  }

  @Override
  public Overlay asReadOnlyCopy() {
    return new Overlay(kept, changed.asReadOnlyCopy(), kept.value().asReadOnlyCopy());
  }

  @Override
  public Iterator<InternalRow> get(long key) {
    Iterator<InternalRow> rows = changed.get(key);
    return rows != null ? rows : base.get(key);
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
    return changed.estimatedSize();
  }

  @Override
  public void close() {
    changed.close();
  }

  @Override
  public void writeExternal(ObjectOutput out) {
    try {
      out.writeObject(kept);
      out.writeObject(changed);
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  @Override
  @SuppressWarnings("unchecked")
  public void readExternal(ObjectInput in) {
    try {
      kept = (Broadcast<LongHashedRelation>) in.readObject();
      changed = (LongHashedRelation) in.readObject();
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    } catch (ClassNotFoundException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Every row that counts, copied. */
  List<InternalRow> rows() {
    List<InternalRow> found = new ArrayList<>();
    LongHashedRelation mine = changed.asReadOnlyCopy();
    LongHashedRelation before = kept.value().asReadOnlyCopy();
    for (Iterator<InternalRow> keys = mine.keys(); keys.hasNext(); ) {
      copy(mine.get(keys.next().getLong(0)), found);
    }
    for (Iterator<InternalRow> keys = before.keys(); keys.hasNext(); ) {
      long key = keys.next().getLong(0);
      if (mine.get(key) == null) {
        copy(before.get(key), found);
      }
    }
    return found;
  }

  private static void copy(Iterator<InternalRow> rows, List<InternalRow> to) {
    while (rows.hasNext()) {
      to.add(rows.next().copy());
    }
  }
}
