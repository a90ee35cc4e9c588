package dev.headgate.connector.keys;

import java.util.Arrays;
import java.util.Map;

/** The members of an object that a key spec reads, found by the bytes of their names. */
final class Members {
  /** None is read. */
  static final Members NONE = new Members(Map.of());

  /** What is read of a member. */
  static final class Node {
    /** Where its value goes, or -1. */
    int value = -1;

    /** What is read below it, or null. */
    Members below;

    /** Where the values below it go. */
    int[] valuesBelow = {};

    /** Whether its size is read. */
    boolean counted;

    /** Whether its items are read. */
    boolean listed;
  }

  private final byte[][] names;
  private final Node[] nodes;
  private final int mask;
  final Node[] all;

  Members(Map<byte[], Node> members) {
    int size = Integer.highestOneBit(Math.max(1, members.size()) * 2 - 1) * 2;
    names = new byte[size][];
    nodes = new Node[size];
    mask = size - 1;
    members.forEach(this::put);
    all = members.values().toArray(new Node[0]);
  }

  private void put(byte[] name, Node node) {
    int at = mix(hash(name, 0, name.length)) & mask;
    while (names[at] != null) {
      at = at + 1 & mask;
    }
    names[at] = name;
    nodes[at] = node;
  }

  static int hash(byte[] bytes, int from, int to) {
    int hash = 0;
    for (int at = from; at < to; at++) {
      hash = 31 * hash + bytes[at];
    }
    return hash;
  }

  private static int mix(int hash) {
    return hash ^ hash >>> 15;
  }

  /** The member of this name, or null. `hash` is that of the bytes. */
  Node get(byte[] bytes, int from, int to, int hash) {
    for (int at = mix(hash) & mask; names[at] != null; at = at + 1 & mask) {
      if (Arrays.equals(names[at], 0, names[at].length, bytes, from, to)) {
        return nodes[at];
      }
    }
    return null;
  }
}
