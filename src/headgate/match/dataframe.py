"""Which targets does an event match? One broadcast hash join from events to the rows of all filters.

An event makes one key per shape, the keys are exploded, and every row that they meet is judged by its shape's
comparisons. The plan grows with the shapes and the places they look at, never with the filters. It holds no Python
operator, no aggregate, no sort and no subquery, so that real-time mode runs it, and one stage of generated code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headgate.filter.plan import Place, Verdict
from headgate.match.keys import WANTED, broker_column, key_column
from headgate.match.places import PlaceColumns, Want, read_places
from headgate.match.residuals import Judgement, judge, same_key, wanted
from headgate.match.table import CompiledShape, MatchTable, build_table

__all__ = ["MatchTable", "build_table", "match_events"]

_IDENTITY: Final = ("partition", "offset")


def match_events(events: DataFrame, table: MatchTable) -> DataFrame:
    """Every (event, target) pair about which the matcher has something to say.

    Args:
        events: Columns of `event.arrow.EVENT_SCHEMA`, `partition` INT and `offset` BIGINT; batch or streaming.
        table: From `build_table` on the same session.

    Returns:
        Columns partition INT, offset BIGINT, target INT, verdict TINYINT (`filter.plan.Verdict`). A pair may have
        several rows, one per conjunction; its verdict is the highest.
    """
    shapes = [compiled.shape for compiled in table.shapes]
    wants: dict[Place, Want] = defaultdict(lambda: Want(0))
    for shape in shapes:
        for part in shape.key:
            wants[part.place] |= WANTED[part.kind]
        for test in shape.residual:
            wants[test.place] |= wanted(test)
    read, places = read_places(events, wants, (*_IDENTITY, "broker"))
    read = read.withColumn("broker_key", broker_column(table.seed))
    keys = [key_column(F.col("broker_key"), number, shape.key, places) for number, shape in enumerate(shapes)]
    carried = [name for name in read.columns if name not in {"broker", "broker_key"}]
    keyed = read.select(*carried, F.explode(F.array(*keys)).alias("event_key"))
    rows = F.broadcast(table.rows)
    joined = keyed.join(rows, F.col("event_key") == F.col("row_key"))
    return _verdicts(joined, table.shapes, places)


def _verdicts(joined: DataFrame, shapes: Sequence[CompiledShape], places: dict[Place, PlaceColumns]) -> DataFrame:
    judgements = [_conjunction(compiled, places) for compiled in shapes]
    holds = _by_shape([judgement.holds for judgement in judgements])
    doubts = {number: judgement.doubt for number, judgement in enumerate(judgements) if judgement.doubt is not None}
    doubt = F.lit(False)
    for number, column in doubts.items():
        doubt = doubt | ((F.col("shape") == number) & column)
    # Catalyst would push the filter below this projection and compute every comparison twice, were it not for an
    # expression that it may not move. This one costs nothing and is always true.
    once = F.spark_partition_id() >= 0
    judged = joined.select(
        *_IDENTITY,
        "target",
        F.when(once, holds).alias("holds"),
        (~F.col("exact") | doubt).alias("unsure"),
        doubt.alias("doubt"),
    )
    said = judged.where(F.coalesce(F.col("holds"), F.lit(True)) | F.col("doubt"))
    verdict = (
        F.when(F.col("unsure"), _verdict(Verdict.CANDIDATE))
        .when(F.col("holds"), _verdict(Verdict.MATCH))
        .otherwise(_verdict(Verdict.ERROR))
    )
    return said.select(*_IDENTITY, "target", verdict.alias("verdict"))


def _verdict(verdict: Verdict) -> Column:
    return F.lit(int(verdict)).cast("tinyint")


def _by_shape(columns: Sequence[Column]) -> Column:
    """The column of the row's own shape; rows of no shape hold nothing."""
    result = F.when(F.col("shape") == 0, columns[0])
    for number, column in enumerate(columns[1:], start=1):
        result = result.when(F.col("shape") == number, column)
    return result.otherwise(F.lit(False))


def _conjunction(compiled: CompiledShape, places: dict[Place, PlaceColumns]) -> Judgement:
    shape = compiled.shape
    tests = [
        same_key(part, places[part.place], F.col(column))
        for part, column in zip(shape.key, compiled.key_columns, strict=True)
    ]
    tests += [
        judge(test, places[test.place], F.col(column) if column else None)
        for test, column in zip(shape.residual, compiled.residual_columns, strict=True)
    ]
    holds = F.lit(True)
    doubt: Column | None = None
    for test in tests:
        holds = holds & test.holds
        if test.doubt is not None:
            doubt = test.doubt if doubt is None else doubt | test.doubt
    return Judgement(holds, doubt)
