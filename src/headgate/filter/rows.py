"""What do plan rows say of an event? The meaning of `plan.py` in plain Python, one event at a time.

The matcher says the same in Spark. Tests hold both against cel-cpp; `headgate filter test --explain` shows this one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, assert_never

from headgate.filter.plan import (
    CompiledFilter,
    Constant,
    ConstantKind,
    KeyKind,
    KeyPart,
    Op,
    Place,
    PlanRow,
    Residual,
    Root,
    Verdict,
)
from headgate.filter.view import EventView, JsonValue

_MISSING: Final = object()
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
}
_TYPES: Final = {
    ConstantKind.STRING: (str,),
    ConstantKind.BOOL: (bool,),
    ConstantKind.NULL: (type(None),),
    ConstantKind.NUMBER: (int, float),
}


def row_verdicts(compiled: CompiledFilter, view: EventView) -> Verdict | None:
    """The merged verdict of a filter's rows on one event; None when no row speaks."""
    verdicts = [verdict for row in compiled.rows if (verdict := row_verdict(row, view)) is not None]
    return max(verdicts, default=None)


def row_verdict(row: PlanRow, view: EventView) -> Verdict | None:
    """What one row says of one event; None when its key is not the event's, or a comparison is false."""
    if not all(_key_meets(part, constant, view) for part, constant in zip(row.signature.key, row.key, strict=True)):
        return None
    values = (_compare(r, constant, view) for r, constant in zip(row.signature.residual, row.constants, strict=True))
    truth = _all(values)
    if truth is False:
        return None
    if not row.signature.exact:
        return Verdict.CANDIDATE
    return Verdict.ERROR if truth is None else Verdict.MATCH


def _all(values: Iterable[bool | None]) -> bool | None:
    """Three-valued `&&`; None stands for an error."""
    result: bool | None = True
    for value in values:
        if value is False:
            return False
        if value is None:
            result = None
    return result


def _read(place: Place, view: EventView) -> object:
    if place.root is Root.CE:
        return view.attributes.get(place.path[0], _MISSING)
    if view.json is None:
        return _MISSING
    value: JsonValue = view.json[0]
    for name in place.path:
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _key_meets(part: KeyPart, constant: Constant, view: EventView) -> bool:
    value = _read(part.place, view)
    match part.kind:
        case KeyKind.STRING:
            return isinstance(value, str) and value == constant
        case KeyKind.BOOL:
            return isinstance(value, bool) and value == constant
        case KeyKind.NUMBER:
            return _is_kind(value, ConstantKind.NUMBER) and _ordered(operator.eq, value, constant)
        case KeyKind.PREFIX:
            return isinstance(value, str) and value[: part.length] == constant
        case KeyKind.SUFFIX:
            return isinstance(value, str) and value[-part.length :] == constant
        case _:
            assert_never(part.kind)


def _compare(residual: Residual, constant: Constant | tuple[Constant, ...], view: EventView) -> bool | None:
    truth = _truth(residual, constant, view)
    return truth if truth is None or not residual.negated else not truth


def _truth(residual: Residual, constant: Constant | tuple[Constant, ...], view: EventView) -> bool | None:
    if residual.op is Op.HAS:
        return _has(residual.place, view)
    value = _read(residual.place, view)
    if value is _MISSING:
        return None
    if residual.op is Op.TRUE:
        return value if isinstance(value, bool) else None
    if residual.op is Op.EQ or residual.op is Op.IN:
        constants = constant if isinstance(constant, tuple) else (constant,)
        return _is_kind(value, residual.kind) and any(_ordered(operator.eq, value, item) for item in constants)
    if not _is_kind(value, residual.kind):
        return None
    if residual.op in _STRINGS:
        return _STRINGS[residual.op](str(value), str(constant))
    return _ordered(_ORDERS[residual.op], value, constant)


def _has(place: Place, view: EventView) -> bool | None:
    if place.root is Root.CE:
        return place.path[0] in view.attributes
    parent = _read(Place(place.root, place.path[:-1]), view)
    return place.path[-1] in parent if isinstance(parent, dict) else None


def _is_kind(value: object, kind: ConstantKind) -> bool:
    if isinstance(value, bool):
        return kind is ConstantKind.BOOL
    return isinstance(value, _TYPES.get(kind, ()))


def _ordered(compare: Callable[[Any, Any], bool], left: object, right: object) -> bool:
    """Compares two values of one kind; as soon as one number is a double, cel-cpp compares both as doubles."""
    if isinstance(left, float) and isinstance(right, int):
        right = float(right)
    elif isinstance(right, float) and isinstance(left, int):
        left = float(left)
    return compare(left, right)
