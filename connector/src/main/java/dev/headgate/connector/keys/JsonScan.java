package dev.headgate.connector.keys;

import dev.headgate.connector.keys.Value.Kind;
import java.io.ByteArrayOutputStream;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Finds the values at some paths of a JSON text, stepping over everything else.
 *
 * <p>The text is valid JSON without duplicate names: ingress let nothing else in. Anything else does no harm: what
 * stands behind the first mistake is not found.
 */
final class JsonScan {
  private static final int DIGITS_EXACT_MAX = 15;

  private final byte[] bytes;
  private int at;

  private JsonScan(byte[] bytes) {
    this.bytes = bytes;
  }

  /** Fills in the values below `node` where the text is an object; leaves them as they are where it is none. */
  static void read(byte[] bytes, Members.Node node, Value[] values) {
    JsonScan scan = new JsonScan(bytes);
    try {
      switch (scan.token()) {
        case '{' -> scan.object(node.below, values);
        case '[' -> behindArray(node, values);
        default -> {}
      }
    } catch (IndexOutOfBoundsException | NumberFormatException e) {
      return; // no JSON
    }
  }

  /**
   * Makes `found` the values of an object's members whose names begin with `prefix`. Where one of them is an object the
   * answer is in doubt, because filters see its members, too.
   */
  static void named(byte[] bytes, byte[] prefix, Value found) {
    JsonScan scan = new JsonScan(bytes);
    List<Value> values = new ArrayList<>();
    scan.token();
    scan.at++;
    while (scan.token() == '"') {
      byte[] name = scan.name();
      scan.token(); // the colon
      scan.at++;
      byte first = scan.token();
      if (first == '{') {
        found.doubtful();
        return;
      }
      Value value = startsWith(name, prefix) ? new Value() : null;
      scan.scalar(first, value);
      if (value != null) {
        values.add(value);
      }
      if (scan.token() != ',') {
        break;
      }
      scan.at++;
    }
    if (values.size() > KeySpec.ITEMS_MAX) {
      found.doubtful();
    } else {
      found.many(values.toArray(new Value[0]));
    }
  }

  private static boolean startsWith(byte[] name, byte[] prefix) {
    return name.length >= prefix.length && Arrays.equals(name, 0, prefix.length, prefix, 0, prefix.length);
  }

  /** Reads a string, of which nothing but its text is wanted. */
  private byte[] name() {
    int from = at + 1;
    return skipString() ? unescape(from, at - 1) : Arrays.copyOfRange(bytes, from, at - 1);
  }

  private static void behindArray(Members.Node node, Value[] values) {
    for (int value : node.valuesBelow) {
      values[value].behindArray = true;
    }
  }

  /** The next byte that is no white space; it is not consumed. */
  private byte token() {
    byte found = bytes[at];
    while (found == ' ' || found == '\n' || found == '\r' || found == '\t') {
      found = bytes[++at];
    }
    return found;
  }

  /** Returns the number of members. */
  private int object(Members names, Value[] values) {
    for (Members.Node node : names.all) {
      if (node.value >= 0) {
        values[node.value].absent();
      }
    }
    at++;
    int count = 0;
    while (token() == '"') {
      count++;
      Members.Node node = member(names);
      token(); // the colon
      at++;
      byte first = token();
      if (node == null) {
        skip(first);
      } else {
        value(first, node, values);
      }
      if (token() != ',') {
        break;
      }
      at++;
      token();
    }
    at++;
    return count;
  }

  /** Reads a member's name and finds what is read of it. */
  private Members.Node member(Members names) {
    int from = ++at;
    int hash = 0;
    for (byte next = bytes[at]; next != '"'; next = bytes[++at]) {
      if (next == '\\') {
        at = from - 1;
        skipString();
        byte[] name = unescape(from, at - 1);
        return names.get(name, 0, name.length, Members.hash(name, 0, name.length));
      }
      hash = 31 * hash + next;
    }
    return names.get(bytes, from, at++, hash);
  }

  private void value(byte first, Members.Node node, Value[] values) {
    Value value = node.value < 0 ? null : values[node.value];
    switch (first) {
      case '{' -> {
        if (value != null) {
          value.kind = Kind.OBJECT;
        }
        if (node.below == null && !node.counted) {
          skipNested();
          return;
        }
        int size = object(node.below == null ? Members.NONE : node.below, values);
        if (value != null) {
          value.size = size;
        }
      }
      case '[' -> {
        behindArray(node, values);
        if (value != null) {
          value.kind = Kind.ARRAY;
        }
        if (value == null || !node.counted && !node.listed) {
          skipNested();
        } else {
          array(value, node.listed);
        }
      }
      default -> scalar(first, value);
    }
  }

