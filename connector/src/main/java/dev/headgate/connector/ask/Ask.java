package dev.headgate.connector.ask;

import dev.headgate.connector.ask.Value.Kind;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The SQL function `headgate.ask`: the answers of one event to the question of its broker.
 *
 * <p>Keys are chains of hashes as `match/keys.py` makes them for rows. Beside each key stands its check, 32 bits, and
 * above them one bit that says whether a number in it is too large for a double to tell from its neighbours.
 */
public final class Ask implements ScalarFunction<InternalRow>, UnboundFunction {
  private static final long serialVersionUID = 1L;

  static final List<String> ATTRIBUTES =
      List.of("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema");

  private static final double INTEGER_EXACT_MAX = 0x1p53;
  private static final long DOUBT = 1L << 32;
  private static final int JSON = 1;

  @Override
  public DataType[] inputTypes() {
    DataType text = DataTypes.StringType;
    return new DataType[] {
      DataTypes.LongType, text, DataTypes.LongType, DataTypes.LongType, DataTypes.IntegerType,
      text, text, text, text, text, text, text, text,
      text, DataTypes.ByteType, DataTypes.BinaryType
    };
  }

  @Override
  public DataType resultType() {
    return new StructType()
        .add("keys", DataTypes.createArrayType(DataTypes.LongType, false), false)
        .add("checks", DataTypes.createArrayType(DataTypes.LongType, false), false)
        .add("places", DataTypes.createArrayType(Value.TYPE, false), false);
  }

  @Override
  public boolean isResultNullable() {
    return false;
  }

  @Override
  public String name() {
    return "ask";
  }

  @Override
  public String canonicalName() {
    return "headgate.ask";
  }

  @Override
  public BoundFunction bind(StructType types) {
    return this;
  }

  @Override
  public String description() {
    return "the keys of an event and what stands at the places that its broker's filters look at";
  }

  /** Called by the code that Spark generates. */
  public static InternalRow invoke(
      long number,
      UTF8String written,
      long broker,
      long seed,
      int secret,
      UTF8String specversion,
      UTF8String id,
      UTF8String source,
      UTF8String type,
      UTF8String subject,
      UTF8String time,
      UTF8String datacontenttype,
      UTF8String dataschema,
      UTF8String extensions,
      byte dataKind,
      byte[] data) {
    Question question = Question.of(number, written);
    Value[] values = new Value[question.placeCount];
    for (int i = 0; i < values.length; i++) {
      values[i] = new Value();
    }
    int[] places = question.attributes;
    attribute(values, places[0], specversion);
    attribute(values, places[1], id);
    attribute(values, places[2], source);
    attribute(values, places[3], type);
    attribute(values, places[4], subject);
    attribute(values, places[5], time);
    attribute(values, places[6], datacontenttype);
    attribute(values, places[7], dataschema);
    if (question.extensions != null) {
      for (int place : question.extensionPlaces) {
        values[place].absent();
      }
      if (extensions != null) {
        JsonScan.read(extensions.getBytes(), question.extensions, values);
      }
    }
    if (question.data != null && dataKind == JSON && data != null) {
      JsonScan.read(data, question.data, values);
    }
    return keys(question, values, broker, seed, secret);
  }

  private static void attribute(Value[] values, int place, UTF8String text) {
    if (place < 0) {
      return;
    }
    if (text == null) {
      values[place].absent();
    } else {
      values[place].text(text);
    }
  }

  private static InternalRow keys(Question question, Value[] values, long broker, long seed, int secret) {
    int partCount = question.parts.length;
    boolean[] there = new boolean[partCount];
    boolean[] doubtful = new boolean[partCount];
    long[] hashes = new long[partCount];
    int[] checks = new int[partCount];
    for (int i = 0; i < partCount; i++) {
      Question.Part part = question.parts[i];
      Value value = values[part.place()];
      switch (part.kind()) {
        case STRING, PREFIX, SUFFIX -> {
          UTF8String text = value.kind == Kind.TEXT ? cut(value.text, part) : null;
          if (text != null) {
            there[i] = true;
            hashes[i] = XXH64.hashUnsafeBytes(text.getBaseObject(), text.getBaseOffset(), text.numBytes(), seed);
            checks[i] =
                Murmur3_x86_32.hashUnsafeBytes(text.getBaseObject(), text.getBaseOffset(), text.numBytes(), secret);
          }
        }
        case NUMBER -> {
          if (value.kind == Kind.NUMBER) {
            there[i] = true;
            doubtful[i] = Math.abs(value.number) >= INTEGER_EXACT_MAX;
            long bits = Double.doubleToLongBits(value.number == 0 ? 0.0 : value.number);
            hashes[i] = XXH64.hashLong(bits, seed);
            checks[i] = Murmur3_x86_32.hashLong(bits, secret);
          }
        }
        case BOOL -> {
          if (value.kind == Kind.TRUE || value.kind == Kind.FALSE) {
            there[i] = true;
            int bit = value.kind == Kind.TRUE ? 1 : 0;
            hashes[i] = XXH64.hashInt(bit, seed);
            checks[i] = Murmur3_x86_32.hashInt(bit, secret);
          }
        }
      }
    }
    return answer(question, values, broker, secret, there, doubtful, hashes, checks);
  }

  private static InternalRow answer(
      Question question,
      Value[] values,
      long broker,
      int secret,
      boolean[] there,
      boolean[] doubtful,
      long[] hashes,
      int[] partChecks) {
    long[] keys = new long[question.keys.length];
    long[] checks = new long[question.keys.length];
    int count = 0;
    keys:
    for (Question.Key key : question.keys) {
      long hash = XXH64.hashLong(key.number(), broker);
      int check = secret;
      long doubt = 0;
      for (int part : key.parts()) {
        if (!there[part]) {
          continue keys;
        }
        hash = XXH64.hashLong(hashes[part], hash);
        check = Murmur3_x86_32.hashInt(partChecks[part], check);
        doubt = doubtful[part] ? DOUBT : doubt;
      }
      keys[count] = hash;
      checks[count++] = Integer.toUnsignedLong(check) | doubt;
    }
    return new GenericInternalRow(new Object[] {some(keys, count), some(checks, count), new GenericArrayData(values)});
  }

  private static ArrayData some(long[] numbers, int count) {
    return UnsafeArrayData.fromPrimitiveArray(count == numbers.length ? numbers : java.util.Arrays.copyOf(numbers, count));
  }

  /** The text that a part compares; null where it is too short. */
  private static UTF8String cut(UTF8String text, Question.Part part) {
    int length = part.length();
    if (part.kind() == Question.PartKind.STRING) {
      return text;
    }
    if (text.numBytes() < length) {
      return null;
    }
    int characters = text.numChars();
    if (characters < length) {
      return null;
    }
    return part.kind() == Question.PartKind.PREFIX
        ? text.substring(0, length)
        : text.substring(characters - length, characters);
  }
}
