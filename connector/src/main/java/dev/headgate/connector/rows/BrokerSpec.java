package dev.headgate.connector.rows;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * What is read of a broker's events: a key spec, and where the chain of the broker's keys starts. `match/table.py` writes it.
 *
 * @param number of the key spec, in this process never that of another one
 * @param written the key spec, JSON
 */
public record BrokerSpec(long number, UTF8String written, long state) implements Serializable {
  private static final ObjectMapper JSON = new ObjectMapper();

  /**
   * Those of all brokers, by name, after a change: `{"specs": [[NUMBER, TEXT], ...], "brokers": [[NAME, NUMBER, STATE], ...],
   * "gone": [NAME, ...]}`. Many brokers share a key spec, which is there once.
   */
  static Map<UTF8String, BrokerSpec> after(Map<UTF8String, BrokerSpec> before, byte[] change) {
    try {
      JsonNode read = JSON.readTree(change);
      Map<Long, UTF8String> texts = new HashMap<>();
      read.get("specs").forEach(one -> texts.put(one.get(0).asLong(), UTF8String.fromString(one.get(1).asText())));
      Map<UTF8String, BrokerSpec> brokers = new HashMap<>(before);
      read.get("gone").forEach(one -> brokers.remove(UTF8String.fromString(one.asText())));
      for (JsonNode one : read.get("brokers")) {
        long number = one.get(1).asLong();
        BrokerSpec spec = new BrokerSpec(number, texts.get(number), one.get(2).asLong());
        brokers.put(UTF8String.fromString(one.get(0).asText()), spec);
      }
      return brokers;
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}
