package dev.headgate.connector.ask;

import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The catalogue of our SQL functions: `spark.sql.catalog.headgate` names this class. */
public final class Functions implements FunctionCatalog {
  private final Ask ask = new Ask();
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
    return new Identifier[] {Identifier.of(namespace, ask.name())};
  }

  @Override
  public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
    if (identifier.namespace().length == 0 && identifier.name().equals(ask.name())) {
      return ask;
    }
    throw new NoSuchFunctionException(identifier);
  }
}
