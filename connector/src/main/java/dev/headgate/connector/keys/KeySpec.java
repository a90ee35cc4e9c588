package dev.headgate.connector.keys;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.IntStream;
import org.apache.spark.unsafe.types.UTF8String;

/** What is read of a broker's events: operands, parts of keys, keys, shared atoms. `match/key_specs.py` writes it. */
final class KeySpec {
  /** What all key specs may take in memory: with ordinary filters, those of all brokers are far smaller. */
  private static final long BYTES_MAX = Runtime.getRuntime().maxMemory() / 8;

  /** What a key spec takes at most for each byte of its JSON, and for itself. */
  private static final long BYTES_PER_BYTE = 8;

  private static final long OVERHEAD_BYTES = 2_048;

  /** Values of one operand that are looked at, each of which makes a key: an event with more is in doubt. */
  static final int ITEMS_MAX = 64;

  private static final Map<Long, KeySpec> KNOWN = new ConcurrentHashMap<>();
  private static long knownBytes;
  private static volatile int parsed;
  private static final ObjectMapper JSON = new ObjectMapper();

  /** How a value becomes part of a key; the order is that of `plan.KeyKind`. */
  enum PartKind {
    STRING,
    NUMBER,
    BOOL,
    PREFIX,
    SUFFIX
  }

  /** Part of a key. */
  record Part(int operand, PartKind kind, int length) {}

  /** A key: the number of its kind, and which parts it is made of. */
  record Key(long number, int[] parts) {}

  /** An operand: where the value at its path is, and what is taken of it. */
  record Operand(int value, Form form) {}

  /** Where the values of attributes go, by the order of `KeyExtraction`'s arguments; -1 where no plan reads one. */
  final int[] attributes;

  /** Values of extensions whose names begin with `prefix`, and where they go. */
  record Named(int value, byte[] prefix) {}

  final List<Named> named = new ArrayList<>();

  /** Where the instant of `ce.time` goes, or -1. */
  final int instant;

  /** Where the instant of `publish_time` goes, or -1. */
  final int published;

  final Members.Node extensions;
  final Members.Node data;
  final Operand[] operands;
  final int valueCount;
  final Part[] parts;
  final Key[] keys;
  final SharedAtom[] shared;
  private final long bytes;

  /** How many key specs had been parsed when it was last used. Any thread writes it, and none needs it exactly. */
  private int used;

  private KeySpec(JsonNode written, long bytes) {
    this.bytes = bytes;
    Tree extensionTree = new Tree();
    Tree dataTree = new Tree();
    attributes = new int[KeyExtraction.ATTRIBUTES.size()];
    Arrays.fill(attributes, -1);
    int values = 0;
    int time = -1;
    int stored = -1;
    operands = new Operand[written.get("operands").size()];
    for (int i = 0; i < operands.length; i++) {
      JsonNode one = written.get("operands").get(i);
      Form form = Form.of(one.get(1).asText());
      JsonNode path = one.get(2);
      String root = one.get(0).asText();
      int attribute = path.size() == 1 ? KeyExtraction.ATTRIBUTES.indexOf(path.get(0).asText()) : -1;
      int value;
      if (root.equals("publish_time")) {
        value = stored = stored < 0 ? values++ : stored;
      } else if (form == Form.TIME) {
        value = time = time < 0 ? values++ : time;
      } else if (form == Form.NAMED) {
        value = values++;
        named.add(new Named(value, path.get(0).asText().getBytes(StandardCharsets.UTF_8)));
      } else if (root.equals("ce") && attribute >= 0) {
        value = attributes[attribute] = attributes[attribute] < 0 ? values++ : attributes[attribute];
      } else {
        Tree tree = root.equals("ce") ? extensionTree : dataTree;
        value = tree.put(path, form, values);
        values = Math.max(values, value + 1);
      }
      operands[i] = new Operand(value, form);
    }
    instant = time;
    published = stored;
    valueCount = values;
    extensions = extensionTree.node();
    data = dataTree.node();
    parts = new Part[written.get("parts").size()];
    int next = 0;
    for (JsonNode one : written.get("parts")) {
      PartKind kind = PartKind.values()[one.get(1).asInt()];
      parts[next++] = new Part(one.get(0).asInt(), kind, one.get(2).asInt());
    }
    keys = new Key[written.get("keys").size()];
    next = 0;
    for (JsonNode one : written.get("keys")) {
      int[] indexes = new int[one.get(1).size()];
      for (int i = 0; i < indexes.length; i++) {
        indexes[i] = one.get(1).get(i).asInt();
      }
      keys[next++] = new Key(one.get(0).asLong(), indexes);
    }
    shared = new SharedAtom[written.get("shared").size()];
    next = 0;
    for (JsonNode one : written.get("shared")) {
      shared[next++] = SharedAtom.of(one);
    }
  }

