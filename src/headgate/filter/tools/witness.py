"""An event that makes filters true, as their rows suggest one; cel-cpp has the last word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any, Final

import msgspec

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.plan import ConstantKind, Form, Op, Root
from headgate.filter.tools.algebra import Domain, Meaning, Row, Value, holds_of
from headgate_api.errors import EventError
from headgate_api.event.json_format import decode_event
from headgate_api.event.model import Event
from headgate_api.limits import ALGEBRA_ROW_PAIRS_MAX

_PLAIN: Final[Sequence[Value]] = (
    (ConstantKind.STRING, "example"),
    (ConstantKind.NUMBER, 1),
    (ConstantKind.BOOL, True),
)
_OF_TYPE: Final = {"string": "example", "int": 1, "double": 1.5, "bool": True, "list": [1], "map": {"example": 1}}
_TEXTUAL: Final = (Form.VALUE, Form.LOWER, Form.UPPER)
_NONE: Final = object()


def witness(*filters: Meaning) -> Event | None:
    """An event of which all of the filters are true; None where none was found, though there may be one."""
    programs = [program(one.cel) for one in filters]
    for rows in islice(product(*(one.rows for one in filters)), ALGEBRA_ROW_PAIRS_MAX):
        row = Row(frozenset().union(*(one.atoms for one in rows)), exact=False)
        event = None if row.is_never else _event(row)
        if event is not None and all(one.evaluate(event).kind is OutcomeKind.TRUE for one in programs):
            return event
    return None


def _event(row: Row) -> Event | None:
    members: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/example", "type": "example"}
    data: dict[str, Any] = {}
    # Longer paths first: what only has to be there may be the object around another value. Texts before their sizes.
    for place in sorted(row.places.values(), key=_turn):
        operand, value = place.operand, _chosen(place)
        if value is _NONE:
            continue
        if operand.root is Root.CE:
            members[operand.path[0]] = value
        elif operand.root is Root.DATA and operand.path:
            _put(data, operand.path, value)
    try:
        return decode_event(msgspec.json.encode(members | ({"data": data} if data else {})))
    except (EventError, UnicodeError):
        return None


def _turn(place: Domain) -> tuple[int, bool]:
    return -len(place.operand.path), place.operand.form not in _TEXTUAL


def _put(data: dict[str, Any], path: Sequence[str], value: object) -> None:
    *way, name = path
    for step in way:
        data = data.setdefault(step, {})
        if not isinstance(data, dict):
            return
    data.setdefault(name, value)


def _chosen(place: Domain) -> object:
    """A value for a place; `_NONE` for none."""
    operand = place.operand
    if any(atom.op is Op.HAS and atom.negated for atom in place.atoms):
        return _NONE
    if operand.form in (Form.ELEMENTS, Form.ELEMENTS_LOWER, Form.VALUES, Form.VALUES_LOWER):
        items = [constant for atom in place.atoms for constant in atom.constants if not isinstance(constant, tuple)]
        return items or _NONE
    found = next(
        (value for value in _suggested(place) if all(holds_of(atom, value) is not False for atom in place.atoms)), None
    )
    if found is None:
        return _NONE
    match operand.form:
        case Form.SIZE:
            return "x" * int(found[1]) if isinstance(found[1], int) and 0 <= found[1] < 1_000 else _NONE
        case Form.TYPE:
            return _OF_TYPE.get(str(found[1]), _NONE)
        case _:
            return found[1]


def _suggested(place: Domain) -> Iterator[Value]:
    """Values that may be as the place asks, the likeliest first."""
    yield from place.values or ()
    texts = place.texts
    if any(texts.values()):
        start, end = (max(texts[op], key=len, default="") for op in (Op.STARTS, Op.ENDS))
        yield ConstantKind.STRING, next(start + end[at:] for at in range(len(end), -1, -1) if start.endswith(end[:at]))
        yield ConstantKind.STRING, start + "".join(texts[Op.CONTAINS]) + end
    bounds = [bound for bound, _ in filter(None, (place.low, place.high))]
    if bounds:
        kind = ConstantKind.STRING if isinstance(bounds[0], str) else ConstantKind.NUMBER
        yield from ((kind, bound) for bound in bounds)
        near = [f"{bounds[0]}a", ""] if isinstance(bounds[0], str) else [bounds[0] + 1, bounds[-1] - 1, sum(bounds) / 2]
        yield from ((kind, one) for one in near)
    yield from _PLAIN
