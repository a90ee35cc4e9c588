package dev.headgate.connector.keys;

import static dev.headgate.connector.keys.Comparison.ERROR;
import static dev.headgate.connector.keys.Comparison.FALSE;
import static dev.headgate.connector.keys.Comparison.TRUE;

import dev.headgate.connector.keys.Comparison.Kind;
import dev.headgate.connector.keys.Comparison.Op;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The SQL function `headgate.exists`: whether one of many values passes all probes, `plan.Op.EXISTS`, as exactly as
 * `tests/filter/reference/rows.py` says it.
 */
public final class Exists implements ScalarFunction<Integer>, UnboundFunction {
  private static final long serialVersionUID = 1L;

  private record Probe(Op op, boolean negated, boolean lenient) {}

  private record Probes(Kind kind, List<Probe> all) {}

  private static final Map<UTF8String, Probes> KNOWN = new ConcurrentHashMap<>();

  private final DataType constants;

  /** As the catalogue has it. */
  public Exists() {
    this(DataTypes.createArrayType(DataTypes.StringType));
  }

  private Exists(DataType constants) {
    this.constants = constants;
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {Value.ITEMS_TYPE, DataTypes.StringType, constants};
  }

  @Override
  public DataType resultType() {
    return DataTypes.IntegerType;
  }

  @Override
  public boolean isResultNullable() {
    return false;
  }

  @Override
  public String name() {
    return "exists";
  }

  @Override
  public String canonicalName() {
    return "headgate.exists(" + constants.simpleString() + ")";
  }

  @Override
  public BoundFunction bind(StructType types) {
    return new Exists(types.fields()[2].dataType());
  }

  @Override
  public String description() {
    return "0 false, 1 true, 2 an error, 3 in doubt";
  }

  /**
   * Called by the code that Spark generates.
   *
   * @param items null where there is no list: an error
   * @param written the constants' kind, then for each probe its operator, with ! before it when negated and ? behind it
   *     when lenient, with spaces between: `string !eq? starts`
   */
  public static int invoke(ArrayData items, UTF8String written, ArrayData constants) {
    if (items == null) {
      return ERROR;
    }
    Probes probes = KNOWN.get(written);
    if (probes == null) {
      probes = parse(written.toString());
      KNOWN.put(written.clone(), probes);
    }
    int result = FALSE;
    for (int at = 0; at < items.numElements(); at++) {
      int said = all(probes, items, at, constants);
      if (said == TRUE) {
        return TRUE;
      }
      result = Math.max(result, said);
    }
    return result;
  }

  private static Probes parse(String written) {
    String[] words = written.split(" ");
    List<Probe> probes = new ArrayList<>();
    for (int i = 1; i < words.length; i++) {
      String name = words[i].replace("!", "").replace("?", "").toUpperCase(Locale.ROOT);
      probes.add(new Probe(Op.valueOf(name), words[i].startsWith("!"), words[i].endsWith("?")));
    }
    return new Probes(Kind.valueOf(words[0].toUpperCase(Locale.ROOT)), probes);
  }

  /** CEL's `&&` over the probes of one value; false beats doubt, and doubt an error. */
  private static int all(Probes probes, ArrayData items, int at, ArrayData constants) {
    InternalRow item = items.getStruct(at, Value.SCALAR_FIELDS);
    boolean isOfKind = probes.kind.isOf(item);
    int result = TRUE;
    int next = 0;
    for (Probe probe : probes.all) {
      int said;
      if (probe.op == Op.HAS || probes.kind == Kind.NULL) {
        said = isOfKind ? TRUE : FALSE;
      } else if (!isOfKind) {
        said = probe.lenient ? FALSE : ERROR;
        next++;
      } else if (probe.op == Op.IN) {
        said = Comparison.in(probes.kind, item, constants);
      } else {
        said = Comparison.compare(probe.op, probes.kind, item, constants, next++);
      }
      said = probe.negated ? Comparison.negated(said) : said;
      if (said == FALSE) {
        return FALSE;
      }
      result = Math.max(result, said);
    }
    return result;
  }
}
