package dev.headgate.connector.rows;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.SparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.joins.HashedRelationBroadcastMode;
import org.apache.spark.sql.execution.joins.LongHashedRelation;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * Rows of the match table that have been broadcast, and stay so from one generation to the next.
 *
 * <p>Spark itself gathers, hashes and broadcasts a table anew for every query that joins it.
 */
public final class KeptRows {
  private final SparkSession spark;
  private final StructType schema;
  private final Broadcast<LongHashedRelation> base;

  private KeptRows(SparkSession spark, StructType schema, Broadcast<LongHashedRelation> base) {
    this.spark = spark;
    this.schema = schema;
    this.base = base;
  }

  /** Broadcasts rows, whose first column is the key, BIGINT; there must be some. */
  public static KeptRows of(Dataset<Row> rows) {
    SparkSession spark = (SparkSession) rows.sparkSession();
    install(spark);
    Tuple2<Object, Iterator<InternalRow>> found = plan(rows).executeCollectIterator();
    LongHashedRelation hashed = (LongHashedRelation) mode().transform(found._2(), Option.apply(found._1()));
    return new KeptRows(spark, rows.schema(), broadcast(spark.sparkContext(), hashed));
  }

  /**
   * All rows, but of keys that `changed` has only those in there: a table whose join needs no exchange.
   *
   * @param changed In the columns of the base; there must be some.
   */
  public Dataset<Row> overlaid(Dataset<Row> changed) {
    if (!changed.schema().equals(schema)) {
      throw new IllegalArgumentException("changed rows have other columns: " + changed.schema());
    }
    // A few rows are on the driver already, and to collect them all at once takes no job.
    LongHashedRelation hashed = (LongHashedRelation) mode().transform(plan(changed).executeCollect());
    Broadcast<Overlay> all = broadcast(spark.sparkContext(), new Overlay(base, hashed));
    RowTable table = new RowTable(schema, base, all);
    return org.apache.spark.sql.classic.Dataset.ofRows(
        spark, DataSourceV2Relation.create(table, Option.empty(), Option.empty()));
  }

  static HashedRelationBroadcastMode mode() {
    return new HashedRelationBroadcastMode(
        CollectionConverters.asScala(List.<Expression>of(new BoundReference(0, DataTypes.LongType, false))).toSeq(),
        false);
  }

  private static SparkPlan plan(Dataset<Row> rows) {
    return ((org.apache.spark.sql.classic.Dataset<Row>) rows).queryExecution().executedPlan();
  }

  private static <T> Broadcast<T> broadcast(SparkContext context, T value) {
    return context.broadcastInternal(value, true, ClassTag$.MODULE$.apply(value.getClass()));
  }

  /** Teaches a session to plan such tables; once is enough. */
  private static synchronized void install(SparkSession spark) {
    List<SparkStrategy> known = new ArrayList<>(CollectionConverters.asJava(spark.experimental().extraStrategies()));
    if (known.stream().noneMatch(RowStrategy.class::isInstance)) {
      known.add(new RowStrategy());
      spark.experimental().extraStrategies_$eq(CollectionConverters.asScala(known).toSeq());
    }
  }
}
