package dev.headgate.connector.rows;

import java.lang.ref.WeakReference;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The newest generation that tasks of this process may go on to without a new query.
 *
 * <p>Whoever plans a query makes it; tasks find it by its number. In another process, as on a cluster, there is none, and a
 * task stays with the generation that it was started with.
 */
final class LiveRows {
  private static final AtomicLong NUMBERS = new AtomicLong();
  /** Weak: with the last table and the last task that refer to it, it is gone. */
  private static final Map<Long, WeakReference<LiveRows>> KNOWN = new ConcurrentHashMap<>();

  final long number = NUMBERS.incrementAndGet();
  private final Set<Runnable> waiting = ConcurrentHashMap.newKeySet();
  private volatile Generation newest;

  LiveRows() {
    KNOWN.values().removeIf(one -> one.get() == null);
    KNOWN.put(number, new WeakReference<>(this));
  }

  /** Null where it is not in this process. */
  static LiveRows of(long number) {
    WeakReference<LiveRows> known = KNOWN.get(number);
    return known == null ? null : known.get();
  }

  /** Null before the first. */
  Generation newest() {
    return newest;
  }

  /** Offers a generation, and wakes the tasks that wait for events. */
  void offer(Generation generation) {
    newest = generation;
    waiting.forEach(Runnable::run);
  }

  void tell(Runnable waiter) {
    waiting.add(waiter);
  }

  void tellNoMore(Runnable waiter) {
    waiting.remove(waiter);
  }
}
