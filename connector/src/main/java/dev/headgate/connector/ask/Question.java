package dev.headgate.connector.ask;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.unsafe.types.UTF8String;

/** What the filters of a broker want to know of an event: places, parts of keys, keys. `match/questions.py` writes it. */
final class Question {
  /** A hundred megabytes, if every question were as long as they get with ordinary filters. */
  private static final int QUESTIONS_MAX = 32_768;

  private static final Map<Long, Question> KNOWN = new ConcurrentHashMap<>();
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
  record Part(int place, PartKind kind, int length) {}

  /** A key: the number of its kind, and which parts it is made of. */
  record Key(long number, int[] parts) {}

  /** By the order of `ask`'s arguments; -1 where nobody looks. */
  final int[] attributes;

  final Names extensions;
  final Names data;
  final int[] extensionPlaces;
  final Part[] parts;
  final Key[] keys;
  final int placeCount;

  private Question(JsonNode written) {
    Tree extensionTree = new Tree();
    Tree dataTree = new Tree();
    attributes = new int[Ask.ATTRIBUTES.size()];
    java.util.Arrays.fill(attributes, -1);
    List<Integer> added = new ArrayList<>();
    int place = 0;
    for (JsonNode one : written.get("places")) {
      String first = one.size() == 0 ? "" : one.get(1).asText();
      int attribute = Ask.ATTRIBUTES.indexOf(first);
      if (one.get(0).asText().equals("data")) {
        dataTree.put(one, place);
      } else if (attribute >= 0) {
        attributes[attribute] = place;
      } else {
        extensionTree.put(one, place);
        added.add(place);
      }
      place++;
    }
    placeCount = place;
    extensions = extensionTree.names();
    data = dataTree.names();
    extensionPlaces = added.stream().mapToInt(Integer::intValue).toArray();
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
  }

  /** The question of this number, which is never the number of another one in this process. */
  static Question of(long number, UTF8String written) {
    Question known = KNOWN.get(number);
    if (known == null) {
      if (KNOWN.size() >= QUESTIONS_MAX) {
        KNOWN.clear(); // those of generations that are gone
      }
      try {
        known = new Question(JSON.readTree(written.toString()));
      } catch (com.fasterxml.jackson.core.JsonProcessingException e) {
        throw new UncheckedIOException(e);
      }
      KNOWN.put(number, known);
    }
    return known;
  }

  /** Paths, while they are collected. */
  private static final class Tree {
    private final Map<String, Tree> below = new LinkedHashMap<>();
    private int place = -1;

    /** `written` is a root and the names of a path. */
    void put(JsonNode written, int place) {
      Tree tree = this;
      for (int i = 1; i < written.size(); i++) {
        tree = tree.below.computeIfAbsent(written.get(i).asText(), name -> new Tree());
      }
      tree.place = place;
    }

    /** Null where nothing is asked. */
    Names names() {
      if (below.isEmpty()) {
        return null;
      }
      Map<byte[], Names.Node> members = new HashMap<>();
      below.forEach(
          (name, tree) -> {
            Names.Node node = new Names.Node();
            node.place = tree.place;
            node.below = tree.names();
            members.put(name.getBytes(StandardCharsets.UTF_8), node);
          });
      return new Names(members);
    }
  }
}
