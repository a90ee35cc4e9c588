package dev.headgate.connector.link;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/**
 * The sink of a run: rows of (partition INT, offset BIGINT, target INT, verdict TINYINT) go to the match link that the reader
 * of the same task has opened.
 *
 * <p>A `ForeachWriter`, because that is what real-time mode's list of sinks admits.
 */
public final class MatchWriter extends ForeachWriter<Row> {
  private final long run;
  private transient MatchLink link;
  private transient int partition;

  public MatchWriter(long run) {
    this.run = run;
  }

  /** Too early for the link: Spark calls this before it makes the reader. */
  @Override
  public boolean open(long partitionId, long epochId) {
    link = null;
    return true;
  }

  @Override
  public void process(Row row) {
    try {
      if (link == null) {
        partition = row.getInt(0);
        link = MatchLink.of(run, partition);
      } else if (row.getInt(0) != partition) {
        throw new IllegalStateException("a task of partition " + partition + " made a row of partition " + row.getInt(0));
      }
      link.row(row.getLong(1), row.getInt(2), row.getByte(3));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** The reader closes the link: it may have more to say than rows. */
  @Override
  public void close(Throwable error) {
    link = null;
  }
}