  private void array(Value value, boolean listed) {
    List<Value> items = new ArrayList<>();
    at++;
    while (token() != ']') {
      byte first = token();
      Value item = listed && value.size < KeySpec.ITEMS_MAX ? new Value() : null;
      switch (first) {
        case '{', '[' -> {
          skipNested();
          if (item != null) {
            item.kind = first == '{' ? Kind.OBJECT : Kind.ARRAY;
          }
        }
        default -> scalar(first, item);
      }
      if (item != null) {
        items.add(item);
      }
      value.size++;
      if (token() == ',') {
        at++;
      } else if (bytes[at] != ']') {
        throw new NumberFormatException("no JSON");
      }
    }
    at++;
    value.items = value.size > KeySpec.ITEMS_MAX ? null : items.toArray(new Value[0]);
  }

  /** Reads a string, number, boolean or null; into nothing where `value` is null. */
  private void scalar(byte first, Value value) {
    int from = at;
    boolean escaped = skip(first);
    if (value == null) {
      return;
    }
    switch (first) {
      case '"' -> {
        if (escaped) {
          value.text(UTF8String.fromBytes(unescape(from + 1, at - 1)));
        } else {
          value.text(UTF8String.fromBytes(bytes, from + 1, at - from - 2));
        }
      }
      case 't' -> value.kind = Kind.TRUE;
      case 'f' -> value.kind = Kind.FALSE;
      case 'n' -> value.kind = Kind.NULL;
      default -> number(value, from, at);
    }
  }

  private void number(Value value, int from, int to) {
    value.kind = Kind.NUMBER;
    boolean negative = bytes[from] == '-';
    int first = negative ? from + 1 : from;
    value.whole = true;
    long whole = 0;
    for (int digit = first; digit < to; digit++) {
      if (bytes[digit] < '0' || bytes[digit] > '9') {
        value.whole = false;
        break;
      }
      whole = whole * 10 + bytes[digit] - '0'; // may wrap around, and is not used then
    }
    if (value.whole && to - first <= DIGITS_EXACT_MAX) {
      value.fits = true;
      value.integer = negative ? -whole : whole;
      value.number = value.integer;
      return;
    }
    String text = new String(bytes, from, to - from, StandardCharsets.ISO_8859_1);
    value.number = Double.parseDouble(text);
    if (value.whole) {
      BigInteger exact = new BigInteger(text);
      value.fits = exact.bitLength() < Long.SIZE;
      value.integer = exact.longValue();
    }
  }

  /** Steps over a value; whether it was a string with an escape. */
  private boolean skip(byte first) {
    switch (first) {
      case '"':
        return skipString();
      case '{', '[':
        skipNested();
        return false;
      default:
        while (at < bytes.length && isScalar(bytes[at])) {
          at++;
        }
        return false;
    }
  }

  private static boolean isScalar(byte next) {
    return next != ',' && next != '}' && next != ']' && next > ' ';
  }

  private boolean skipString() {
    boolean escaped = false;
    for (byte next = bytes[++at]; next != '"'; next = bytes[++at]) {
      if (next == '\\') {
        escaped = true;
        at++;
      }
    }
    at++;
    return escaped;
  }

  private void skipNested() {
    int depth = 0;
    do {
      switch (bytes[at]) {
        case '"' -> {
          skipString();
          continue;
        }
        case '{', '[' -> depth++;
        case '}', ']' -> depth--;
        default -> {}
      }
      at++;
    } while (depth > 0);
  }

  /** The UTF-8 of a string's inside, with its escapes resolved. */
  private byte[] unescape(int from, int to) {
    ByteArrayOutputStream plain = new ByteArrayOutputStream(to - from);
    int next = from;
    while (next < to) {
      byte one = bytes[next++];
      if (one != '\\') {
        plain.write(one);
        continue;
      }
      byte escape = bytes[next++];
      switch (escape) {
        case 'b' -> plain.write('\b');
        case 'f' -> plain.write('\f');
        case 'n' -> plain.write('\n');
        case 'r' -> plain.write('\r');
        case 't' -> plain.write('\t');
        case 'u' -> {
          StringBuilder units = new StringBuilder(2).append(unit(next));
          next += 4;
          if (Character.isHighSurrogate(units.charAt(0))) {
            units.append(unit(next + 2));
            next += 6;
          }
          plain.writeBytes(units.toString().getBytes(StandardCharsets.UTF_8));
        }
        default -> plain.write(escape);
      }
    }
    return plain.toByteArray();
  }

  private char unit(int from) {
    return (char) Integer.parseInt(new String(bytes, from, 4, StandardCharsets.ISO_8859_1), 16);
  }
}
