"""The match of events with filters: one broadcast join in one pipeline of generated code.

    event ── extraction by its broker's key spec: keys, operands' values ── explode keys ── rows ── residuals ── verdict

The plan depends on the patterns of residual comparisons (tens) and on the event's columns that are read, not on the
number of filters, brokers, signatures or operands (`key_specs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Final, assert_never

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headgate.filter.compile.plan import DOUBTFUL, ConstantKind, Form, Op, Residual, Verdict
from headgate.match.table import MARK_CHECK, MARK_KEY, CompiledPattern, MatchTable
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES

EVENT_IDENTITY: Final = ("partition", "offset")
"""Where an event stands in the log."""
_NO_TIME: Final = -(2**63)
_CHECK_BITS: Final = 0xFFFF_FFFF
"""Of an event's check; a bit above them says that a number of the key is in doubt."""


def match_events(
    events: DataFrame, table: MatchTable, identity: Sequence[str] = EVENT_IDENTITY, *, marks: bool = False
) -> DataFrame:
    """Every (event, target) pair that a row of the table meets.

    The rows of one event follow each other: nothing here is shuffled or sorted.

    Args:
        events: Columns of `event.arrow.EVENT_SCHEMA`, `partition` INT, `offset` BIGINT and, where a filter reads
            `publish_time`, `append_time_us` BIGINT; batch or streaming.
        table: Built on the same session.
        identity: Columns of `events` that the answer has.
        marks: Whether every event, those that nobody wants included, has one more row, its last: target MARK.

    Returns:
        The columns of `identity`, target INT, verdict TINYINT (`filter.plan.Verdict`). A pair may have several rows,
        one per conjunction; its verdict is the highest.
    """
    # An event of a broker without filters has no key but the mark's.
    extracted = events.select(*identity, extraction(table).alias("extracted"))
    keys = F.col("extracted.keys")
    if marks:
        keys = F.concat(keys, F.array(F.lit(MARK_KEY).cast("bigint")))
    keyed = extracted.select(*identity, "extracted", F.posexplode(keys).alias("at", "event_key"))
    joined = keyed.join(F.broadcast(table.rows), F.col("event_key") == F.col("row_key"))
    operands = sorted({name for one in table.patterns for name in one.operands})
    check = F.get(F.col("extracted.checks"), F.col("at"))
    if marks:
        check = F.coalesce(check, F.lit(MARK_CHECK).cast("bigint"))
    values = [F.get(F.col("extracted.operands"), F.col(name)).alias(_value(name)) for name in operands]
    return _verdicts(joined.select("*", check.alias("check"), *values), table.patterns, identity)


def extraction(table: MatchTable) -> Column:
    """Keys and values of an event; columns that no plan compares are not even read."""

    def column(name: str, kind: str) -> Column:
        return F.col(name) if name in table.columns else F.lit(None).cast(kind)

    return F.call_function(
        "headgate.extract",
        F.lit(table.name),
        F.col("broker"),
        F.lit(table.secrets.seed).cast("bigint"),
        F.lit(table.secrets.check),
        *(column(name, "string") for name in (*CONTEXT_ATTRIBUTES, "extensions")),
        F.coalesce(column("time_us", "bigint"), F.lit(_NO_TIME)),
        F.coalesce(column("append_time_us", "bigint"), F.lit(_NO_TIME)),
        F.col("data_kind"),
        column("data", "binary"),
    )


