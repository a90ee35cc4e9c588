package dev.headgate.connector.keys;

import dev.headgate.connector.keys.Value.Kind;
import java.util.Arrays;
import java.util.Locale;
import java.util.regex.Pattern;
import org.apache.spark.unsafe.types.UTF8String;

/** What is taken of the value at a path: `plan.Form`, and as exactly as `tests/filter/reference/forms.py` says it. */
enum Form {
  VALUE,
  LOWER,
  UPPER,
  SIZE,
  TYPE,
  TIME,
  INT,
  DOUBLE,
  STRING,
  INTEGER,
  PRESENT,
  ELEMENTS,
  ELEMENTS_LOWER,
  VALUES,
  VALUES_LOWER,
  NAMED;

  private static final double INTEGER_EXACT_MAX = 0x1p53;
  private static final Pattern INTEGER_TEXT = Pattern.compile("-?[0-9]{1,15}");
  private static final Pattern DECIMAL_TEXT = Pattern.compile("-?[0-9]{1,15}(\\.[0-9]{1,15})?");
  private static final int DECIMAL_CHARS_MAX = 32;
  /** Of a time in UTC with six digits of a second; a longer one may lie between two microseconds. */
  private static final int MICROSECOND_CHARS = 27;

  /** In a millisecond. */
  private static final int MICROSECONDS = 1_000;

  private static final long YEAR_1_US = -62_135_596_800_000_000L;
  private static final long YEAR_10000_US = 253_402_300_800_000_000L;

  static Form of(String name) {
    return valueOf(name.toUpperCase(Locale.ROOT));
  }

  boolean listed() {
    return compareTo(ELEMENTS) >= 0;
  }

  /** The form of `base`; `isJson` says whether there is JSON data at all. */
  Value of(Value base, boolean isJson) {
    Value made = new Value();
    made.absent();
    switch (this) {
      case VALUE, TIME, NAMED -> {
        return base;
      }
      case LOWER, UPPER -> recase(base, made);
      case SIZE -> size(base, made);
      case TYPE -> type(base, made);
      case INT -> toInt(base, made);
      case DOUBLE -> toDouble(base, made);
      case STRING -> toText(base, made);
      case INTEGER -> integer(base, made);
      case PRESENT -> {
        if (base.kind != Kind.UNREACHED) {
          made.kind = base.isThere() ? Kind.TRUE : Kind.FALSE;
        }
      }
      case ELEMENTS, ELEMENTS_LOWER -> elements(base, made);
      case VALUES, VALUES_LOWER -> values(base, made, isJson);
    }
    return made;
  }

  /** `ce.time` from the log's columns; without an instant `micros` is out of range. */
  static void instant(Value value, UTF8String text, long micros) {
    if (text == null) {
      value.absent();
      return;
    }
    value.kind = text.numChars() > MICROSECOND_CHARS ? Kind.INSTANT_AND_MORE : Kind.INSTANT;
    value.number = micros < YEAR_1_US || micros >= YEAR_10000_US ? Double.NaN : micros;
  }

  /** `publish_time`: when the event was stored, in milliseconds as `filter/cel/evaluate.py` has it. */
  static void published(Value value, long micros) {
    value.kind = Kind.INSTANT;
    value.number = micros - Math.floorMod(micros, MICROSECONDS);
  }

  private void recase(Value base, Value made) {
    if (base.kind != Kind.TEXT) {
      return;
    }
    byte[] bytes = base.text.getBytes().clone();
    byte first = (byte) (this == UPPER ? 'a' : 'A');
    for (int at = 0; at < bytes.length; at++) {
      if (bytes[at] >= first && bytes[at] < first + 26) {
        bytes[at] ^= 0x20;
      }
    }
    made.text(UTF8String.fromBytes(bytes));
  }

  private static void size(Value base, Value made) {
    switch (base.kind) {
      case TEXT -> made.number(base.text.numChars());
      case OBJECT, ARRAY -> made.number(base.size);
      default -> {}
    }
  }

  private static void type(Value base, Value made) {
    String name =
        switch (base.kind) {
          case TEXT -> "string";
          case TRUE, FALSE -> "bool";
          case NULL -> "null_type";
          case OBJECT -> "map";
          case ARRAY -> "list";
          case NUMBER -> base.whole ? base.fits ? "int" : "" : exact(base) ? "double" : "";
          default -> null;
        };
    if (name != null && name.isEmpty()) {
      made.doubtful();
    } else if (name != null) {
      made.text(UTF8String.fromString(name));
    }
  }

  private static boolean exact(Value number) {
    return Math.abs(number.number) < INTEGER_EXACT_MAX;
  }

  private static void toInt(Value base, Value made) {
    switch (base.kind) {
      case TEXT -> parsed(base.text, INTEGER_TEXT, made);
      case TRUE, FALSE -> made.doubtful();
      case NUMBER -> {
        if (exact(base)) {
          made.number((long) base.number);
        } else {
          made.doubtful();
        }
      }
      default -> {}
    }
  }

  private static void toDouble(Value base, Value made) {
    switch (base.kind) {
      case TEXT -> parsed(base.text, DECIMAL_TEXT, made);
      case NUMBER -> {
        if (exact(base)) {
          made.number(base.number);
        } else {
          made.doubtful();
        }
      }
      default -> {}
    }
  }

  private static void parsed(UTF8String text, Pattern pattern, Value made) {
    String written = text.numBytes() > DECIMAL_CHARS_MAX ? "" : text.toString();
    if (pattern.matcher(written).matches()) {
      made.number(Double.parseDouble(written));
    } else {
      made.doubtful();
    }
  }

  private static void toText(Value base, Value made) {
    switch (base.kind) {
      case TEXT -> made.text(base.text);
      case TRUE -> made.text(UTF8String.fromString("true"));
      case FALSE -> made.text(UTF8String.fromString("false"));
      case NUMBER -> {
        if (base.whole && base.fits) {
          made.text(UTF8String.fromString(Long.toString(base.integer)));
        } else {
          made.doubtful();
        }
      }
      default -> {}
    }
  }

  private static void integer(Value base, Value made) {
    if (base.kind != Kind.NUMBER) {
      return;
    }
    if (!exact(base)) {
      made.doubtful();
    } else if (base.whole) {
      made.number(base.number);
    }
  }

  private void elements(Value base, Value made) {
    if (base.kind == Kind.OBJECT || base.kind == Kind.ARRAY && base.items == null) {
      made.doubtful();
    } else if (base.kind == Kind.ARRAY) {
      made.many(this == ELEMENTS_LOWER ? lowered(base.items) : base.items);
    }
  }

  private void values(Value base, Value made, boolean isJson) {
    if (!isJson) {
      return;
    }
    if (base.behindArray) {
      made.doubtful();
      return;
    }
    switch (base.kind) {
      case UNREACHED, ABSENT, OBJECT -> made.many(new Value[0]);
      case ARRAY -> {
        if (base.items == null || Arrays.stream(base.items).anyMatch(item -> item.kind == Kind.ARRAY)) {
          made.doubtful();
        } else {
          made.many(
              Arrays.stream(base.items).filter(item -> item.kind != Kind.OBJECT).toArray(Value[]::new));
        }
      }
      default -> made.many(new Value[] {base});
    }
    if (this == VALUES_LOWER && made.kind == Kind.MANY) {
      made.items = lowered(made.items);
    }
  }

  private static Value[] lowered(Value[] items) {
    return Arrays.stream(items).map(item -> LOWER.of(item, true)).toArray(Value[]::new);
  }
}
