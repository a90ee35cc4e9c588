package dev.headgate.connector.ask;

import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.BinaryView;
import org.apache.spark.unsafe.types.CalendarInterval;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/** What stands at one place of an event, as the struct that `match/asked.py` reads; NULL is "no value of this type". */
final class Value extends InternalRow {
  private static final long serialVersionUID = 1L;

  static final int TEXT = 0;
  static final int NUMBER = 1;
  static final int FLAG = 2;
  static final int IS_NULL = 3;
  static final int MISMATCH = 4;
  static final int HAS = 5;

  static final StructType TYPE =
      new StructType()
          .add("text", DataTypes.StringType)
          .add("number", DataTypes.DoubleType)
          .add("flag", DataTypes.BooleanType)
          .add("is_null", DataTypes.BooleanType)
          .add("mismatch", DataTypes.BooleanType)
          .add("has", DataTypes.BooleanType);

  enum Kind {
    /** Not even its parent is there. */
    UNREACHED,
    ABSENT,
    TEXT,
    NUMBER,
    TRUE,
    FALSE,
    NULL,
    /** An object or an array. */
    OTHER
  }

  Kind kind = Kind.UNREACHED;
  UTF8String text;
  double number;

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

  boolean isThere() {
    return kind.compareTo(Kind.ABSENT) > 0;
  }

  @Override
  public int numFields() {
    return TYPE.size();
  }

  @Override
  public boolean isNullAt(int field) {
    return switch (field) {
      case TEXT -> kind != Kind.TEXT;
      case NUMBER -> kind != Kind.NUMBER;
      case FLAG -> kind != Kind.TRUE && kind != Kind.FALSE;
      case HAS -> kind == Kind.UNREACHED;
      default -> !isThere();
    };
  }

  @Override
  public boolean getBoolean(int field) {
    return switch (field) {
      case FLAG -> kind == Kind.TRUE;
      case IS_NULL -> kind == Kind.NULL;
      case HAS -> isThere();
      default -> false;
    };
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
      default -> getBoolean(field);
    };
  }

  /** Text of its own: the event's bytes are not the copy's. */
  @Override
  public InternalRow copy() {
    Value copy = new Value();
    copy.kind = kind;
    copy.number = number;
    copy.text = text == null ? null : text.copy();
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
  public ArrayData getArray(int field) {
    throw noSuchField();
  }

  @Override
  public MapData getMap(int field) {
    throw noSuchField();
  }

  /** The text of a number, where it is not a short integer. */
  static double parse(byte[] bytes, int from, int to) {
    return Double.parseDouble(new String(bytes, from, to - from, StandardCharsets.ISO_8859_1));
  }
}
