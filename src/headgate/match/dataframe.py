"""Which targets does an event match? One broadcast hash join from events to the rows of all filters.

An event makes one key for each set of key parts that shapes have; the keys are exploded, and every row that they meet
is judged by its shape's comparisons. The plan grows with the shapes and the places they look at, never with the
filters. It holds no Python operator, no aggregate, no sort and no subquery, so that real-time mode runs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from itertools import chain
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headgate.filter.plan import Place, Verdict
from headgate.match.keys import WANTED, broker_column, check_column, key_column, with_parts
from headgate.match.places import read_places
from headgate.match.reads import PlaceColumns, Want
from headgate.match.residuals import Judgement, judge, key_doubt, wanted
from headgate.match.table import CompiledShape, MatchTable, build_table

__all__ = ["MatchTable", "build_table", "match_events"]

_IDENTITY: Final = ("partition", "offset")
_BROKER: Final = "broker_key"


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
    key_parts = {compiled.key_number: compiled.shape.key for compiled in table.shapes}
    read, columns = with_parts(read, chain.from_iterable(key_parts.values()), places)
    parts = {number: [columns[part] for part in key] for number, key in key_parts.items()}
    checks = [check_column(table.secret, names).alias(_check(number)) for number, names in parts.items()]
    read = read.select("*", broker_column(table.seed).alias(_BROKER), *checks)
    keys = [key_column(_BROKER, number, names) for number, names in parts.items()]
    keyed = read.select("*", F.explode(F.array(*keys)).alias("event_key"))
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
    holds = F.col(_check(compiled.key_number)) == F.col("row_check")
    doubts = [key_doubt(part, places[part.place]) for part in shape.key]
    for test, column in zip(shape.residual, compiled.columns, strict=True):
        judgement = judge(test, places[test.place], F.col(column) if column else None)
        holds = holds & judgement.holds
        doubts.append(judgement.doubt)
    real = [doubt for doubt in doubts if doubt is not None]
    return Judgement(holds, reduce(or_, real) if real else None)


def _check(key_number: int) -> str:
    return f"check_{key_number}"
