package dev.headgate.connector.rows;

import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.physical.BroadcastPartitioning;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/** The rows of one generation in a plan: a broadcast that is there already, so that a hash join needs no exchange. */
public final class RowScan extends SparkPlan {
  private final transient Seq<AttributeReference> columns;
  private final transient RowTable table;

  /** Public, and with what {@link #productElement} names: Spark copies nodes of a plan that way. */
  public RowScan(Seq<AttributeReference> columns, RowTable table) {
    this.columns = columns;
    this.table = table;
  }

  @Override
  @SuppressWarnings("unchecked")
  public Seq<Attribute> output() {
    return (Seq<Attribute>) (Seq<?>) columns;
  }

  @Override
  public Partitioning outputPartitioning() {
    return new BroadcastPartitioning(KeptRows.mode());
  }

  @Override
  @SuppressWarnings("unchecked")
  public <T> Broadcast<T> doExecuteBroadcast() {
    return (Broadcast<T>) table.rows;
  }

  /** For whoever wants to look at the rows; no match does. */
  @Override
  public RDD<InternalRow> doExecute() {
    JavaSparkContext context = JavaSparkContext.fromSparkContext(session().sparkContext());
    return context.parallelize(table.rows.value().rows(), 1).rdd();
  }

  @Override
  public AttributeSet producedAttributes() {
    return outputSet();
  }

  @Override
  public SparkPlan doCanonicalize() {
    return this;
  }

  @Override
  @SuppressWarnings("unchecked")
  public Seq<SparkPlan> children() {
    return (Seq<SparkPlan>) (Seq<?>) Nil$.MODULE$;
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return this;
  }

  @Override
  public int productArity() {
    return 2;
  }

  @Override
  public Object productElement(int index) {
    return index == 0 ? columns : table;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof RowScan;
  }
}
