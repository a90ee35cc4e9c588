package dev.headgate.connector;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.json.JsonMapper;
import dev.headgate.connector.link.LinkAddress;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What a reader of format `headgate` may say.
 *
 * @param path option `path`: the log's directory, whose folders are the partitions
 * @param partitions option `partitions`: numbers with commas between
 * @param startOffsets option `startOffsets`: a JSON object of partition to offset; a partition that is not named starts at its
 *     first kept offset
 * @param endOffsets option `endOffsets`: likewise, the offset behind the last one; a partition that is not named is read to what is
 *     committed
 * @param filterValues option `filterValues`: a JSON list; null in it asks for records without filter value; absent: no pruning
 * @param skipsCorrupt option `onCorrupt`: `skip`, or `stop` (the default)
 * @param link options `linkEndpoints` (`HOST:PORT` of every dispatcher, with commas between), `linkToken` (hex), `run`,
 *     `generation`: all four, or none
 * @param wakeups option `wakeups`: the folder where the writer of partition N listens, as `log-N.wake`
 * @param table option `table`: the name of the match table whose newer generations a real-time reader takes
 */
record SourceOptions(
    Path path,
    List<Integer> partitions,
    Map<Integer, Long> startOffsets,
    Map<Integer, Long> endOffsets,
    Optional<List<String>> filterValues,
    boolean skipsCorrupt,
    Optional<LinkAddress> link,
    Optional<String> wakeups,
    Optional<String> table) {
  private static final JsonMapper JSON = JsonMapper.builder().build();

  static SourceOptions parse(CaseInsensitiveStringMap options) {
    List<Integer> partitions =
        Arrays.stream(required(options, "partitions").split(",")).map(String::strip).map(Integer::valueOf).toList();
    Optional<LinkAddress> link =
        Optional.ofNullable(options.get("linkEndpoints"))
            .map(
                endpoints ->
                    new LinkAddress(
                        Arrays.stream(endpoints.split(",")).map(LinkAddress.Endpoint::parse).toList(),
                        HexFormat.of().parseHex(required(options, "linkToken")),
                        Long.parseLong(required(options, "run")),
                        Long.parseLong(required(options, "generation")),
                        partitions.size()));
    return new SourceOptions(
        Path.of(required(options, "path")),
        partitions,
        Optional.ofNullable(options.get("startOffsets")).map(SourceOptions::offsets).orElse(Map.of()),
        Optional.ofNullable(options.get("endOffsets")).map(SourceOptions::offsets).orElse(Map.of()),
        Optional.ofNullable(options.get("filterValues")).map(text -> json(text, new TypeReference<List<String>>() {})),
        skipsCorrupt(options.getOrDefault("onCorrupt", "stop")),
        link,
        Optional.ofNullable(options.get("wakeups")),
        Optional.ofNullable(options.get("table")));
  }

  private static boolean skipsCorrupt(String text) {
    return switch (text) {
      case "skip" -> true;
      case "stop" -> false;
      default -> throw new IllegalArgumentException("option 'onCorrupt' is stop or skip, not '" + text + "'");
    };
  }

  Path directory(int partition) {
    return path.resolve(Integer.toString(partition));
  }

  /** A JSON object of partition to offset, as an option or as Spark's offset of a stream. */
  static Map<Integer, Long> offsets(String text) {
    return json(text, new TypeReference<Map<Integer, Long>>() {});
  }

  private static <T> T json(String text, TypeReference<T> type) {
    try {
      return JSON.readValue(text, type);
    } catch (JsonProcessingException e) {
      throw new IllegalArgumentException("not the JSON that was expected: " + text, e);
    }
  }

  private static String required(CaseInsensitiveStringMap options, String name) {
    String value = options.get(name);
    if (value == null || value.isBlank()) {
      throw new IllegalArgumentException("format headgate needs the option '" + name + "'");
    }
    return value;
  }
}
