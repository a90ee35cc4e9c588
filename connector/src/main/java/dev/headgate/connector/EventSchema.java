package dev.headgate.connector;

import java.util.Set;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** The columns of an event: those of the log (docs/spec/log-format.md, "Schemas"), and where it stands in the log. */
final class EventSchema {
  static final String PARTITION = "partition";
  static final String OFFSET = "offset";
  static final String APPEND_TIME = "append_time_us";
  /** Columns that come from a record's place, not from the chunk's body. */
  static final Set<String> OF_PLACE = Set.of(PARTITION, OFFSET, APPEND_TIME);

  static final StructType TYPE =
      new StructType()
          .add("broker", DataTypes.StringType, false)
          .add("specversion", DataTypes.StringType, false)
          .add("id", DataTypes.StringType, false)
          .add("source", DataTypes.StringType, false)
          .add("type", DataTypes.StringType, false)
          .add("subject", DataTypes.StringType)
          .add("time", DataTypes.StringType)
          .add("time_us", DataTypes.LongType)
          .add("datacontenttype", DataTypes.StringType)
          .add("dataschema", DataTypes.StringType)
          .add("extensions", DataTypes.StringType)
          .add("data_kind", DataTypes.ByteType, false)
          .add("data", DataTypes.BinaryType)
          .add(PARTITION, DataTypes.IntegerType, false)
          .add(OFFSET, DataTypes.LongType, false)
          .add(APPEND_TIME, DataTypes.LongType, false);

  private EventSchema() {}
}
