package dev.headgate.connector.ask;

import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The SQL function `headgate.like`: `plan.Op.LIKE`, as `filter/rows.py` says it. Spark's own would make a regular
 * expression of each pattern, which some texts keep busy for hours.
 */
public final class Like implements ScalarFunction<Boolean>, UnboundFunction {
  private static final long serialVersionUID = 1L;

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {DataTypes.StringType, DataTypes.StringType};
  }

  @Override
  public DataType resultType() {
    return DataTypes.BooleanType;
  }

  @Override
  public boolean isResultNullable() {
    return false;
  }

  @Override
  public String name() {
    return "like";
  }

  @Override
  public String canonicalName() {
    return "headgate.like";
  }

  @Override
  public BoundFunction bind(StructType types) {
    return this;
  }

  @Override
  public String description() {
    return "whether a pattern of % and _ stands for all of a text";
  }

  /** Called by the code that Spark generates; false where one of both is null. */
  public static boolean invoke(UTF8String text, UTF8String pattern) {
    if (text == null || pattern == null) {
      return false;
    }
    return matches(text.toString().codePoints().toArray(), pattern.toString().codePoints().toArray());
  }

  /** Goes back to the last % alone, which is enough: an earlier one could only stand for more. */
  private static boolean matches(int[] text, int[] pattern) {
    int at = 0;
    int part = 0;
    int back = 0;
    int star = -1;
    while (at < text.length) {
      boolean escaped = part < pattern.length && pattern[part] == '\\';
      int wanted = escaped ? part + 1 : part;
      if (wanted < pattern.length && !escaped && pattern[wanted] == '%') {
        star = part++;
        back = at;
      } else if (wanted < pattern.length && (!escaped && pattern[wanted] == '_' || pattern[wanted] == text[at])) {
        part = wanted + 1;
        at++;
      } else if (star >= 0) {
        at = ++back;
        part = star + 1;
      } else {
        return false;
      }
    }
    while (part < pattern.length && pattern[part] == '%') {
      part++;
    }
    return part == pattern.length;
  }
}
