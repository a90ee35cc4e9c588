package dev.headgate.connector.keys;

import dev.headgate.connector.keys.KeySpec.Part;
import dev.headgate.connector.keys.KeySpec.PartKind;
import dev.headgate.connector.keys.Value.Kind;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Makes an event's keys: chains of hashes as `match/keys.py` makes them for rows.
 *
 * <p>Beside each key stands its check, 32 bits, and above them one bit that says whether a number in it is too large
 * for a double to tell from its neighbours. A part of many values makes a key for each.
 */
final class KeyHashes {
  private static final double INTEGER_EXACT_MAX = 0x1p53;
  private static final long DOUBT = 1L << 32;
  private static final UTF8String DOUBT_TEXT = UTF8String.fromString("\0");
  private static final Digest[] NONE = {};

  /** Both hashes of one value. */
  private record Digest(long hash, int check, boolean doubtful) {}

  private final long seed;
  private final int secret;
  private long[] keys;
  private long[] checks;
  private int count;

  private KeyHashes(int keyCount, long seed, int secret) {
    this.seed = seed;
    this.secret = secret;
    keys = new long[keyCount];
    checks = new long[keyCount];
  }

  /** The keys of an event with these operands. */
  static KeyHashes of(KeySpec spec, Value[] operands, long broker, long seed, int secret) {
    KeyHashes made = new KeyHashes(spec.keys.length, seed, secret);
    Digest[][] digests = new Digest[spec.parts.length][];
    for (int i = 0; i < digests.length; i++) {
      Part part = spec.parts[i];
      digests[i] = made.digests(part, operands[part.operand()]);
    }
    for (KeySpec.Key key : spec.keys) {
      made.add(key.parts(), 0, digests, XXH64.hashLong(key.number(), broker), secret, 0);
    }
    return made;
  }

  ArrayData keys() {
    return some(keys);
  }

  /** By key. */
  ArrayData checks() {
    return some(checks);
  }

  private ArrayData some(long[] numbers) {
    return UnsafeArrayData.fromPrimitiveArray(count == numbers.length ? numbers : Arrays.copyOf(numbers, count));
  }

  private void add(int[] parts, int next, Digest[][] digests, long hash, int check, long doubt) {
    if (next == parts.length) {
      if (count == keys.length) {
        keys = Arrays.copyOf(keys, 2 * count);
        checks = Arrays.copyOf(checks, 2 * count);
      }
      keys[count] = hash;
      checks[count++] = Integer.toUnsignedLong(check) | doubt;
      return;
    }
    for (Digest one : digests[parts[next]]) {
      long longer = XXH64.hashLong(one.hash, hash);
      add(parts, next + 1, digests, longer, Murmur3_x86_32.hashInt(one.check, check), one.doubtful ? DOUBT : doubt);
    }
  }

  private Digest[] digests(Part part, Value value) {
    if (value.kind == Kind.MANY) {
      return Arrays.stream(value.items).map(item -> digest(part, item)).filter(one -> one != null).distinct()
          .toArray(Digest[]::new);
    }
    Digest one = digest(part, value);
    return one == null ? NONE : new Digest[] {one};
  }

  /** Null where the value is not of the part's kind. */
  private Digest digest(Part part, Value value) {
    switch (part.kind()) {
      case NUMBER:
        if (value.kind == Kind.NUMBER) {
          return number(value.number);
        }
        return value.kind == Kind.DOUBTFUL ? number(Double.POSITIVE_INFINITY) : null;
      case BOOL:
        if (value.kind != Kind.TRUE && value.kind != Kind.FALSE) {
          return null;
        }
        int bit = value.kind == Kind.TRUE ? 1 : 0;
        return new Digest(XXH64.hashInt(bit, seed), Murmur3_x86_32.hashInt(bit, secret), false);
      default:
        if (value.kind == Kind.TEXT) {
          UTF8String text = cut(value.text, part);
          return text == null ? null : text(text);
        }
        return value.kind == Kind.DOUBTFUL ? text(DOUBT_TEXT) : null;
    }
  }

  private Digest number(double value) {
    long bits = Double.doubleToLongBits(value == 0 ? 0.0 : value);
    boolean doubtful = Math.abs(value) >= INTEGER_EXACT_MAX;
    return new Digest(XXH64.hashLong(bits, seed), Murmur3_x86_32.hashLong(bits, secret), doubtful);
  }

  private Digest text(UTF8String value) {
    Object base = value.getBaseObject();
    long offset = value.getBaseOffset();
    int bytes = value.numBytes();
    return new Digest(
        XXH64.hashUnsafeBytes(base, offset, bytes, seed),
        Murmur3_x86_32.hashUnsafeBytes(base, offset, bytes, secret),
        false);
  }

  /** The text that a part compares; null where it is too short. */
  private static UTF8String cut(UTF8String text, Part part) {
    if (part.kind() == PartKind.STRING) {
      return text;
    }
    int size = text.numBytes();
    int left = part.length();
    if (part.kind() == PartKind.PREFIX) {
      int end = 0;
      while (end < size && left > 0) {
        end += UTF8String.numBytesForFirstByte(text.getByte(end));
        left--;
      }
      return left > 0 ? null : piece(text, 0, Math.min(end, size));
    }
    int from = size;
    while (from > 0 && left > 0) {
      from--;
      if ((text.getByte(from) & 0xC0) != 0x80) {
        left--;
      }
    }
    return left > 0 ? null : piece(text, from, size);
  }

  private static UTF8String piece(UTF8String text, int from, int to) {
    return UTF8String.fromAddress(text.getBaseObject(), text.getBaseOffset() + from, to - from);
  }
}
