package dev.headgate.connector.keys;

import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The SQL function `headgate.search`: whether a text holds another one (`plan.Op.CONTAINS`), or a pattern stands for all
 * of it (`plan.Op.LIKE`), as `tests/filter/reference/rows.py` says it. Spark's own functions are not used: some texts keep them busy for
 * seconds with one event, or with a pattern, of which Spark makes a regular expression, for hours.
 */
public final class Search implements ScalarFunction<Boolean>, UnboundFunction {
  private static final long serialVersionUID = 1L;

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {DataTypes.StringType, DataTypes.StringType, DataTypes.BooleanType};
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
    return "search";
  }

  @Override
  public String canonicalName() {
    return "headgate.search";
  }

  @Override
  public BoundFunction bind(StructType types) {
    return this;
  }

  @Override
  public String description() {
    return "whether a text holds another one, or a pattern of % and _ stands for all of it";
  }

  /** Called by the code that Spark generates; false where one of both texts is null. */
  public static boolean invoke(UTF8String text, UTF8String wanted, boolean isPattern) {
    if (text == null || wanted == null) {
      return false;
    }
    return isPattern ? TextSearch.like(text, wanted) : TextSearch.find(text, 0, text.numBytes(), wanted) >= 0;
  }
}
