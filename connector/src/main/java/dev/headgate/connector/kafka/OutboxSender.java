package dev.headgate.connector.kafka;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The producer of one Spark task: records of events, and how far all of them are acknowledged.
 *
 * <p>After a record that failed nothing more is written: its callback, which the producer calls before it sends anything
 * else, closes the producer. So what an outbox partition has is always whole up to its last record.
 *
 * <p>The task's thread sends events, a thread of this object tells progress, the producer's thread acknowledges. No lock
 * is held while something is handed to the producer, which may wait for room there.
 */
final class OutboxSender {
  /** A record that was handed to the producer. */
  private static final class Sent {
    private final long offset;
    private boolean acknowledged;

    Sent(long offset) {
      this.offset = offset;
    }
  }

  private final OutboxSettings settings;
  private final OutboxHeader headers;
  private final Producer<byte[], byte[]> producer;
  private final Thread task = Thread.currentThread();
  private final ScheduledExecutorService timer =
      Executors.newSingleThreadScheduledExecutor(
          run -> {
            Thread thread = new Thread(run, "headgate-outbox-progress");
            thread.setDaemon(true);
            return thread;
          });

  // Guarded by this.
  private final ArrayDeque<Sent> waiting = new ArrayDeque<>();
  private int partition = -1;
  private long complete;
  private long passed;
  private int passedWaiting;
  private Exception failure;
  private boolean ended;

  OutboxSender(OutboxSettings settings) {
    this.settings = settings;
    headers = new OutboxHeader(settings);
    producer = new KafkaProducer<>(properties(settings), new ByteArraySerializer(), new ByteArraySerializer());
    int everyMs = settings.passedEveryMs();
    timer.scheduleWithFixedDelay(this::tellProgress, everyMs, everyMs, TimeUnit.MILLISECONDS);
  }

  private static Map<String, Object> properties(OutboxSettings settings) {
    Map<String, Object> properties = new HashMap<>(settings.client());
    properties.put(ProducerConfig.ACKS_CONFIG, "all");
    properties.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, true);
    properties.put(ProducerConfig.LINGER_MS_CONFIG, 0);
    properties.put(ProducerConfig.MAX_REQUEST_SIZE_CONFIG, settings.recordBytesMax());
    properties.put(ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, settings.timeoutMs());
    properties.put(ProducerConfig.REQUEST_TIMEOUT_MS_CONFIG, settings.timeoutMs() / 2);
    properties.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, settings.timeoutMs());
    return properties;
  }

  /** Sends an event to the outbox partitions of its targets; waits while too many records wait for Kafka. */
  void event(int partition, OutboxRows rows, OutboxEvent event) throws IOException, InterruptedException {
    begin(partition, event.offset());
    long[] merged = rows.merged();
    for (int from = 0, to; from < rows.count(); from = to) {
      int outbox = OutboxRows.partition(merged[from]);
      to = from + 1;
      while (to < rows.count() && to - from < settings.recordTargetsMax() && OutboxRows.partition(merged[to]) == outbox) {
        to++;
      }
      boolean more = to < rows.count() && OutboxRows.partition(merged[to]) == outbox;
      byte[] header =
          headers.event(partition, event.offset(), event.appendTimeUs(), merged, from, to - from, more);
      send(event.offset(), event.record(settings.topic(), outbox, ours(header)));
    }
    synchronized (this) {
      check();
      complete = event.offset() + 1;
    }
  }

  private static Header ours(byte[] header) {
    return new RecordHeader(OutboxHeader.NAME, header);
  }

  private synchronized void begin(int partition, long offset) throws IOException {
    check();
    if (this.partition < 0) {
      this.partition = partition;
    } else if (this.partition != partition || offset < complete) {
      throw new IllegalStateException(
          "event " + offset + " of partition " + partition + " comes after " + (complete - 1) + " of " + this.partition);
    }
  }

  private void send(long offset, ProducerRecord<byte[], byte[]> record) throws IOException, InterruptedException {
    Sent sent = new Sent(offset);
    synchronized (this) {
      while (waiting.size() >= settings.waitingMax() && failure == null) {
        wait();
      }
      check();
      waiting.add(sent);
    }
    producer.send(record, (stored, error) -> acknowledge(sent, error));
  }

  private void acknowledge(Sent sent, Exception error) {
    if (error != null) {
      fail(error);
      return;
    }
    synchronized (this) {
      sent.acknowledged = true;
      while (!waiting.isEmpty() && waiting.peek().acknowledged) {
        waiting.remove();
      }
      notifyAll();
    }
  }

  /** Every event below it is matched, and its records are acknowledged. */
  private long acknowledgedBelow() {
    return waiting.isEmpty() ? complete : waiting.peek().offset;
  }

  private void tellProgress() {
    long now;
    synchronized (this) {
      now = acknowledgedBelow();
      if (ended || failure != null || passedWaiting > 0 || now <= passed) {
        return;
      }
      passed = now;
      passedWaiting = settings.partitions();
    }
    try {
      sendPassed(now);
    } catch (RuntimeException error) {
      fail(error);
    }
  }

  private void sendPassed(long now) {
    byte[] header = headers.passed(partition, now);
    for (int outbox = 0; outbox < settings.partitions(); outbox++) {
      producer.send(
          new ProducerRecord<>(settings.topic(), outbox, null, null, null, List.of(ours(header))),
          (stored, error) -> told(error));
    }
  }

  private void told(Exception error) {
    if (error != null) {
      fail(error);
      return;
    }
    synchronized (this) {
      passedWaiting--;
    }
  }

  /** The first failure ends the task, which may wait for an event that does not come. */
  private void fail(Exception error) {
    synchronized (this) {
      if (failure != null || ended) {
        return;
      }
      failure = error;
      notifyAll();
      if (Thread.currentThread() != task) {
        task.interrupt();
      }
    }
    producer.close(Duration.ZERO);
  }

  private void check() throws IOException {
    if (failure != null) {
      throw new IOException(settings + " cannot be written: " + failure.getMessage(), failure);
    }
  }

  /** Why the task has to end; null while nothing failed. */
  synchronized Exception failure() {
    return failure;
  }

  /** Waits until everything is acknowledged, tells the last progress and ends. */
  void finish() throws IOException, InterruptedException {
    timer.shutdown();
    timer.awaitTermination(settings.timeoutMs(), TimeUnit.MILLISECONDS);
    producer.flush();
    tellProgress();
    producer.flush();
    synchronized (this) {
      check();
      ended = true;
    }
    producer.close();
  }

  /** Ends at once: what is not acknowledged may be stored or not. May be called twice. */
  void abort() {
    synchronized (this) {
      ended = true;
    }
    timer.shutdownNow();
    boolean interrupted = Thread.interrupted(); // else closing would be given up
    producer.close(Duration.ZERO);
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }
}
