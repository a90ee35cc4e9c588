package dev.headgate.connector.rows;

import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.optimizer.BuildRight$;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.joins.BroadcastHashJoinExec;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Plans {@link RowTable}, alone or where it is joined by its key.
 *
 * <p>Spark would put a projection between table and join when the match needs one column less, and gather and hash the
 * rows anew because of it. Here the projection stands behind the join.
 */
final class RowStrategy extends SparkStrategy {
  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    SparkPlan planned = null;
    if (plan instanceof Join join) {
      planned = joined(join);
    } else if (plan instanceof DataSourceV2ScanRelation relation) {
      planned = scan(relation);
    }
    return seq(planned == null ? List.of() : List.of(planned));
  }

  private SparkPlan joined(Join join) {
    RowScan scan = scan(join.right() instanceof Project project && isPlain(project) ? project.child() : join.right());
    if (scan == null
        || join.joinType() != Inner$.MODULE$
        || join.condition().isEmpty()
        || !(join.condition().get() instanceof EqualTo equal)) {
      return null;
    }
    Attribute key = scan.output().head();
    boolean isRight = equal.right().semanticEquals(key);
    if (!isRight && !equal.left().semanticEquals(key)) {
      return null;
    }
    SparkPlan hashed =
        new BroadcastHashJoinExec(
            seq(List.<Expression>of(isRight ? equal.left() : equal.right())),
            seq(List.<Expression>of(key)),
            Inner$.MODULE$,
            BuildRight$.MODULE$,
            Option.<Expression>empty(),
            planLater(join.left()),
            scan,
            false,
            false);
    @SuppressWarnings("unchecked")
    Seq<NamedExpression> columns = (Seq<NamedExpression>) (Seq<?>) join.output();
    return new ProjectExec(columns, hashed);
  }

  private static boolean isPlain(Project project) {
    return CollectionConverters.asJava(project.projectList()).stream().allMatch(Attribute.class::isInstance);
  }

  private static RowScan scan(LogicalPlan plan) {
    return plan instanceof DataSourceV2ScanRelation relation && relation.scan() instanceof RowTable table
        ? new RowScan(relation.output(), table)
        : null;
  }

  private static <T> Seq<T> seq(List<T> some) {
    return CollectionConverters.asScala(some).toSeq();
  }
}
