package dev.headgate.connector.keys;

import dev.headgate.connector.rows.BrokerSpec;
import dev.headgate.connector.rows.TaskRows;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The SQL function `headgate.extract`: the keys of an event, and the values of the operands that its broker's plans compare.
 *
 * <p>Beside the keys stand their checks, see `KeyHashes`. Of the broker's shared atoms, a bit each, `unmet` has those
 * that do not hold: because they are false (`refuted`), because only cel-cpp knows (`unsure`), or as errors.
 */
public final class KeyExtraction implements ScalarFunction<InternalRow>, UnboundFunction {
  private static final long serialVersionUID = 1L;

  static final List<String> ATTRIBUTES =
      List.of("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema");

  private static final int JSON = 1;
  private static final byte[] NO_EXTENSIONS = {'{', '}'};
  private static final ArrayData NO_NUMBERS = UnsafeArrayData.fromPrimitiveArray(new long[0]);
  private static final InternalRow NOTHING = row(NO_NUMBERS, NO_NUMBERS, new Value[0], 0, 0, 0);

  @Override
  public DataType[] inputTypes() {
    DataType text = DataTypes.StringType;
    return new DataType[] {
      text, text, DataTypes.LongType, DataTypes.IntegerType,
      text, text, text, text, text, text, text, text,
      text, DataTypes.LongType, DataTypes.LongType, DataTypes.ByteType, DataTypes.BinaryType
    };
  }

  @Override
  public DataType resultType() {
    return new StructType()
        .add("keys", DataTypes.createArrayType(DataTypes.LongType, false), false)
        .add("checks", DataTypes.createArrayType(DataTypes.LongType, false), false)
        .add("operands", DataTypes.createArrayType(Value.TYPE, false), false)
        .add("unmet", DataTypes.LongType, false)
        .add("refuted", DataTypes.LongType, false)
        .add("unsure", DataTypes.LongType, false);
  }

  @Override
  public boolean isResultNullable() {
    return false;
  }

  @Override
  public String name() {
    return "extract";
  }

  @Override
  public String canonicalName() {
    return "headgate.extract";
  }

  @Override
  public BoundFunction bind(StructType types) {
    return this;
  }

  @Override
  public String description() {
    return "the keys of an event and the values of the operands that its broker's filters compare";
  }

  /**
   * Called by the code that Spark generates. Of a broker without filters there is no key.
   *
   * @param table see {@link TaskRows#of}; a string, because Spark writes a number into the code, which would be another one for
   *     each generation
   */
  public static InternalRow invoke(
      UTF8String table,
      UTF8String broker,
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
      long timeUs,
      long appendTimeUs,
      byte dataKind,
      byte[] data) {
    BrokerSpec of = TaskRows.of(table).broker(broker);
    if (of == null) {
      return NOTHING;
    }
    KeySpec spec = KeySpec.of(of.number(), of.written());
    Value[] values = new Value[spec.valueCount];
    for (int i = 0; i < values.length; i++) {
      values[i] = new Value();
    }
    int[] operands = spec.attributes;
    attribute(values, operands[0], specversion);
    attribute(values, operands[1], id);
    attribute(values, operands[2], source);
    attribute(values, operands[3], type);
    attribute(values, operands[4], subject);
    attribute(values, operands[5], time);
    attribute(values, operands[6], datacontenttype);
    attribute(values, operands[7], dataschema);
    if (spec.instant >= 0) {
      Form.instant(values[spec.instant], time, timeUs);
    }
    if (spec.published >= 0) {
      Form.published(values[spec.published], appendTimeUs);
    }
    if (spec.extensions.below != null) {
      // Without an object on the way a member of an extension is absent like any attribute, and no error.
      for (int value : spec.extensions.valuesBelow) {
        values[value].absent();
      }
      JsonScan.read(extensions == null ? NO_EXTENSIONS : extensions.getBytes(), spec.extensions, values);
    }
    for (KeySpec.Named named : spec.named) {
      JsonScan.named(extensions == null ? NO_EXTENSIONS : extensions.getBytes(), named.prefix(), values[named.value()]);
    }
    boolean isJson = dataKind == JSON && data != null;
    if (spec.data.below != null && isJson) {
      JsonScan.read(data, spec.data, values);
    }
    Value[] taken = new Value[spec.operands.length];
    for (int i = 0; i < taken.length; i++) {
      KeySpec.Operand operand = spec.operands[i];
      taken[i] = operand.form().of(values[operand.value()], isJson);
    }
    long unmet = 0;
    long refuted = 0;
    long unsure = 0;
    for (int i = 0; i < spec.shared.length; i++) {
      SharedAtom atom = spec.shared[i];
      int said = atom.judge(taken[atom.operand()]);
      if (said != Comparison.TRUE) {
        long bit = 1L << i;
        unmet |= bit;
        refuted |= said == Comparison.FALSE ? bit : 0;
        unsure |= said == Comparison.DOUBT ? bit : 0;
      }
    }
    KeyHashes made = KeyHashes.of(spec, taken, of.state(), seed, secret);
    return row(made.keys(), made.checks(), taken, unmet, refuted, unsure);
  }

  private static InternalRow row(
      ArrayData keys, ArrayData checks, Value[] operands, long unmet, long refuted, long unsure) {
    return new GenericInternalRow(
        new Object[] {keys, checks, new GenericArrayData(operands), unmet, refuted, unsure});
  }

  private static void attribute(Value[] values, int operand, UTF8String text) {
    if (operand < 0) {
      return;
    }
    if (text == null) {
      values[operand].absent();
    } else {
      values[operand].text(text);
    }
  }
}
