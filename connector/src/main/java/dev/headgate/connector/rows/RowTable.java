package dev.headgate.connector.rows;

import java.util.Arrays;
import java.util.Set;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.joins.LongHashedRelation;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The rows of one generation as a table, which {@link RowStrategy} plans. */
public final class RowTable implements Table, SupportsRead, ScanBuilder, Scan {
  private final StructType schema;
  /** Held: Spark removes a broadcast that nobody on the driver refers to any more. */
  private final Broadcast<LongHashedRelation> base;

  final Broadcast<Overlay> rows;

  RowTable(StructType schema, Broadcast<LongHashedRelation> base, Broadcast<Overlay> rows) {
    this.schema = schema;
    this.base = base;
    this.rows = rows;
  }

  @Override
  public String toString() {
    return name();
  }

  @Override
  public String name() {
    return "headgate rows over broadcast " + base.id();
  }

  @Override
  public Column[] columns() {
    return Arrays.stream(schema.fields())
        .map(field -> Column.create(field.name(), field.dataType(), field.nullable()))
        .toArray(Column[]::new);
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of(TableCapability.BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return this;
  }

  @Override
  public Scan build() {
    return this;
  }

  @Override
  public StructType readSchema() {
    return schema;
  }
}
