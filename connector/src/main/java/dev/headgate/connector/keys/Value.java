package dev.headgate.connector.keys;

import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.BinaryView;
import org.apache.spark.unsafe.types.CalendarInterval;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/**
 * The value of one operand of an event, as the struct that `match/dataframe.py` reads; NULL is "no value of this type".
 */
final class Value extends InternalRow {
  private static final long serialVersionUID = 1L;

  static final int TEXT = 0;
  static final int NUMBER = 1;
  static final int FLAG = 2;
  static final int IS_NULL = 3;
  static final int MISMATCH = 4;
  static final int HAS = 5;
  static final int DOUBT = 6;
  static final int ITEMS = 7;

  private static final StructType SCALAR =
      new StructType()
          .add("text", DataTypes.StringType)
          .add("number", DataTypes.DoubleType)
          .add("flag", DataTypes.BooleanType)
          .add("is_null", DataTypes.BooleanType);

  static final int SCALAR_FIELDS = SCALAR.size();
  static final ArrayType ITEMS_TYPE = DataTypes.createArrayType(SCALAR, false);

  static final StructType TYPE =
      SCALAR
          .add("mismatch", DataTypes.BooleanType)
          .add("has", DataTypes.BooleanType)
          .add("doubt", DataTypes.BooleanType, false)
          .add("items", ITEMS_TYPE);

  enum Kind {
    /** Not even its parent is there. */
    UNREACHED,
    ABSENT,
    /** Only cel-cpp knows. */
    DOUBTFUL,
    TEXT,
    NUMBER,
    TRUE,
    FALSE,
    NULL,
    OBJECT,
    ARRAY,
    /** Any number of values. */
    MANY,
    /** A number that may lie a little above `number`; NaN where it is no number. */
    INSTANT,
    INSTANT_AND_MORE
  }

  Kind kind = Kind.UNREACHED;
  UTF8String text;
  double number;

  /** Of a number: whether it is written without fraction and exponent. */
  boolean whole;

  /** Of a number that `whole` says is one: whether it is an int64, and which. */
  boolean fits;

  long integer;

  /** Members of an object or items of an array, where a key spec reads it. */
  int size;

  /** The items of an array, where a key spec reads them and they are not too many; those of MANY. */
  Value[] items;

  /** Whether an array stands where the path leads through. */
  boolean behindArray;

  void absent() {
    kind = Kind.ABSENT;
  }

  void text(UTF8String value) {
    kind = Kind.TEXT;
    text = value;
  }

  void number(double value) {
    kind = Kind.NUMBER;
    number = value;
  }

  void doubtful() {
    kind = Kind.DOUBTFUL;
  }

  void many(Value[] values) {
    kind = Kind.MANY;
    items = values;
  }

  boolean isThere() {
    return kind.compareTo(Kind.DOUBTFUL) > 0;
  }

  private boolean isInstant() {
    return kind == Kind.INSTANT || kind == Kind.INSTANT_AND_MORE;
  }

  @Override
  public int numFields() {
    return TYPE.size();
  }

  @Override
  public boolean isNullAt(int field) {
    return switch (field) {
      case TEXT -> kind != Kind.TEXT;
      case NUMBER -> kind != Kind.NUMBER && (!isInstant() || Double.isNaN(number));
      case FLAG -> kind != Kind.TRUE && kind != Kind.FALSE && !isInstant();
      case HAS -> kind == Kind.UNREACHED;
      case DOUBT -> false;
      case ITEMS -> kind != Kind.MANY;
      default -> !isThere();
    };
  }

  @Override
  public boolean getBoolean(int field) {
    return switch (field) {
      case FLAG -> kind == Kind.TRUE || kind == Kind.INSTANT_AND_MORE;
      case IS_NULL -> kind == Kind.NULL;
      case HAS -> isThere();
      case DOUBT -> kind == Kind.DOUBTFUL;
      default -> false;
    };
  }

  @Override
  public ArrayData getArray(int field) {
    return new GenericArrayData(items);
  }

  @Override
  public double getDouble(int field) {
    return number;
  }

  @Override
  public UTF8String getUTF8String(int field) {
    return text;
  }

  @Override
  public Object get(int field, DataType type) {
    if (isNullAt(field)) {
      return null;
    }
    return switch (field) {
      case TEXT -> text;
      case NUMBER -> number;
      case ITEMS -> getArray(field);
      default -> getBoolean(field);
    };
  }

  /** Text of its own: the event's bytes are not the copy's. */
  @Override
  public Value copy() {
    Value copy = new Value();
    copy.kind = kind;
    copy.number = number;
    copy.text = text == null ? null : text.copy();
    copy.items = items == null ? null : Arrays.stream(items).map(Value::copy).toArray(Value[]::new);
    return copy;
  }

  @Override
  public String toString() {
    return kind + "(" + (kind == Kind.TEXT ? text : number) + ")";
  }

  @Override
  public void setNullAt(int field) {
    throw new UnsupportedOperationException("a value is read only");
  }

  @Override
  public void update(int field, Object value) {
    throw new UnsupportedOperationException("a value is read only");
  }

  private static UnsupportedOperationException noSuchField() {
    return new UnsupportedOperationException("a value has no such field");
  }

  @Override
  public byte getByte(int field) {
    throw noSuchField();
  }

  @Override
  public short getShort(int field) {
    throw noSuchField();
  }

  @Override
  public int getInt(int field) {
    throw noSuchField();
  }

  @Override
  public long getLong(int field) {
    throw noSuchField();
  }

  @Override
  public float getFloat(int field) {
    throw noSuchField();
  }

  @Override
  public Decimal getDecimal(int field, int precision, int scale) {
    throw noSuchField();
  }

  @Override
  public byte[] getBinary(int field) {
    throw noSuchField();
  }

  @Override
  public BinaryView getBinaryView(int field) {
    throw noSuchField();
  }

  @Override
  public CalendarInterval getInterval(int field) {
    throw noSuchField();
  }

  @Override
  public VariantVal getVariant(int field) {
    throw noSuchField();
  }

  @Override
  public InternalRow getStruct(int field, int size) {
    throw noSuchField();
  }

  @Override
  public MapData getMap(int field) {
    throw noSuchField();
  }
}
