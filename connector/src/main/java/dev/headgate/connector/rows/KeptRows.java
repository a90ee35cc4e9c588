package dev.headgate.connector.rows;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import org.apache.spark.SparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.joins.HashedRelationBroadcastMode;
import org.apache.spark.sql.execution.joins.LongHashedRelation;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CloseableIterator;
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
  private final UnsafeProjection flat;
  private Broadcast<LongHashedRelation> base;
  private ChangedRows changed = ChangedRows.NONE;
  private final LiveRows live = new LiveRows();
  private Map<UTF8String, BrokerSpec> brokers = Map.of();

  private KeptRows(SparkSession spark, StructType schema, UnsafeProjection flat, Broadcast<LongHashedRelation> base) {
    this.spark = spark;
    this.schema = schema;
    this.flat = flat;
    this.base = base;
  }

  /** Broadcasts rows, an Arrow stream of at least one, whose first column is the key, BIGINT. */
  public static KeptRows of(SparkSession spark, byte[] rows) {
    install(spark);
    return read(
        rows,
        (found, columns) -> {
          UnsafeProjection flat = UnsafeProjection.create(columns);
          return new KeptRows(spark, columns, flat, hashed(spark, found, flat));
        });
  }

  /** From the next generation on these are the base, in the same columns. */
  public void renew(byte[] rows) {
    base =
        read(
            rows,
            (found, columns) -> {
              check(columns);
              return hashed(spark, found, flat);
            });
    changed = ChangedRows.NONE;
  }

  private static Broadcast<LongHashedRelation> hashed(
      SparkSession spark, Iterator<InternalRow> rows, UnsafeProjection flat) {
    LongHashedRelation hashed = (LongHashedRelation) mode().transform(rows.map(flat::apply), Option.empty());
    return broadcast(spark.sparkContext(), hashed);
  }

  private void check(StructType columns) {
    if (!columns.equals(schema)) {
      throw new IllegalArgumentException("these rows have other columns: " + columns);
    }
  }

  /** No query reads rows: to plan one takes ten times as long as to read a few. */
  private static <T> T read(byte[] arrow, BiFunction<Iterator<InternalRow>, StructType, T> then) {
    Tuple2<CloseableIterator<InternalRow>, StructType> read = ArrowConverters$.MODULE$.fromIPCStream(arrow);
    try (CloseableIterator<InternalRow> rows = read._1()) {
      return then.apply(rows, read._2());
    } catch (RuntimeException error) {
      throw error;
    } catch (Exception error) { // that close() may throw one is said by its interface alone
      throw new IllegalStateException(error);
    }
  }

  /**
   * A generation as a table whose join needs no exchange.
   *
   * @param name of the table, by which the tasks of a plan find it
   * @param newer rows that count from now on instead of those of the same keys, in the columns of the base; there must be
   *     some
   * @param brokers what has changed since the generation before, see {@link BrokerSpec#after}
   */
  public Dataset<Row> table(String name, long generation, byte[] newer, byte[] brokers) {
    Generation first = next(generation, newer, brokers);
    UTF8String table = UTF8String.fromString(name);
    Broadcast<GenerationRows> rows = broadcast(spark.sparkContext(), new GenerationRows(table, live.number, first));
    RowTable planned = new RowTable(table, schema, base, live, rows);
    return org.apache.spark.sql.classic.Dataset.ofRows(
        spark, DataSourceV2Relation.create(planned, Option.empty(), Option.empty()));
  }

  /** Has the tasks of running queries over this base go on to a generation, each between two events; see {@link #table}. */
  public void offer(long generation, byte[] newer, byte[] brokers) {
    live.offer(next(generation, newer, brokers));
  }

  private Generation next(long number, byte[] newer, byte[] written) {
    changed =
        read(
            newer,
            (found, columns) -> {
              check(columns);
              return changed.with(found, flat);
            });
    brokers = BrokerSpec.after(brokers, written);
    return new Generation(number, base, changed, brokers);
  }

  static HashedRelationBroadcastMode mode() {
    return new HashedRelationBroadcastMode(
        CollectionConverters.asScala(List.<Expression>of(new BoundReference(0, DataTypes.LongType, false))).toSeq(),
        false);
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
