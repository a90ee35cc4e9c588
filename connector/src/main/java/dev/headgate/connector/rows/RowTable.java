package dev.headgate.connector.rows;

import java.lang.ref.WeakReference;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
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
import org.apache.spark.unsafe.types.UTF8String;

/** The rows of one generation as a table, which {@link RowStrategy} plans. */
public final class RowTable implements Table, SupportsRead, ScanBuilder, Scan {
  /** Weak: with the last plan that refers to it, a table is gone. */
  private static final Map<UTF8String, WeakReference<RowTable>> PLANNED = new ConcurrentHashMap<>();

  private final StructType schema;
  /** Held: Spark removes a broadcast that nobody on the driver refers to any more. */
  private final Broadcast<LongHashedRelation> base;

  /** Held: tasks find it by its number as long as somebody refers to it. */
  private final LiveRows live;

  final Broadcast<GenerationRows> rows;

  RowTable(
      UTF8String table,
      StructType schema,
      Broadcast<LongHashedRelation> base,
      LiveRows live,
      Broadcast<GenerationRows> rows) {
    this.schema = schema;
    this.base = base;
    this.live = live;
    this.rows = rows;
    PLANNED.values().removeIf(one -> one.get() == null);
    PLANNED.put(table, new WeakReference<>(this));
  }

  /** The generation of a table of this process. */
  static Generation planned(UTF8String table) {
    WeakReference<RowTable> found = PLANNED.get(table);
    RowTable planned = found == null ? null : found.get();
    if (planned == null) {
      throw new IllegalStateException("this process has no match table " + table);
    }
    return planned.rows.value().first();
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
