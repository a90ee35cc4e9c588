package dev.headgate.connector;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column of the numbers `first + step * row`, INT or BIGINT. Takes no memory. */
final class SequenceVector extends ColumnVector {
  private final long first;
  private final int step;

  SequenceVector(DataType type, long first, int step) {
    super(type);
    this.first = first;
    this.step = step;
  }

  @Override
  public long getLong(int row) {
    return first + (long) step * row;
  }

  @Override
  public int getInt(int row) {
    return (int) getLong(row);
  }

  @Override
  public boolean hasNull() {
    return false;
  }

  @Override
  public int numNulls() {
    return 0;
  }

  @Override
  public boolean isNullAt(int row) {
    return false;
  }

  @Override
  public void close() {}

  @Override
  public boolean getBoolean(int row) {
    throw other();
  }

  @Override
  public byte getByte(int row) {
    throw other();
  }

  @Override
  public short getShort(int row) {
    throw other();
  }

  @Override
  public float getFloat(int row) {
    throw other();
  }

  @Override
  public double getDouble(int row) {
    throw other();
  }

  @Override
  public ColumnarArray getArray(int row) {
    throw other();
  }

  @Override
  public ColumnarMap getMap(int row) {
    throw other();
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    throw other();
  }

  @Override
  public UTF8String getUTF8String(int row) {
    throw other();
  }

  @Override
  public byte[] getBinary(int row) {
    throw other();
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    throw other();
  }

  private UnsupportedOperationException other() {
    return new UnsupportedOperationException("a column of " + type.simpleString());
  }
}
