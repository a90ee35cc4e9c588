"""The match of events with filters: two broadcast joins in one pipeline of generated code.

    event ── broker's key spec ── extraction: keys, values of operands ── explode keys ── rows ── residuals ── verdict

The plan depends on the patterns of residual comparisons (tens) and on the event's columns that are read, not on the
number of filters, brokers, signatures or operands (`key_specs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headgate.event.attributes import CONTEXT_ATTRIBUTES
from headgate.filter.compile.plan import Verdict
from headgate.match.reads import OperandColumns
from headgate.match.residuals import Judgement, judge
from headgate.match.table import CompiledPattern, MatchTable, TableBuilder, build_table

__all__ = ["MatchTable", "TableBuilder", "build_table", "match_events"]

_IDENTITY: Final = ("partition", "offset")
_NO_TIME: Final = -(2**63)
_CHECK_BITS: Final = 0xFFFF_FFFF
"""Of an event's check; a bit above them says that a number of the key is in doubt."""


def match_events(events: DataFrame, table: MatchTable) -> DataFrame:
    """Every (event, target) pair that a row of the table meets.

    Args:
        events: Columns of `event.arrow.EVENT_SCHEMA`, `partition` INT, `offset` BIGINT and, where a filter reads
            `publish_time`, `append_time_us` BIGINT; batch or streaming.
        table: From `build_table` on the same session.

    Returns:
        Columns partition INT, offset BIGINT, target INT, verdict TINYINT (`filter.plan.Verdict`). A pair may have
        several rows, one per conjunction; its verdict is the highest.
    """
    with_spec = events.join(F.broadcast(table.brokers), F.col("broker") == F.col("spec_broker"))
    extracted = with_spec.select(*_IDENTITY, extraction(table).alias("extracted"))
    keyed = extracted.select(*_IDENTITY, "extracted", F.posexplode("extracted.keys").alias("at", "event_key"))
    joined = keyed.join(F.broadcast(table.rows), F.col("event_key") == F.col("row_key"))
    operands = sorted({name for one in table.patterns for name in one.operands})
    check = F.get(F.col("extracted.checks"), F.col("at"))
    values = [F.get(F.col("extracted.operands"), F.col(name)).alias(_value(name)) for name in operands]
    return _verdicts(joined.select("*", check.alias("check"), *values), table.patterns)


def extraction(table: MatchTable) -> Column:
    """Keys and values of an event joined to its broker's key spec; columns that no plan compares are not even read."""

    def column(name: str, kind: str) -> Column:
        return F.col(name) if name in table.columns else F.lit(None).cast(kind)

    return F.call_function(
        "headgate.extract",
        F.col("spec_number"),
        F.col("key_spec"),
        F.col("state"),
        F.lit(table.secrets.seed).cast("bigint"),
        F.lit(table.secrets.check),
        *(column(name, "string") for name in (*CONTEXT_ATTRIBUTES, "extensions")),
        F.coalesce(column("time_us", "bigint"), F.lit(_NO_TIME)),
        F.coalesce(column("append_time_us", "bigint"), F.lit(_NO_TIME)),
        F.col("data_kind"),
        column("data", "binary"),
    )


def _verdicts(joined: DataFrame, patterns: Sequence[CompiledPattern]) -> DataFrame:
    judgements = [_conjunction(compiled) for compiled in patterns]
    holds = _by_pattern([judgement.holds for judgement in judgements])
    same = F.col("check").bitwiseAND(F.lit(_CHECK_BITS)) == F.col("row_check")
    doubt = F.col("check") > _CHECK_BITS
    unknown = F.lit(False)
    for number, judgement in enumerate(judgements):
        if judgement.doubt is not None:
            doubt = doubt | ((F.col("pattern") == number) & judgement.doubt)
        if judgement.unknown is not None:
            unknown = unknown | ((F.col("pattern") == number) & judgement.unknown)
    # Catalyst would push the filter below this projection and compute every comparison twice, were it not for an
    # expression that it may not move. This one costs nothing and is always true.
    once = F.spark_partition_id() >= 0
    judged = joined.select(
        *_IDENTITY,
        "targets",
        F.when(once, same & holds).alias("holds"),
        (~F.col("exact") | doubt | unknown).alias("unsure"),
        (same & doubt).alias("doubt"),
    )
    decided = judged.where(F.coalesce(F.col("holds"), F.lit(True)) | F.col("doubt"))
    verdict = (
        F.when(F.col("unsure"), _verdict(Verdict.CANDIDATE))
        .when(F.col("holds"), _verdict(Verdict.MATCH))
        .otherwise(_verdict(Verdict.ERROR))
    )
    return decided.select(*_IDENTITY, F.explode("targets").alias("target"), verdict.alias("verdict"))


def _verdict(verdict: Verdict) -> Column:
    return F.lit(int(verdict)).cast("tinyint")


def _by_pattern(columns: Sequence[Column]) -> Column:
    """The column of the row's own pattern; rows of no pattern hold nothing."""
    result = F.when(F.col("pattern") == 0, columns[0])
    for number, column in enumerate(columns[1:], start=1):
        result = result.when(F.col("pattern") == number, column)
    return result.otherwise(F.lit(False))


def _conjunction(compiled: CompiledPattern) -> Judgement:
    holds = F.lit(True)
    judgements = []
    for test, operand, constant in zip(compiled.pattern, compiled.operands, compiled.constants, strict=True):
        judgement = judge(test, OperandColumns.of(_value(operand)), F.col(constant) if constant else None)
        holds = holds & judgement.holds
        judgements.append(judgement)
    return Judgement(holds, _any(one.doubt for one in judgements), _any(one.unknown for one in judgements))


def _any(columns: Iterable[Column | None]) -> Column | None:
    real = [column for column in columns if column is not None]
    return reduce(or_, real) if real else None


def _value(operand: str) -> str:
    """The column of the value of the operand whose number is in the column `operand`."""
    return f"at_{operand}"