def _verdicts(joined: DataFrame, patterns: Sequence[CompiledPattern], identity: Sequence[str]) -> DataFrame:
    judgements = [_conjunction(compiled) for compiled in patterns]
    shared_holds, unknown = _shared()
    holds = shared_holds & _by_pattern([judgement.holds for judgement in judgements])
    same = F.col("check").bitwiseAND(F.lit(_CHECK_BITS)) == F.col("row_check")
    doubt = F.col("check") > _CHECK_BITS
    for number, judgement in enumerate(judgements):
        if judgement.doubt is not None:
            doubt = doubt | ((F.col("pattern") == number) & judgement.doubt)
        if judgement.unknown is not None:
            unknown = unknown | ((F.col("pattern") == number) & judgement.unknown)
    # Catalyst would push the filter below this projection and compute every comparison twice, were it not for an
    # expression that it may not move. This one costs nothing and is always true.
    once = F.spark_partition_id() >= 0
    judged = joined.select(
        *identity,
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
    return decided.select(*identity, F.explode("targets").alias("target"), verdict.alias("verdict"))


def _verdict(verdict: Verdict) -> Column:
    return F.lit(int(verdict)).cast("tinyint")


def _by_pattern(columns: Sequence[Column]) -> Column:
    """The column of the row's own pattern; the mark has none and always holds."""
    result = F.when(F.col("pattern") == 0, columns[0])
    for number, column in enumerate(columns[1:], start=1):
        result = result.when(F.col("pattern") == number, column)
    return result.otherwise(F.lit(True))


def _conjunction(compiled: CompiledPattern) -> Judgement:
    holds = F.lit(True)
    judgements = []
    for test, operand, constant in zip(compiled.pattern, compiled.operands, compiled.constants, strict=True):
        judgement = judge(test, OperandColumns.of(_value(operand)), F.col(constant) if constant else None)
        holds = holds & judgement.holds
        judgements.append(judgement)
    return Judgement(holds, _any(one.doubt for one in judgements), _any(one.unknown for one in judgements))


def _shared() -> tuple[Column, Column]:
    """Whether the row's shared atoms hold, and whether only cel-cpp knows: `headgate.extract` has compared them."""

    def some(bits: str) -> Column:
        return F.col("shared").bitwiseAND(F.col(f"extracted.{bits}")) != 0

    return F.when(~some("unmet"), True).when(some("refuted"), False), some("unsure")


def _any(columns: Iterable[Column | None]) -> Column | None:
    real = [column for column in columns if column is not None]
    return reduce(or_, real) if real else None


def _value(operand: str) -> str:
    """The column of the value of the operand whose number is in the column `operand`."""
    return f"at_{operand}"


# --- residual comparisons -------------------------------------------------------------------------
# In SQL's three values, where NULL is a CEL error. Each function returns columns that never throw.
#
# A number is compared as a double, which decides every comparison but one: two numbers beyond 2**53 that are equal as
# doubles may differ as integers. That is the *doubt* beside the result.

EXACT_INTEGER_MAX: Final = 2.0**53
"""From here on neighbouring integers share a double."""

_EXISTS_TRUE, _EXISTS_ERROR, _EXISTS_DOUBT = 1, 2, 3
"""What `headgate.exists` answers; 0 is false."""


@dataclass(frozen=True, slots=True)
class OperandColumns:
    """The columns of one operand's value; `text`, `number` (a double) and `flag` are NULL where it has another type."""

    text: str
    number: str
    flag: str
    is_null: str  # whether it is JSON's null, NULL when there is no value
    mismatch: str  # FALSE when there is a value, else NULL: the value of `==` with another type
    has: str  # CEL's has(): NULL when the parent is not an object
    doubt: str  # whether only cel-cpp knows the value; all others are NULL then; never NULL
    items: str  # of a form of many values, these; else NULL

    @classmethod
    def of(cls, column: str) -> OperandColumns:
        return cls(*(f"{column}.{name}" for name in cls.__slots__))


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of one comparison; a NULL in `holds` is an error, or `unknown`, which only cel-cpp knows.

    `doubt` is where `holds` may be wrong. Neither of these two is ever NULL.
    """

    holds: Column
    doubt: Column | None = None
    unknown: Column | None = None


def judge(residual: Residual, operand: OperandColumns, constant: Column | None) -> Judgement:
    """The residual on one joined row; `constant` is the row's column, None where the kind needs none."""
    judged = _exists if residual.op is Op.EXISTS else _judge
    judgement = judged(residual, operand, constant)
    return replace(judgement, holds=~judgement.holds) if residual.negated else judgement


def _exists(residual: Residual, operand: OperandColumns, constants: Column | None) -> Judgement:
    """CEL's `||` over many values, in a function of ours: Spark would interpret a lambda, value by value."""
    probes = " ".join(f"{'!' * probe.negated}{probe.op}{'?' * probe.lenient}" for probe in residual.probes)
    nothing = F.array().cast("array<string>")
    found = F.call_function(
        "headgate.exists",
        F.col(operand.items),
        F.lit(f"{residual.kind} {probes}".strip()),
        nothing if constants is None else constants,
    )
    holds = F.when(found < _EXISTS_ERROR, found == _EXISTS_TRUE)
    return Judgement(holds, unknown=F.col(operand.doubt) | (found == _EXISTS_DOUBT))


def _judge(residual: Residual, operand: OperandColumns, constant: Column | None) -> Judgement:
    if residual.op is Op.HAS:
        return Judgement(F.col(operand.has))
    if constant is None:
        # null == null; every other operator has no overload for null
        return Judgement(F.col(operand.is_null) if residual.op is Op.EQ else _error())
    match residual.kind:
        case ConstantKind.STRING:
            value = F.col(operand.text)
        case ConstantKind.NUMBER:
            value = F.col(operand.number)
        case _:
            value = F.col(operand.flag)
    holds = _compare(residual, value, constant)
    if residual.op in {Op.EQ, Op.IN}:
        holds = F.coalesce(holds, F.col(operand.mismatch))
    doubt = _doubt(residual.op, value, constant) if residual.kind is ConstantKind.NUMBER else None
    if residual.operand.form is Form.TIME and doubt is not None:
        doubt = doubt | _between(residual.op, operand, constant)
    return Judgement(holds, doubt, F.col(operand.doubt) if residual.operand.form in DOUBTFUL else None)


def _error() -> Column:
    return F.lit(None).cast("boolean")


def _compare(residual: Residual, value: Column, constant: Column) -> Column:
    match residual.op:
        case Op.EQ:
            return value == constant
        case Op.LT:
            return value < constant
        case Op.LE:
            return value <= constant
        case Op.GT:
            return value > constant
        case Op.GE:
            return value >= constant
        case Op.IN:
            return F.array_contains(constant, value)
        case Op.STARTS | Op.ENDS | Op.CONTAINS | Op.LIKE if residual.kind is not ConstantKind.STRING:
            return _error()
        case Op.STARTS:
            return F.startswith(value, constant)
        case Op.ENDS:
            return F.endswith(value, constant)
        case Op.CONTAINS | Op.LIKE:
            found = F.call_function("headgate.search", value, constant, F.lit(residual.op is Op.LIKE))
            return F.when(value.isNotNull(), found)
        case Op.HAS | Op.EXISTS:
            raise AssertionError(residual.op)
        case _:
            assert_never(residual.op)


def _between(op: Op, operand: OperandColumns, constant: Column) -> Column:
    """An instant with more digits than microseconds lies anywhere between two; `flag` is true where it has more."""
    near = F.lit(True) if op is Op.IN else F.floor(constant) == F.col(operand.number)
    return F.coalesce(F.col(operand.flag) & near, F.lit(False))


def _doubt(op: Op, number: Column, constant: Column) -> Column:
    equal = F.array_contains(constant, number) if op is Op.IN else number == constant
    return F.coalesce(equal & (F.abs(number) >= EXACT_INTEGER_MAX), F.lit(False))
