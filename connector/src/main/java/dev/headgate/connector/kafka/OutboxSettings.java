package dev.headgate.connector.kafka;

import java.io.Serializable;
import java.util.HashMap;
import java.util.Map;

/**
 * Where a run's matches go in Kafka, and how much of them may wait.
 *
 * @param client properties of the producer that reach and authenticate; they may hold secrets
 * @param topic the outbox
 * @param partitions how many the outbox has
 * @param run number of the run
 * @param generation version of the set of filters
 * @param recordBytesMax one record
 * @param recordTargetsMax targets of one record; an event with more has several
 * @param eventRowsMax rows of one event
 * @param waitingMax records that Kafka has not acknowledged
 * @param timeoutMs until a record that Kafka does not acknowledge ends the task
 * @param passedEveryMs how often progress is told
 */
public record OutboxSettings(
    Map<String, String> client,
    String topic,
    int partitions,
    long run,
    long generation,
    int recordBytesMax,
    int recordTargetsMax,
    int eventRowsMax,
    int waitingMax,
    int timeoutMs,
    int passedEveryMs)
    implements Serializable {

  public OutboxSettings {
    client = new HashMap<>(client); // what came over Py4J cannot be serialized
  }

  /** Without the client's properties: this may end in a log. */
  @Override
  public String toString() {
    return topic + " run " + run;
  }
}
