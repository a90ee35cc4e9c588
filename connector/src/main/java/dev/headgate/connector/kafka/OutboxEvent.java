package dev.headgate.connector.kafka;

import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.spark.sql.Row;

/**
 * An event as its record in the topic of events has it.
 *
 * @param offset in its source partition
 * @param appendTimeUs when it was stored, in microseconds since 1970 UTC
 * @param key null without one
 * @param value null for no data
 * @param headers in order
 */
record OutboxEvent(long offset, long appendTimeUs, byte[] key, byte[] value, List<Header> headers) {
  /** Reads it from the row that follows the rows of the event, whose columns `OutboxWriter` names. */
  static OutboxEvent of(Row row) {
    List<Header> headers = new ArrayList<>();
    if (!row.isNullAt(OutboxWriter.HEADERS)) {
      for (Row header : row.<Row>getList(OutboxWriter.HEADERS)) {
        headers.add(new RecordHeader(header.getString(0), header.getAs(1)));
      }
    }
    return new OutboxEvent(
        row.getLong(OutboxWriter.OFFSET),
        row.getLong(OutboxWriter.APPEND_TIME_US),
        row.getAs(OutboxWriter.KEY),
        row.getAs(OutboxWriter.VALUE),
        headers);
  }

  /** The record in the outbox: one header of ours, then those of the event. */
  ProducerRecord<byte[], byte[]> record(String topic, int partition, Header ours) {
    List<Header> all = new ArrayList<>(headers.size() + 1);
    all.add(ours);
    all.addAll(headers);
    return new ProducerRecord<>(topic, partition, null, key, value, all);
  }
}
