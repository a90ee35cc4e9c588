package dev.headgate.connector.link;

import java.io.IOException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * The connections of one partition of one run, one to each dispatcher: rows and progress, in the order of the log.
 *
 * <p>A row goes to the dispatcher that owns its target. `passed` goes to all of them: at once to those that got a row of it,
 * to the others some milliseconds later, because each time costs both sides a system call. So no end runs ahead: what one
 * has been told is at most these milliseconds and a buffer of frames ahead of what the others have.
 *
 * <p>The reader of a Spark task opens and closes it and says `passed`; the writer of the same task finds it here by (run,
 * partition) and adds rows. Both are called by the task's one thread, never at the same time. Why `passed` may vouch for
 * every earlier row: Spark pulls. The task's loop is "next row, write it"; it asks for the next row only after it wrote the
 * one before. Generated code returns to that loop as soon as one input row made an output row (`shouldStop`), with the
 * event's remaining rows buffered, and reads the source again only when the buffer is empty; without generated
 * code, every operator that a match needs (project, filter, explode, broadcast join) is a lazy iterator that asks its
 * child only when its own rows of the last one are used up. Operators that would read ahead (sort, aggregate, exchange) are
 * refused by real-time mode.
 */
public final class MatchLink implements Progress {
  private record Key(long run, int partition) {}

  private static final ConcurrentMap<Key, MatchLink> OPEN = new ConcurrentHashMap<>();

  private static final long SILENCE_NS_MAX = 1_000_000_000L;
  /** How long an end without rows waits for `passed`. */
  private static final long QUIET_NS_MAX = 20_000_000L;

  private final Key key;
  private final LinkEnd[] ends;
  private boolean sentSincePassed;
  /** Some end without rows was not told of the last `passed`. */
  private boolean owed;
  private long toldAllNs = System.nanoTime() - QUIET_NS_MAX;

  private MatchLink(Key key, LinkEnd[] ends) {
    this.key = key;
    this.ends = ends;
  }

  /** Connects to every dispatcher; blocks for ten seconds each at most. */
  public static MatchLink open(LinkAddress address, int partition, long startOffset) throws IOException {
    LinkEnd[] ends = new LinkEnd[address.dispatchers().size()];
    MatchLink link = new MatchLink(new Key(address.run(), partition), ends);
    try {
      for (int dispatcher = 0; dispatcher < ends.length; dispatcher++) {
        ends[dispatcher] = LinkEnd.open(address, dispatcher, partition, startOffset);
      }
      if (OPEN.putIfAbsent(link.key, link) != null) {
        throw new IOException("partition " + partition + " of run " + address.run() + " has a match link already");
      }
      return link;
    } catch (IOException | RuntimeException e) {
      link.close();
      throw e;
    }
  }

  static MatchLink of(long run, int partition) throws IOException {
    MatchLink link = OPEN.get(new Key(run, partition));
    if (link == null) {
      throw new IOException("partition " + partition + " of run " + run + " has no match link: its reader is not in this process");
    }
    return link;
  }

  /** One match. It leaves at the latest with the next `passed`. */
  void row(long offset, int target, byte verdict) throws IOException {
    LinkEnd end = ends[LinkAddress.dispatcherOf(target, ends.length)];
    sentSincePassed |= end.row(offset, target, verdict);
  }

  @Override
  public long dueInNs() {
    return sentSincePassed ? 0 : toldAllNs + (owed ? QUIET_NS_MAX : SILENCE_NS_MAX) - System.nanoTime();
  }

  @Override
  public void passed(long offset) throws IOException {
    long now = System.nanoTime();
    boolean all = now - toldAllNs >= QUIET_NS_MAX;
    owed = false;
    for (LinkEnd end : ends) {
      if (all || end.hasRows()) {
        end.passed(offset);
      } else {
        owed = true;
      }
    }
    sentSincePassed = false;
    if (all) {
      toldAllNs = now;
    }
  }

  /** At once to all ends: filters are in force when all have heard it. */
  @Override
  public void generation(long offset, long generation) throws IOException {
    for (LinkEnd end : ends) {
      end.generation(offset, generation);
    }
    owed = false;
    sentSincePassed = false;
    toldAllNs = System.nanoTime();
  }

  /** Ends the connections; what was not sent counts for nothing. May be called twice. */
  @Override
  public void close() throws IOException {
    OPEN.remove(key, this);
    for (LinkEnd end : ends) {
      if (end != null) {
        end.close();
      }
    }
  }
}
