package dev.headgate.connector.keys;

import static dev.headgate.connector.keys.Comparison.DOUBT;
import static dev.headgate.connector.keys.Comparison.ERROR;
import static dev.headgate.connector.keys.Comparison.FALSE;
import static dev.headgate.connector.keys.Comparison.TRUE;

import com.fasterxml.jackson.databind.JsonNode;
import dev.headgate.connector.keys.Comparison.Kind;
import dev.headgate.connector.keys.Comparison.Op;
import java.util.Locale;
import java.util.stream.StreamSupport;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A comparison that many of a broker's filters have: an event is compared once, and a row of the table asks for the answer
 * by a bit. It says of every value what `match/dataframe.py: judge` says.
 */
record SharedAtom(int operand, Op op, Kind kind, boolean negated, ArrayData constants) {

  /** As `match/key_specs.py` writes it: operand, operator, kind, whether it is negated, constants. */
  static SharedAtom of(JsonNode written) {
    Object[] constants =
        StreamSupport.stream(written.get(4).spliterator(), false).map(SharedAtom::constant).toArray();
    return new SharedAtom(
        written.get(0).asInt(),
        Op.valueOf(written.get(1).asText().toUpperCase(Locale.ROOT)),
        Kind.valueOf(written.get(2).asText().toUpperCase(Locale.ROOT)),
        written.get(3).asBoolean(),
        new GenericArrayData(constants));
  }

  private static Object constant(JsonNode written) {
    if (written.isTextual()) {
      return UTF8String.fromString(written.asText());
    }
    return written.isBoolean() ? (Object) written.asBoolean() : (Object) written.asDouble();
  }

  /** One of the four results of `Comparison`. */
  int judge(Value value) {
    int result = value.kind == Value.Kind.DOUBTFUL ? DOUBT : compared(value);
    return negated ? Comparison.negated(result) : result;
  }

  private int compared(Value value) {
    if (op == Op.HAS) {
      return value.kind == Value.Kind.UNREACHED ? ERROR : value.isThere() ? TRUE : FALSE;
    }
    boolean isEquality = op == Op.EQ || op == Op.IN;
    if (!kind.isOf(value)) {
      return isEquality && value.isThere() ? FALSE : ERROR;
    }
    if (kind == Kind.NULL) {
      return isEquality ? TRUE : ERROR;
    }
    return op == Op.IN ? Comparison.in(kind, value, constants) : Comparison.compare(op, kind, value, constants, 0);
  }
}
