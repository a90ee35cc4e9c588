package dev.headgate.connector.rows;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.joins.LongHashedRelation;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.Iterator;

/**
 * The generation that a task evaluates. One thread reads, extracts, joins and writes the task's events: so all of it is of one
 * generation as long as nobody calls {@link #takeChosen} inside an event.
 */
public final class TaskRows {
  /** Of the task that this thread runs, by the name of the table. */
  private static final ThreadLocal<Map<UTF8String, TaskRows>> OPEN = ThreadLocal.withInitial(HashMap::new);

  private final LiveRows live;
  private Generation generation;
  /** To be taken next; null: none. */
  private Generation chosen;
  private LongHashedRelation base;
  private ChangedRows changed;

  private TaskRows(LiveRows live, Generation generation) {
    this.live = live;
    take(generation);
  }

  /** Opens the table's rows for the task of this thread. */
  static TaskRows open(UTF8String table, LiveRows live, Generation generation) {
    TaskRows rows = new TaskRows(live, generation);
    OPEN.get().put(table, rows);
    TaskContext task = TaskContext.get();
    if (task != null) {
      task.addTaskCompletionListener((TaskCompletionListener) ended -> OPEN.get().remove(table, rows));
    }
    return rows;
  }

  /**
   * Those of the task of this thread, which Spark opens before its first event. A driver that evaluates a plan of few rows
   * while it optimises it has no task, and gets rows of its own.
   */
  public static TaskRows of(UTF8String table) {
    TaskRows rows = OPEN.get().get(table);
    return rows == null ? new TaskRows(null, RowTable.planned(table)) : rows;
  }

  private void take(Generation newer) {
    generation = newer;
    base = newer.base().value().asReadOnlyCopy();
    changed = newer.changed();
  }

  /** Whether a generation has been chosen, and not been taken yet. */
  public boolean hasChosen() {
    return chosen != null;
  }

  /** Chooses the newest generation; false where there is none that is newer than that of the task. */
  public boolean chooseNewest() {
    Generation newest = live == null ? null : live.newest();
    if (newest == null || newest.number() <= generation.number()) {
      return false;
    }
    chosen = newest;
    return true;
  }

  /** Goes on to the chosen generation, from the next event on; its number. */
  public long takeChosen() {
    take(chosen);
    chosen = null;
    return generation.number();
  }

  /** Has `waiter` called, by another thread, when there is a newer generation. */
  public void tell(Runnable waiter) {
    if (live != null) {
      live.tell(waiter);
    }
  }

  /** Undoes {@link #tell}. */
  public void tellNoMore(Runnable waiter) {
    if (live != null) {
      live.tellNoMore(waiter);
    }
  }

  /** What is read of a broker's events; null where it has no filters. */
  public BrokerSpec broker(UTF8String name) {
    return generation.brokers().get(name);
  }

  /** A key is answered as a whole: where it has changed, nothing of the base's rows is left. */
  Iterator<InternalRow> get(long key) {
    Iterator<InternalRow> rows = changed.get(key);
    return rows != null ? rows : base.get(key);
  }
}
