package dev.headgate.connector.keys;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Searches in UTF-8 that no text makes slow: an event whose match takes too long costs the run its connection, and the
 * next run the same.
 *
 * <p>Each begins as everybody would, a try at every byte, which is the quickest where tries fail soon. Where they do not,
 * it goes on in another way: for plain text in time of text + wanted, for one with `_` in time of text * wanted / 64.
 */
final class TextSearch {
  /** Bytes that tries may compare for each byte that the search has come on, before it goes on in the other way. */
  private static final long TRIED_PER_BYTE_MAX = 8;

  /** And bytes that they may compare before that: what a short text costs anyway. */
  private static final long TRIED_FREE_MAX = 256;

  /** Behind what was found first at or after `from`, or -1. All in bytes; `end` is where the text to look at ends. */
  static int find(UTF8String text, int from, int end, UTF8String wanted) {
    int length = wanted.numBytes();
    if (length == 0) {
      return from;
    }
    byte first = wanted.getByte(0);
    long tried = 0;
    for (int at = from; at <= end - length; at++) {
      if (text.getByte(at) != first) {
        continue;
      }
      int same = 1;
      while (same < length && text.getByte(at + same) == wanted.getByte(same)) {
        same++;
      }
      if (same == length) {
        return at + length;
      }
      tried += same;
      if (tried > TRIED_FREE_MAX + TRIED_PER_BYTE_MAX * (at - from)) {
        return findAnywhere(text, at + 1, end, wanted);
      }
    }
    return -1;
  }

  /** The same after Knuth, Morris and Pratt. */
  private static int findAnywhere(UTF8String text, int from, int end, UTF8String wanted) {
    int length = wanted.numBytes();
    int[] border = new int[length]; // of the first n + 1 bytes: how many of them are also their last ones
    for (int n = 1, same = 0; n < length; n++) {
      while (same > 0 && wanted.getByte(n) != wanted.getByte(same)) {
        same = border[same - 1];
      }
      same += wanted.getByte(n) == wanted.getByte(same) ? 1 : 0;
      border[n] = same;
    }
    for (int at = from, same = 0; at < end; at++) {
      while (same > 0 && text.getByte(at) != wanted.getByte(same)) {
        same = border[same - 1];
      }
      same += text.getByte(at) == wanted.getByte(same) ? 1 : 0;
      if (same == length) {
        return at + 1;
      }
    }
    return -1;
  }

  /**
   * Whether the pattern stands for all of the text: its first piece at the beginning, its last one at the end, and each
   * of the others where it is found first behind the one before it, which leaves the most for those that follow.
   */
  static boolean like(UTF8String text, UTF8String pattern) {
    List<Piece> pieces = pieces(pattern);
    int last = pieces.size() - 1;
    int end = text.numBytes();
    int at = pieces.get(0).behind(text, 0, end);
    if (last == 0 || at < 0) {
      return at == end;
    }
    int tail = pieces.get(last).start(text, end);
    if (tail < at || pieces.get(last).behind(text, tail, end) != end) {
      return false;
    }
    for (int i = 1; i < last && at >= 0; i++) {
      at = pieces.get(i).find(text, at, tail);
    }
    return at >= 0;
  }

  /** What stands before, between and behind the `%`. */
  private static List<Piece> pieces(UTF8String pattern) {
    List<Piece> pieces = new ArrayList<>();
    byte[] bytes = new byte[pattern.numBytes()];
    boolean[] any = new boolean[bytes.length];
    int count = 0;
    for (int at = 0; at < pattern.numBytes(); at++) {
      byte one = pattern.getByte(at);
      if (one == '%') {
        pieces.add(Piece.of(bytes, any, count));
        Arrays.fill(any, 0, count, false);
        count = 0;
        continue;
      }
      if (one == '_') {
        any[count] = true;
      } else if (one == '\\' && at + 1 < pattern.numBytes()) {
        one = pattern.getByte(++at);
      }
      bytes[count++] = one;
    }
    pieces.add(Piece.of(bytes, any, count));
    return pieces;
  }

  /**
   * Part of a pattern without `%`.
   *
   * @param text its text, with some byte for each `_`
   * @param any where the `_` are; null for none
   * @param chars how many code points it stands for
   */
  private record Piece(UTF8String text, boolean[] any, int chars) {
    static Piece of(byte[] bytes, boolean[] any, int count) {
      UTF8String text = UTF8String.fromBytes(Arrays.copyOf(bytes, count));
      for (int i = 0; i < count; i++) {
        if (any[i]) {
          return new Piece(text, Arrays.copyOf(any, count), text.numChars());
        }
      }
      return new Piece(text, null, text.numChars());
    }

    /** Where it must begin to end at `end`, or -1. */
    int start(UTF8String in, int end) {
      if (any == null) {
        return end - text.numBytes();
      }
      int at = end;
      for (int left = chars; left > 0; left--) {
        do {
          at--;
        } while (at > 0 && isInside(in.getByte(at)));
        if (at < 0) {
          return -1;
        }
      }
      return at;
    }

    /** Behind it, when it stands at `at`; else -1 - how many of its bytes do. */
    int behind(UTF8String in, int at, int end) {
      int next = at;
      for (int i = 0; i < text.numBytes(); i++) {
        if (next >= end) {
          return -1 - i;
        }
        if (any != null && any[i]) {
          next += UTF8String.numBytesForFirstByte(in.getByte(next));
        } else if (in.getByte(next++) != text.getByte(i)) {
          return -1 - i;
        }
      }
      return next;
    }

    /** Behind the first one at or after `from`, or -1. */
    int find(UTF8String in, int from, int end) {
      if (any == null) {
        return TextSearch.find(in, from, end, text);
      }
      long tried = 0;
      for (int at = from; at < end; at += UTF8String.numBytesForFirstByte(in.getByte(at))) {
        if (!any[0] && in.getByte(at) != text.getByte(0)) {
          continue;
        }
        int behind = behind(in, at, end);
        if (behind >= 0) {
          return behind;
        }
        tried -= behind;
        if (tried > TRIED_FREE_MAX + TRIED_PER_BYTE_MAX * (at - from)) {
          return findAnywhere(in, at, end);
        }
      }
      return -1;
    }

    /** The same with a bit for each code point: is what precedes it there, up to here? */
    private int findAnywhere(UTF8String in, int from, int end) {
      long[] everywhere = new long[(chars + 63) / 64];
      Map<Integer, long[]> places = new HashMap<>();
      for (int i = 0, bit = 0; i < text.numBytes(); i += UTF8String.numBytesForFirstByte(text.getByte(i)), bit++) {
        if (any[i]) {
          everywhere[bit / 64] |= 1L << bit;
        } else {
          places.computeIfAbsent(text.codePointFrom(i), absent -> new long[everywhere.length])[bit / 64] |= 1L << bit;
        }
      }
      places.values().forEach(of -> Arrays.setAll(of, word -> of[word] | everywhere[word]));
      long[] there = new long[everywhere.length];
      int at = from;
      while (at < end) {
        long[] of = places.getOrDefault(in.codePointFrom(at), everywhere);
        at += UTF8String.numBytesForFirstByte(in.getByte(at));
        long carried = 1;
        for (int word = 0; word < there.length; word++) {
          long before = there[word];
          there[word] = (before << 1 | carried) & of[word];
          carried = before >>> 63;
        }
        if ((there[there.length - 1] >>> (chars - 1) & 1) == 1) {
          return at;
        }
      }
      return -1;
    }

    private static boolean isInside(byte one) {
      return (one & 0xC0) == 0x80;
    }
  }

  private TextSearch() {}
}