  /** The key spec of this number, which is never the number of another one in this process. */
  static KeySpec of(long number, UTF8String written) {
    KeySpec known = KNOWN.get(number);
    if (known == null) {
      known = parse(number, written);
    }
    int now = parsed;
    if (known.used != now) { // threads that write to what all read wait for each other
      known.used = now;
    }
    return known;
  }

  private static synchronized KeySpec parse(long number, UTF8String written) {
    KeySpec known = KNOWN.get(number);
    if (known != null) {
      return known;
    }
    try {
      long bytes = OVERHEAD_BYTES + BYTES_PER_BYTE * written.numBytes();
      known = new KeySpec(JSON.readTree(written.toString()), bytes);
    } catch (com.fasterxml.jackson.core.JsonProcessingException e) {
      throw new UncheckedIOException(e);
    }
    known.used = ++parsed;
    KNOWN.put(number, known);
    knownBytes += known.bytes;
    if (knownBytes > BYTES_MAX) {
      forget();
    }
    return known;
  }

  /** Keeps the half that was used last: the others are of generations that are gone. */
  private static void forget() {
    record Use(long number, int used) {}
    List<Use> uses = new ArrayList<>();
    KNOWN.forEach((number, known) -> uses.add(new Use(number, known.used)));
    uses.sort(Comparator.comparingInt(Use::used));
    for (Use use : uses.subList(0, uses.size() - 1)) {
      if (knownBytes <= BYTES_MAX / 2) {
        return;
      }
      knownBytes -= KNOWN.remove(use.number()).bytes;
    }
  }

  /** Paths, while they are collected. */
  private static final class Tree {
    private final Map<String, Tree> below = new LinkedHashMap<>();
    private int value = -1;
    private boolean counted;
    private boolean listed;

    /** Where the value of a path goes: `next`, unless the path is known. */
    int put(JsonNode path, Form form, int next) {
      Tree tree = this;
      for (JsonNode name : path) {
        tree = tree.below.computeIfAbsent(name.asText(), absent -> new Tree());
      }
      tree.value = tree.value < 0 ? next : tree.value;
      tree.counted |= form == Form.SIZE;
      tree.listed |= form.listed();
      return tree.value;
    }

    Members.Node node() {
      Members.Node node = new Members.Node();
      node.value = value;
      node.counted = counted;
      node.listed = listed;
      if (!below.isEmpty()) {
        Map<byte[], Members.Node> members = new HashMap<>();
        below.forEach((name, tree) -> members.put(name.getBytes(StandardCharsets.UTF_8), tree.node()));
        node.below = new Members(members);
        node.valuesBelow = valuesBelow().toArray();
      }
      return node;
    }

    private IntStream valuesBelow() {
      return below.values().stream()
          .flatMapToInt(tree -> IntStream.concat(IntStream.of(tree.value), tree.valuesBelow()))
          .filter(value -> value >= 0);
    }
  }
}
