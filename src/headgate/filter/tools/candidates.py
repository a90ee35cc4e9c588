"""A quick look at which filters may take an event, by the keys of their plans; cel-cpp judges the others. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from headgate.filter.compile.atoms import COMPARISONS
from headgate.filter.compile.operands import EXACT_DOUBLE_MAX
from headgate.filter.compile.plan import CompiledFilter, Form, KeyKind, KeyPart, Operand, PlanRow, Residual, Root
from headgate_api.event.attributes import TEXT_ATTRIBUTES
from headgate_api.event.model import DataKind, Event

_UNKNOWN: Final = object()
_MISSING: Final = object()


class EventKeys:
    """What filters look for in an event."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self._data: object = _UNKNOWN
        if event.data_kind is DataKind.JSON and event.data:
            self._data = msgspec.json.decode(event.data)

    def may_pass(self, compiled: CompiledFilter) -> bool:
        """Whether the event may pass a filter: False is sure."""
        return any(self._may_meet(row) for row in compiled.rows)

    def _may_meet(self, row: PlanRow) -> bool:
        signature = row.signature
        return all(
            _may_equal(part, self._value(part.operand), constant)
            for part, constant in zip(signature.key, row.key, strict=True)
        ) and all(
            _may_hold(residual, self._value(residual.operand), constant)
            for residual, constant in zip(signature.residual, row.constants, strict=True)
        )

    def _value(self, operand: Operand) -> object:
        if operand.form is not Form.VALUE:
            return _UNKNOWN
        if operand.root is Root.CE and operand.path[0] in TEXT_ATTRIBUTES:
            found = getattr(self._event, operand.path[0])
            return found if isinstance(found, str) else _UNKNOWN
        if operand.root is not Root.DATA or self._data is _UNKNOWN:
            return _UNKNOWN
        value = self._data
        for name in operand.path:
            if not isinstance(value, dict):
                return _UNKNOWN
            value = value.get(name, _MISSING)
        return value


def _may_hold(residual: Residual, value: object, constant: object) -> bool:
    comparison = COMPARISONS.get(residual.op)
    if comparison is None or not (_is_plain(value) and _is_plain(constant)):
        return True
    return comparison.holds(value, constant) is not residual.negated


def _is_plain(value: object) -> bool:
    """Whether it is a number that compares as everybody thinks."""
    return type(value) in (int, float) and abs(value) <= EXACT_DOUBLE_MAX  # type: ignore[arg-type]


def _may_equal(part: KeyPart, value: object, constant: object) -> bool:
    if value is _UNKNOWN:
        return True
    if value is _MISSING:
        return False
    match part.kind:
        case KeyKind.STRING:
            return not isinstance(value, str) or value == constant
        case KeyKind.PREFIX:
            return not isinstance(value, str) or value[: part.length] == constant
        case KeyKind.SUFFIX:
            return not isinstance(value, str) or value[-part.length :] == constant
        case KeyKind.NUMBER:
            return not (_is_plain(value) and _is_plain(constant)) or value == constant
        case _:
            return not isinstance(value, bool) or value == constant
