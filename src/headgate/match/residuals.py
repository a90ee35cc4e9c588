"""What does a comparison say about an event, in SQL's three values, where NULL is a CEL error?

Each function returns columns that never throw. A number is compared as a double, which decides every comparison but
one: two numbers beyond 2**53 that are equal as doubles may differ as integers. That is the *doubt* beside the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F

from headgate.filter.plan import ConstantKind, Op, Residual
from headgate.match.reads import PlaceColumns

EXACT_INTEGER_MAX: Final = 2.0**53
"""From here on neighbouring integers share a double."""

_TYPED: Final = frozenset({ConstantKind.STRING, ConstantKind.NUMBER, ConstantKind.BOOL})


@dataclass(frozen=True, slots=True)
class Judgement:
    """One comparison: its value (NULL is an error) and where that value is not to be trusted (never NULL)."""

    holds: Column
    doubt: Column | None = None


def expressible(residual: Residual) -> bool:
    """Whether `judge` can say this exactly. `in` a list of nulls is not worth a column."""
    return residual.op is not Op.EXISTS and not (residual.op is Op.IN and residual.kind not in _TYPED)


def judge(residual: Residual, place: PlaceColumns, constant: Column | None) -> Judgement:
    """The residual on one joined row; `constant` is the row's column, None where the kind needs none."""
    judgement = _judge(residual, place, constant)
    return Judgement(~judgement.holds, judgement.doubt) if residual.negated else judgement


def _judge(residual: Residual, place: PlaceColumns, constant: Column | None) -> Judgement:
    if residual.op is Op.HAS:
        return Judgement(F.col(place.has))
    if residual.op is Op.TRUE:
        return Judgement(F.col(place.flag))
    if constant is None:
        # null == null; every other operator has no overload for null
        return Judgement(F.col(place.is_null) if residual.op is Op.EQ else _error())
    match residual.kind:
        case ConstantKind.STRING:
            value = F.col(place.text)
        case ConstantKind.NUMBER:
            value = F.col(place.number)
        case _:
            value = F.col(place.flag)
    holds = _compare(residual, value, constant)
    if residual.op in {Op.EQ, Op.IN}:
        holds = F.coalesce(holds, F.col(place.mismatch))
    doubt = _doubt(residual.op, value, constant) if residual.kind is ConstantKind.NUMBER else None
    return Judgement(holds, doubt)


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
        case Op.STARTS | Op.ENDS | Op.CONTAINS if residual.kind is not ConstantKind.STRING:
            return _error()
        case Op.STARTS:
            return F.startswith(value, constant)
        case Op.ENDS:
            return F.endswith(value, constant)
        case Op.CONTAINS:
            return F.contains(value, constant)
        case Op.HAS | Op.TRUE | Op.EXISTS:
            raise AssertionError(residual.op)
        case _:
            assert_never(residual.op)


def _doubt(op: Op, number: Column, constant: Column) -> Column:
    equal = F.array_contains(constant, number) if op is Op.IN else number == constant
    return F.coalesce(equal & (F.abs(number) >= EXACT_INTEGER_MAX), F.lit(False))
