package dev.headgate.connector.kafka;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/**
 * The sink of a run on Kafka: rows of matches become records of the outbox.
 *
 * <p>Rows are (partition INT, offset BIGINT, target INT, verdict TINYINT, append_time_us BIGINT, key BINARY, value BINARY,
 * headers ARRAY of (key, value)). The rows of an event follow each other. The last one, its mark, has the target -1; it
 * alone has the columns from append_time_us on.
 */
public final class OutboxWriter extends ForeachWriter<Row> {
  static final int PARTITION = 0;
  static final int OFFSET = 1;
  static final int TARGET = 2;
  static final int VERDICT = 3;
  static final int APPEND_TIME_US = 4;
  static final int KEY = 5;
  static final int VALUE = 6;
  static final int HEADERS = 7;

  private static final int MARK = -1;

  private final OutboxSettings settings;
  private transient OutboxSender sender;
  private transient OutboxRows rows;
  private transient long offset;

  public OutboxWriter(OutboxSettings settings) {
    this.settings = settings;
  }

  @Override
  public boolean open(long partitionId, long epochId) {
    rows = new OutboxRows(settings.partitions(), settings.eventRowsMax());
    sender = new OutboxSender(settings);
    return true;
  }

  @Override
  public void process(Row row) {
    long at = row.getLong(OFFSET);
    if (rows.count() > 0 && at != offset) {
      throw new IllegalStateException("event " + offset + " has rows, and no mark before event " + at);
    }
    offset = at;
    int target = row.getInt(TARGET);
    if (target != MARK) {
      rows.add(target, row.getByte(VERDICT));
      return;
    }
    try {
      sender.event(row.getInt(PARTITION), rows, OutboxEvent.of(row));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    } catch (InterruptedException e) {
      throw interrupted(e);
    }
    rows.clear();
  }

  /** Rows without their mark are given up: the run that comes after this one reads their event again. */
  @Override
  public void close(Throwable error) {
    if (sender == null) {
      return;
    }
    OutboxSender ending = sender;
    sender = null;
    try {
      if (error == null) {
        ending.finish();
      } else if (ending.failure() != null && ending.failure() != error) {
        error.addSuppressed(ending.failure());
      }
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    } catch (InterruptedException e) {
      throw interrupted(e);
    } finally {
      ending.abort();
    }
  }

  private IllegalStateException interrupted(InterruptedException cause) {
    Thread.currentThread().interrupt();
    return new IllegalStateException(settings + " was interrupted", cause);
  }
}
