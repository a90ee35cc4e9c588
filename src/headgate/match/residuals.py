"""Residual comparisons in SQL's three values, where NULL is a CEL error.

Each function returns columns that never throw. A number is compared as a double, which decides every comparison but
one: two numbers beyond 2**53 that are equal as doubles may differ as integers. That is the *doubt* beside the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F

from headgate.filter.compile.plan import DOUBTFUL, ConstantKind, Form, Op, Residual

EXACT_INTEGER_MAX: Final = 2.0**53
"""From here on neighbouring integers share a double."""

_EXISTS_TRUE, _EXISTS_ERROR, _EXISTS_DOUBT = 1, 2, 3
"""What `headgate.exists` answers; 0 is false."""


@dataclass(frozen=True, slots=True)
class OperandColumns:
    """The columns of one operand's value; `text`, `number` (a double) and `flag` are NULL where it has another type.

    Attributes:
        is_null: Whether it is JSON's null, NULL when there is no value.
        mismatch: FALSE when there is a value, else NULL: the value of `==` with another type.
        has: CEL's has(): NULL when the parent is not an object.
        doubt: Whether only cel-cpp knows the value; all others are NULL then. Never NULL.
        items: Of a form of many values, these; else NULL.
    """

    text: str
    number: str
    flag: str
    is_null: str
    mismatch: str
    has: str
    doubt: str
    items: str

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
