package dev.headgate.connector.ask;

import dev.headgate.connector.ask.Value.Kind;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
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

  /** Fills in the values below `names` where the text is an object; leaves them as they are where it is none. */
  static void read(byte[] bytes, Names names, Value[] values) {
    JsonScan scan = new JsonScan(bytes);
    try {
      if (scan.token() == '{') {
        scan.object(names, values);
      }
    } catch (IndexOutOfBoundsException | NumberFormatException e) {
      return; // no JSON
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

  private void object(Names names, Value[] values) {
    for (Names.Node node : names.all) {
      if (node.place >= 0) {
        values[node.place].absent();
      }
    }
    at++;
    while (token() == '"') {
      Names.Node node = member(names);
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
    }
    at++;
  }

  /** Reads a member's name and finds what is asked of it. */
  private Names.Node member(Names names) {
    int from = ++at;
    int hash = 0;
    for (byte next = bytes[at]; next != '"'; next = bytes[++at]) {
      if (next == '\\') {
        at = from - 1;
        skipString();
        byte[] name = unescape(from, at - 1);
        return names.get(name, 0, name.length, Names.hash(name, 0, name.length));
      }
      hash = 31 * hash + next;
    }
    return names.get(bytes, from, at++, hash);
  }

  private void value(byte first, Names.Node node, Value[] values) {
    if (first == '{' && node.below != null) {
      if (node.place >= 0) {
        values[node.place].kind = Kind.OTHER;
      }
      object(node.below, values);
      return;
    }
    int from = at;
    boolean escaped = skip(first);
    if (node.place < 0) {
      return;
    }
    Value value = values[node.place];
    switch (first) {
      case '"' -> {
        if (escaped) {
          value.text(UTF8String.fromBytes(unescape(from + 1, at - 1)));
        } else {
          value.text(UTF8String.fromBytes(bytes, from + 1, at - from - 2));
        }
      }
      case '{', '[' -> value.kind = Kind.OTHER;
      case 't' -> value.kind = Kind.TRUE;
      case 'f' -> value.kind = Kind.FALSE;
      case 'n' -> value.kind = Kind.NULL;
      default -> value.number(number(from, at));
    }
  }

  private double number(int from, int to) {
    boolean negative = bytes[from] == '-';
    int first = negative ? from + 1 : from;
    if (to - first > DIGITS_EXACT_MAX) {
      return Value.parse(bytes, from, to);
    }
    long whole = 0;
    for (int digit = first; digit < to; digit++) {
      if (bytes[digit] < '0' || bytes[digit] > '9') {
        return Value.parse(bytes, from, to);
      }
      whole = whole * 10 + bytes[digit] - '0';
    }
    return negative ? -whole : whole;
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
