package dev.headgate.connector;

import dev.headgate.connector.EventStream.PartitionPosition;
import dev.headgate.connector.link.LinkAddress;
import dev.headgate.connector.link.MatchLink;
import dev.headgate.connector.link.Progress;
import dev.headgate.connector.log.Committed;
import dev.headgate.connector.rows.TaskRows;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.file.Path;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Event by event, as soon as each is committed.
 *
 * <p>That the next event is asked for means that every row of the events before has been written (why: {@link MatchLink}). So
 * this is the place to say `passed`, and to go on to a newer generation of filters.
 */
final class RealTimeReader implements SupportsRealTimeRead<InternalRow> {
  private static final RecordStatus RECORD = RecordStatus.newStatusWithoutArrivalTime(true);
  private static final RecordStatus NO_RECORD = RecordStatus.newStatusWithoutArrivalTime(false);
  /** A task that is stopped without an interrupt ends within it. */
  private static final long PAUSE_NS_MAX = 500_000_000;

  private final int partition;
  private final EventReader events;
  private final Committed committed;
  private final Progress progress;
  private final GrowthWait growth;
  private final TaskContext task = TaskContext.get();
  /** The name of the match table that the task joins; null: none. */
  private final UTF8String table;
  /** Null until the first event is asked for: Spark may open the reader before the table. */
  private TaskRows rows;
  private final Runnable wake;
  /** From where on the generation counts that `rows` has chosen. */
  private long chosenFrom;

  /** The offset of the next event to hand out, and the last one that was said to be passed. */
  private long next;
  private long passed;
  private ColumnarBatch batch;
  private int row;

  private RealTimeReader(
      LogRange range, EventReader events, GrowthWait growth, Committed committed, Progress progress, UTF8String table) {
    this.partition = range.partition();
    this.events = events;
    this.growth = growth;
    this.committed = committed;
    this.progress = progress;
    this.table = table;
    this.wake = growth::wake;
    this.next = range.start();
    this.passed = range.start() - 1;
  }

  /** Takes `events` and `growth` over, and closes them when it fails. */
  static RealTimeReader open(LogRange range, EventReader events, GrowthWait growth, LinkAddress link, UTF8String table)
      throws IOException {
    try {
      Committed committed = new Committed(Path.of(range.directory()));
      if (committed.next() < range.start()) {
        throw new IOException(
            "log partition " + range.directory() + " ends at offset " + committed.next() + ", below the start " + range.start());
      }
      Progress progress = link == null ? Progress.NONE : MatchLink.open(link, range.partition(), range.start());
      return new RealTimeReader(range, events, growth, committed, progress, table);
    } catch (IOException | RuntimeException e) {
      growth.close();
      events.close();
      throw e;
    }
  }

  @Override
  public RecordStatus nextWithTimeout(Long startMs, Long timeoutMs) throws IOException {
    if (rows == null && table != null) {
      rows = TaskRows.of(table);
      rows.tell(wake);
    }
    if (batch != null && ++row < batch.numRows()) {
      if (!tookNewer() && progress.due()) {
        pass();
      }
      next++;
      return RECORD;
    }
    if (batch != null) {
      batch = null;
      pass();
      growth.restart();
    }
    return chunkWithin(timeoutMs) ? RECORD : NO_RECORD;
  }

  private boolean chunkWithin(long timeoutMs) throws IOException {
    long deadline = System.nanoTime() + timeoutMs * 1_000_000;
    while (true) {
      tookNewer();
      long end = committed.next();
      batch = events.next(end);
      if (batch != null) {
        row = 0;
        next = events.firstOffset() + 1;
        return true;
      }
      next = Math.max(next, events.position());
      if (passed < next || progress.due()) {
        pass();
      }
      long leftNs = deadline - System.nanoTime();
      if (leftNs <= 0) {
        return false;
      }
      growth.pause(Math.min(PAUSE_NS_MAX, Math.min(leftNs, progress.dueInNs())));
      if (Thread.interrupted() || task.isInterrupted()) {
        throw new InterruptedIOException("the task of partition " + partition + " was stopped");
      }
    }
  }

  /**
   * Goes on to a newer generation of filters, from `next` on, where there is one and its turn has come: what was stored before
   * a change was asked for is matched by the filters of before, however far behind the task is.
   */
  private boolean tookNewer() throws IOException {
    if (rows == null) {
      return false;
    }
    if (!rows.hasChosen()) {
      if (!rows.chooseNewest()) {
        return false;
      }
      chosenFrom = committed.next(); // read after the choice: it is above all that was there when the change came
    }
    if (next < chosenFrom) {
      return false;
    }
    progress.generation(next, rows.takeChosen());
    passed = next;
    return true;
  }

  private void pass() throws IOException {
    progress.passed(next);
    passed = next;
  }

  @Override
  public InternalRow get() {
    return batch.getRow(row);
  }

  @Override
  public PartitionOffset getOffset() {
    return new PartitionPosition(partition, next);
  }

  @Override
  public boolean next() {
    throw new UnsupportedOperationException("real-time mode asks with a time limit");
  }

  @Override
  public void close() throws IOException {
    try {
      if (rows != null) {
        rows.tellNoMore(wake);
      }
      progress.close();
    } finally {
      batch = null;
      growth.close();
      events.close();
    }
  }
}
