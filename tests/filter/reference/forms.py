"""Values in their forms: the meaning of `plan.Form` in plain Python.

It knows no more than Spark does: where Spark cannot tell exactly, the answer is `DOUBT`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headgate.filter.cel.evaluate import EventView, JsonValue
from headgate.filter.compile.plan import ConstantKind, Form, Operand, Root
from headgate_api.event import rfc3339


class Doubt(Enum):
    """The matcher does not know the value."""

    DOUBT = "doubt"


DOUBT: Final = Doubt.DOUBT
MISSING: Final = object()
"""No value, or none of the form: an error."""

EXISTS_ITEMS_MAX: Final = 64
"""As `keys/KeySpec.java` has it."""
INTEGER_EXACT_MAX: Final = 2**53
"""From here on neighbouring integers share a double."""

_TYPES: Final = {
    ConstantKind.STRING: (str,),
    ConstantKind.BOOL: (bool,),
    ConstantKind.NULL: (type(None),),
    ConstantKind.NUMBER: (int, float),
}
_UPPER: Final = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LOWER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_INTEGER_TEXT: Final = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL_TEXT: Final = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)
_INT64: Final = (-(2**63), 2**63 - 1)
_MICROSECOND_CHARACTERS: Final = 27
"""Of a time in UTC with six digits of a second; a longer one may lie between two microseconds."""
_YEARS: Final = (-62_135_596_800_000_000, 253_402_300_800_000_000)


@dataclass(frozen=True, slots=True)
class Instant:
    """A time as the log has it: microseconds (None outside CEL's years), and whether there may be more digits."""

    micros: int | None
    more: bool


def is_kind(value: object, kind: ConstantKind) -> bool:
    """Whether a value is of a constant's kind."""
    if isinstance(value, bool):
        return kind is ConstantKind.BOOL
    return isinstance(value, _TYPES.get(kind, ()))


def taken(operand: Operand, view: EventView) -> object:
    """What stands at an operand, in its form: a value, a list of them for `MANY`, MISSING or DOUBT."""
    if operand.root is Root.PUBLISH_TIME:
        return MISSING if view.publish_time_us is None else Instant(view.publish_time_us, more=False)
    if operand.form is Form.TIME:
        return _instant(view)
    if operand.form in _VALUES:
        return _values(operand, view)
    if operand.form is Form.NAMED:
        extensions = view.event.extensions
        if any(type(value) is dict for value in extensions.values()):
            return DOUBT  # their members are attributes, too
        found = [value for name, value in extensions.items() if name.startswith(operand.path[0])]
        return found if len(found) <= EXISTS_ITEMS_MAX else DOUBT
    if operand.form is Form.PRESENT:
        there = has(Operand(operand.root, operand.path), view)
        return MISSING if there is None else there
    value = _read(operand, view)
    if value is MISSING or operand.form is Form.VALUE:
        return value
    return _FORMS[operand.form](value)


def has(operand: Operand, view: EventView) -> bool | None:
    """Whether something stands at an operand; None is an error: the parent is no object."""
    if operand.root is Root.CE:
        return operand.path[0] in view.attributes
    parent = _read(Operand(operand.root, operand.path[:-1]), view)
    return operand.path[-1] in parent if isinstance(parent, dict) else None


def _read(operand: Operand, view: EventView) -> object:
    if operand.root is Root.CE:
        return view.attributes.get(operand.path[0], MISSING)
    if view.json is None:
        return MISSING
    value: JsonValue = view.json[0]
    for name in operand.path:
        if not isinstance(value, dict) or name not in value:
            return MISSING
        value = value[name]
    return value


def _lower(value: object) -> object:
    return value.translate(_LOWER) if isinstance(value, str) else MISSING


def _upper(value: object) -> object:
    return value.translate(_UPPER) if isinstance(value, str) else MISSING


def _size(value: object) -> object:
    return len(value) if isinstance(value, str | list | dict) else MISSING


def _type(value: object) -> object:
    match value:
        case bool():
            return "bool"
        case int():
            return "int" if _INT64[0] <= value <= _INT64[1] else DOUBT
        case float():
            return "double" if abs(value) < INTEGER_EXACT_MAX else DOUBT
        case str():
            return "string"
        case list():
            return "list"
        case None:
            return "null_type"
        case _:
            return "map"


def _to_int(value: object) -> object:
    match value:
        case str():
            return int(value) if _INTEGER_TEXT.fullmatch(value) else DOUBT
        case bool():
            return DOUBT
        case int() | float() if abs(value) < INTEGER_EXACT_MAX:
            return int(value)
        case int() | float():
            return DOUBT
        case _:
            return MISSING


def _to_double(value: object) -> object:
    match value:
        case str():
            return float(value) if _DECIMAL_TEXT.fullmatch(value) else DOUBT
        case bool():
            return MISSING
        case int() | float():
            return float(value) if abs(value) < INTEGER_EXACT_MAX else DOUBT
        case _:
            return MISSING


def _to_string(value: object) -> object:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() if _INT64[0] <= value <= _INT64[1]:
            return str(value)
        case int() | float():
            return DOUBT
        case _:
            return MISSING


def _integer(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < INTEGER_EXACT_MAX else DOUBT
    return MISSING if not isinstance(value, float) or abs(value) < INTEGER_EXACT_MAX else DOUBT


def _elements(value: object) -> object:
    match value:
        case list():
            return value if len(value) <= EXISTS_ITEMS_MAX else DOUBT
        case dict():
            return DOUBT  # its keys are asked
        case _:
            return MISSING


def _elements_lower(value: object) -> object:
    return _lowered(_elements(value))


def _lowered(values: object) -> object:
    return [_lower(value) for value in values] if isinstance(values, list) else values


_FORMS: Final[dict[Form, Callable[[object], object]]] = {
    Form.LOWER: _lower,
    Form.UPPER: _upper,
    Form.SIZE: _size,
    Form.TYPE: _type,
    Form.TO_INT: _to_int,
    Form.TO_DOUBLE: _to_double,
    Form.TO_STRING: _to_string,
    Form.INTEGER: _integer,
    Form.ELEMENTS: _elements,
    Form.ELEMENTS_LOWER: _elements_lower,
}
_VALUES: Final = frozenset({Form.VALUES, Form.VALUES_LOWER})


def _values(operand: Operand, view: EventView) -> object:
    """Scalars at the path, in the list at its end if there is one; an array on the way is in doubt."""
    if view.json is None:
        return MISSING
    value: JsonValue = view.json[0]
    for name in operand.path:
        if isinstance(value, list):
            return DOUBT
        if not isinstance(value, dict) or name not in value:
            return []
        value = value[name]
    items = value if isinstance(value, list) else [value]
    if len(items) > EXISTS_ITEMS_MAX or any(isinstance(item, list) for item in items):
        return DOUBT
    scalars: list[object] = [item for item in items if not isinstance(item, dict)]
    return _lowered(scalars) if operand.form is Form.VALUES_LOWER else scalars


def _instant(view: EventView) -> object:
    text = view.event.time
    if text is None:
        return MISSING
    micros = rfc3339.micros(text)
    more = len(text) > _MICROSECOND_CHARACTERS
    if micros is None or not _YEARS[0] <= micros < _YEARS[1]:
        return Instant(None, more)
    return Instant(micros, more)
