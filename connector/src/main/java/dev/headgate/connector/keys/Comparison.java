package dev.headgate.connector.keys;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/** Comparisons of one value with constants, in CEL's values and one more: in doubt, where only cel-cpp knows. */
final class Comparison {
  static final int FALSE = 0;
  static final int TRUE = 1;
  static final int ERROR = 2;
  static final int DOUBT = 3;

  private static final double INTEGER_EXACT_MAX = 0x1p53;

  private Comparison() {}

  /** Of a constant: `plan.ConstantKind`. */
  enum Kind {
    STRING(Value.TEXT),
    NUMBER(Value.NUMBER),
    BOOL(Value.FLAG),
    NULL(Value.IS_NULL),
    NONE(-1);

    private final int field;

    Kind(int field) {
      this.field = field;
    }

    boolean isOf(InternalRow value) {
      return this != NONE && !value.isNullAt(field) && (this != NULL || value.getBoolean(field));
    }
  }

  /** `plan.Op`. */
  enum Op {
    EQ,
    LT,
    LE,
    GT,
    GE,
    STARTS,
    ENDS,
    CONTAINS,
    LIKE,
    HAS,
    IN
  }

  static int negated(int result) {
    return result <= TRUE ? TRUE - result : result;
  }

  /** Whether a value of this kind is one of the constants. */
  static int in(Kind kind, InternalRow value, ArrayData constants) {
    int result = FALSE;
    for (int i = 0; i < constants.numElements(); i++) {
      int said = compare(Op.EQ, kind, value, constants, i);
      if (said == TRUE) {
        return TRUE;
      }
      result = Math.max(result, said);
    }
    return result;
  }

  /** A value of this kind with one of the constants. */
  static int compare(Op op, Kind kind, InternalRow value, ArrayData constants, int constant) {
    switch (kind) {
      case STRING:
        UTF8String text = value.getUTF8String(Value.TEXT);
        UTF8String other = constants.getUTF8String(constant);
        return switch (op) {
          case EQ -> text.equals(other) ? TRUE : FALSE;
          case STARTS -> text.startsWith(other) ? TRUE : FALSE;
          case ENDS -> text.endsWith(other) ? TRUE : FALSE;
          case CONTAINS -> Search.invoke(text, other, false) ? TRUE : FALSE;
          case LIKE -> Search.invoke(text, other, true) ? TRUE : FALSE;
          default -> ordered(op, text.compareTo(other));
        };
      case NUMBER:
        double number = value.getDouble(Value.NUMBER);
        double limit = constants.getDouble(constant);
        if (number == limit && Math.abs(number) >= INTEGER_EXACT_MAX) {
          return DOUBT;
        }
        return ordered(op, number == limit ? 0 : number < limit ? -1 : 1);
      default:
        return ordered(op, Boolean.compare(value.getBoolean(Value.FLAG), constants.getBoolean(constant)));
    }
  }

  private static int ordered(Op op, int order) {
    return switch (op) {
      case EQ -> order == 0 ? TRUE : FALSE;
      case LT -> order < 0 ? TRUE : FALSE;
      case LE -> order <= 0 ? TRUE : FALSE;
      case GT -> order > 0 ? TRUE : FALSE;
      case GE -> order >= 0 ? TRUE : FALSE;
      default -> ERROR;
    };
  }
}
