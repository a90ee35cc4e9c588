package dev.headgate.connector.rows;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
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
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * Rows of the match table that have been broadcast, and stay so from one generation to the next. One thread uses it.
 *
 * <p>Spark itself gathers, hashes and broadcasts a table anew for every query that joins it.
 */
public final class KeptRows {
  private final SparkSession spark;
  private final StructType schema;
  private Broadcast<LongHashedRelation> base;
  private final LiveRows live = new LiveRows();
  private Map<UTF8String, BrokerSpec> brokers = Map.of();

  private KeptRows(SparkSession spark, StructType schema, Broadcast<LongHashedRelation> base) {
    this.spark = spark;
    this.schema = schema;
    this.base = base;
  }

  /** Broadcasts rows, whose first column is the key, BIGINT; there must be some. */
  public static KeptRows of(Dataset<Row> rows) {
    SparkSession spark = (SparkSession) rows.sparkSession();
    install(spark);
    return new KeptRows(spark, rows.schema(), hashed(spark, rows));
  }

  /** From the next generation on these are the base, in the same columns. */
  public void renew(Dataset<Row> rows) {
    check(rows);
    base = hashed(spark, rows);
  }

  private static Broadcast<LongHashedRelation> hashed(SparkSession spark, Dataset<Row> rows) {
    Tuple2<Object, Iterator<InternalRow>> found = plan(rows).executeCollectIterator();
    LongHashedRelation hashed = (LongHashedRelation) mode().transform(found._2(), Option.apply(found._1()));
    return broadcast(spark.sparkContext(), hashed);
  }

  private void check(Dataset<Row> rows) {
    if (!rows.schema().equals(schema)) {
      throw new IllegalArgumentException("these rows have other columns: " + rows.schema());
    }
  }

  /**
   * A generation as a table whose join needs no exchange.
   *
   * @param name of the table, by which the tasks of a plan find it
   * @param changed rows that count instead of the base's of the same keys, in the columns of the base; there must be some
   * @param brokers what has changed since the generation before, see {@link BrokerSpec#after}
   */
  public Dataset<Row> table(String name, long generation, Dataset<Row> changed, byte[] brokers) {
    Generation first = next(generation, changed, brokers);
    UTF8String table = UTF8String.fromString(name);
    Broadcast<GenerationRows> rows = broadcast(spark.sparkContext(), new GenerationRows(table, live.number, first));
    RowTable planned = new RowTable(table, schema, base, live, rows);
    return org.apache.spark.sql.classic.Dataset.ofRows(
        spark, DataSourceV2Relation.create(planned, Option.empty(), Option.empty()));
  }

  /** Has the tasks of running queries over this base go on to a generation, each between two events. */
  public void offer(long generation, Dataset<Row> changed, byte[] brokers) {
    live.offer(next(generation, changed, brokers));
  }

  private Generation next(long number, Dataset<Row> changed, byte[] written) {
    check(changed);
    // A few rows are on the driver already, and to collect them all at once takes no job.
    LongHashedRelation hashed = (LongHashedRelation) mode().transform(plan(changed).executeCollect());
    brokers = BrokerSpec.after(brokers, written);
    return new Generation(number, base, hashed, brokers);
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
