package dev.headgate.connector.keys;

import java.util.List;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The catalogue of our SQL functions: `spark.sql.catalog.headgate` names this class. */
public final class Functions implements FunctionCatalog {
  private static final List<UnboundFunction> ALL = List.of(new KeyExtraction(), new Exists(), new Search());
  private String name;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return ALL.stream().map(one -> Identifier.of(namespace, one.name())).toArray(Identifier[]::new);
  }

  @Override
  public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
    for (UnboundFunction one : ALL) {
      if (identifier.namespace().length == 0 && identifier.name().equals(one.name())) {
        return one;
      }
    }
    throw new NoSuchFunctionException(identifier);
  }
}
