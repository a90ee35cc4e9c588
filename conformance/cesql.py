"""CESQL's test suite: values and errors of the translation, computed by cel-cpp."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from conformance.cases import Result, judged, read
from headgate.filter.cel.engine import OutcomeKind, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, program
from headgate.filter.cel.unparse import string_literal
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.dialects.cesql.dialect import Translation, translate
from headgate.filter.dialects.cesql.values import Type
from headgate_api.event.attributes import OPTIONAL_ATTRIBUTES, REQUIRED_ATTRIBUTES
from headgate_api.event.model import Event

_Value = str | int | bool
_FULL: Final[Mapping[str, _Value]] = {
    "specversion": "1.0",
    "id": "full-event",
    "source": "http://example.com/source",
    "type": "com.example.FullEvent",
    "subject": "topic",
    "time": "2020-03-21T12:34:56.78Z",
    "dataschema": "http://example.com/schema",
    "datacontenttype": "text/json",
    "exbool": True,
    "exint": 42,
    "exstring": "exstring",
}
"""The event of a case that brings none."""
_REFUSED: Final = {"parse", "missingFunction"}
"""Errors that are known before there is an event: the filter is refused."""


class CesqlCase(msgspec.Struct):
    """A line of the file."""

    file: str
    name: str | int | bool
    index: int
    expression: _Value
    result: _Value
    error: str | None = None
    event: dict[str, _Value] | None = None
    overrides: dict[str, _Value] = msgspec.field(default_factory=dict, name="eventOverrides")


def run(lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of the cases."""
    for case in read(lines, CesqlCase):
        yield judged(f"{case.file}/{case.index}: {case.name}", _fault(case))


def _fault(case: CesqlCase) -> str:
    try:
        found = translate(str(case.expression))
    except FilterError as error:
        return "" if case.error in _REFUSED and case.result is False else f"refused: {error.message}"
    view, fails = EventView(_event(case)), case.error is not None
    outcome = _is_value(found.exact, case.result, view)
    if (outcome is OutcomeKind.ERROR) != fails:
        return "an error" if outcome is OutcomeKind.ERROR else f"no error instead of {case.error}"
    if fails:
        beside = (_is_value(cel, case.result, view) for cel in found.otherwise)
        outcome = next((kind for kind in beside if kind is not OutcomeKind.ERROR), OutcomeKind.ERROR)
    if outcome is not OutcomeKind.TRUE:
        return f"another value than {case.result!r}"
    if found.type is Type.BOOLEAN:
        return _as_filter(found, view, wanted=case.result is True and not fails)
    return ""


def _event(case: CesqlCase) -> Event:
    attributes = {**(case.event or _FULL), **case.overrides}
    required = {name: str(attributes.pop(name)) for name in REQUIRED_ATTRIBUTES}
    optional = {name: str(attributes.pop(name)) for name in OPTIONAL_ATTRIBUTES if name in attributes}
    return msgspec.structs.replace(Event(**required, extensions=attributes), **optional)  # type: ignore[arg-type]


def _is_value(cel: str, value: _Value, view: EventView) -> OutcomeKind:
    """Whether the CEL text has this value by cel-cpp, type included."""
    written = string_literal(value) if isinstance(value, str) else json.dumps(value)
    expression = f"[dyn({cel})].exists(v, type(v) == type({written}) && v == {written})"
    return compile_expression(expression).evaluate(view.activation).kind


def _as_filter(found: Translation, view: EventView, *, wanted: bool) -> str:
    """As a filter it wants an event when the value is true without an error, before and after it is rewritten."""
    for cel in (found.cel, compile_cel(found.cel).cel):
        if (program(cel).evaluate_view(view).kind is OutcomeKind.TRUE) != wanted:
            return f"as a filter not {wanted}: {cel}"
    return ""
