package dev.headgate.connector;

import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Format `headgate`: an event log as a table, in batches, micro-batches and real-time mode. Options: {@link SourceOptions}. */
public final class HeadgateSource implements TableProvider, DataSourceRegister {
  @Override
  public String shortName() {
    return "headgate";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return EventSchema.TYPE;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new EventTable();
  }

  private static final class EventTable implements Table, SupportsRead {
    @Override
    public String name() {
      return "headgate";
    }

    @Override
    public Column[] columns() {
      return Arrays.stream(EventSchema.TYPE.fields())
          .map(field -> Column.create(field.name(), field.dataType(), field.nullable()))
          .toArray(Column[]::new);
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new EventScan.Builder(SourceOptions.parse(options));
    }
  }
}
