"""Verdicts of plan rows: the meaning of `compile/plan.py` in plain Python, one event at a time.

The matcher computes the same in Spark. Tests compare both with cel-cpp.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, assert_never

from headgate.filter.cel.evaluate import EventView
from headgate.filter.compile.plan import (
    MANY,
    CompiledFilter,
    Constant,
    ConstantKind,
    KeyKind,
    KeyPart,
    Op,
    PlanRow,
    Residual,
    Verdict,
)
from tests.filter.reference.forms import DOUBT, MISSING, Doubt, Instant, has, is_kind, taken

_ORDERS: Final[dict[Op, Callable[[Any, Any], bool]]] = {
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}
_STRINGS: Final[dict[Op, Callable[[str, str], bool]]] = {
    Op.STARTS: str.startswith,
    Op.ENDS: str.endswith,
    Op.CONTAINS: operator.contains,
    Op.LIKE: lambda text, pattern: like(text, pattern),
}


def row_verdicts(compiled: CompiledFilter, view: EventView) -> Verdict | None:
    """The merged verdict of a filter's rows on one event; None when no row speaks."""
    verdicts = [verdict for row in compiled.rows if (verdict := row_verdict(row, view)) is not None]
    return max(verdicts, default=None)


def row_verdict(row: PlanRow, view: EventView) -> Verdict | None:
    """What one row says of one event; None when its key is not the event's, or a comparison is false."""
    if not all(_key_meets(part, constant, view) for part, constant in zip(row.signature.key, row.key, strict=True)):
        return None
    values = [_compare(r, constant, view) for r, constant in zip(row.signature.residual, row.constants, strict=True)]
    if any(value is False for value in values):
        return None
    if not row.signature.exact or any(value is DOUBT for value in values):
        return Verdict.CANDIDATE
    return Verdict.ERROR if None in values else Verdict.MATCH


def _key_meets(part: KeyPart, constant: Constant, view: EventView) -> bool:
    value = taken(part.operand, view)
    if part.operand.form in MANY and isinstance(value, list):
        return any(_meets(part, constant, item) for item in value)
    return _meets(part, constant, value)


def _meets(part: KeyPart, constant: Constant, value: object) -> bool:
    if value is DOUBT:
        return constant == part.doubt
    match part.kind:
        case KeyKind.STRING:
            return isinstance(value, str) and value == constant
        case KeyKind.BOOL:
            return isinstance(value, bool) and value == constant
        case KeyKind.NUMBER:
            return is_kind(value, ConstantKind.NUMBER) and _ordered(operator.eq, value, constant)
        case KeyKind.PREFIX:
            return isinstance(value, str) and value[: part.length] == constant
        case KeyKind.SUFFIX:
            return isinstance(value, str) and value[-part.length :] == constant
        case _:
            assert_never(part.kind)


_Truth = bool | Doubt | None
"""None is an error."""


def _compare(residual: Residual, constant: Constant | tuple[Constant, ...], view: EventView) -> _Truth:
    truth = _truth(residual, constant, view)
    return not truth if residual.negated and isinstance(truth, bool) else truth


def _truth(residual: Residual, constant: Constant | tuple[Constant, ...], view: EventView) -> _Truth:
    if residual.op is Op.HAS:
        return has(residual.operand, view)
    value = taken(residual.operand, view)
    if value is MISSING:
        return None
    if isinstance(value, Doubt):
        return value
    if residual.op is Op.EXISTS:
        assert isinstance(constant, tuple)
        return _exists(residual, constant, value) if isinstance(value, list) else None
    if isinstance(value, Instant) and not isinstance(constant, tuple):
        return _at(residual.op, value, constant)
    return _compared(residual.op, residual.kind, constant, value, lenient=residual.op in {Op.EQ, Op.IN})


def _compared(
    op: Op, kind: ConstantKind, constant: Constant | tuple[Constant, ...], value: object, *, lenient: bool
) -> bool | None:
    """One value compared; of another kind it is false when `lenient`, else an error."""
    if not is_kind(value, kind):
        return False if lenient else None
    if op is Op.EQ or op is Op.IN:
        constants = constant if isinstance(constant, tuple) else (constant,)
        return any(_ordered(operator.eq, value, item) for item in constants)
    if op in _STRINGS:
        return _STRINGS[op](str(value), str(constant)) if kind is ConstantKind.STRING else None
    return _ordered(_ORDERS[op], value, constant)


def _exists(residual: Residual, constants: tuple[Constant, ...], values: list[object]) -> bool | None:
    """CEL's `||` over the values, of its `&&` over the probes."""
    result: bool | None = False
    for value in values:
        truths = list(_probed(residual, constants, value))
        if all(truth is True for truth in truths):
            return True
        if not any(truth is False for truth in truths):
            result = None
    return result


def _probed(residual: Residual, constants: tuple[Constant, ...], value: object) -> Iterator[bool | None]:
    left = iter(constants)
    for probe in residual.probes:
        if probe.op is Op.HAS:
            truth: bool | None = is_kind(value, residual.kind)
        elif residual.kind is ConstantKind.NULL:
            truth = value is None
        else:
            constant = constants if probe.op is Op.IN else next(left)
            truth = _compared(probe.op, residual.kind, constant, value, lenient=probe.lenient)
        yield truth if truth is None or not probe.negated else not truth


def _at(op: Op, value: Instant, constant: Constant) -> _Truth:
    if value.micros is None:
        return False if op is Op.EQ else None  # present, but no timestamp
    if value.more and isinstance(constant, int | float) and math.floor(constant) == value.micros:
        return DOUBT
    return _compared(op, ConstantKind.NUMBER, constant, value.micros, lenient=False)


def like(text: str, pattern: str) -> bool:
    """Whether `pattern` stands for all of `text`, see `Op.LIKE`. Goes back to the last `%` alone: never slow."""
    wanted = re.findall(r"\\.|[^\\]", pattern, re.DOTALL)
    at = part = 0
    back, star = 0, -1
    while at < len(text):
        if part < len(wanted) and wanted[part] == "%":
            star, back, part = part, at, part + 1
        elif part < len(wanted) and (wanted[part] == "_" or wanted[part][-1] == text[at]):
            at, part = at + 1, part + 1
        elif star >= 0:
            back, at, part = back + 1, back + 1, star + 1
        else:
            return False
    return all(left == "%" for left in wanted[part:])


def _ordered(compare: Callable[[Any, Any], bool], left: object, right: object) -> bool:
    """Compares two values of one kind; as soon as one number is a double, cel-cpp compares both as doubles."""
    if isinstance(left, float) and isinstance(right, int):
        right = float(right)
    elif isinstance(right, float) and isinstance(left, int):
        left = float(left)
    return compare(left, right)
