"""CESQL's test suite: values and errors of the translation, computed by cel-cpp."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

import msgspec

from conformance.cases import Result, judged, read
from headgate.filter.cel.ast import FALSE, TRUE, Compare, Comparison, Conditional, Name, Node
from headgate.filter.cel.build import call, literal
from headgate.filter.cel.engine import OutcomeKind, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, program
from headgate.filter.cel.unparse import string_literal, unparse
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.dialects.cesql import parser as tree
from headgate.filter.dialects.cesql.parser import parse
from headgate.filter.dialects.cesql.to_cel import Translator
from headgate.filter.dialects.cesql.values import Aim, Type, arguments_of
from headgate_api.event.attributes import INT32_MAX, INT32_MIN, OPTIONAL_ATTRIBUTES, REQUIRED_ATTRIBUTES
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


# --- translation ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Translation:
    """An expression in CEL.

    `cel` is the filter: true exactly when CESQL's value is true and there is no error. Else it is false or an error,
    not always the same as `exact`.
    """

    cel: str
    exact: str  # CESQL's value, of any type, and a CEL error exactly when there is an error
    otherwise: tuple[str, ...]  # CESQL's value beside an error: that of the first of these that is no CEL error
    type: Type  # of the value, as far as it is known without an event


def _all_if_negative(arguments: tuple[Node, ...]) -> Node:
    return Conditional(Compare(Comparison.LT, arguments[1], literal(0)), arguments[0], literal(""))


def _most_if_least(arguments: tuple[Node, ...]) -> Node:
    is_least = Compare(Comparison.EQ, arguments[0], literal(INT32_MIN))
    return Conditional(is_least, literal(INT32_MAX), literal(0))


_BESIDE_ERROR: Final[Mapping[str, Callable[[tuple[Node, ...]], Node]]] = {
    **dict.fromkeys(("LEFT", "RIGHT"), _all_if_negative),
    "ABS": _most_if_least,
}
"""The value beside an error of the functions that have another one than zero (section 3.5)."""


def translate(text: str) -> Translation:
    """An expression in CEL, its value of any type; a FilterError has no field."""
    parsed = parse(text)
    translator = Translator(text)
    exact = translator.part(parsed)
    wanted = translator.part(parsed, Aim.TRUE)
    otherwise = tuple(map(unparse, _otherwise(parsed, translator)))
    return Translation(unparse(wanted.node), unparse(exact.node), otherwise, exact.type)


def _otherwise(parsed: tree.Tree, translator: Translator) -> Iterator[Node]:
    """The zero of the type that is known of the expression, but for a few operations (sections 3.2, 3.3, 3.5)."""
    match parsed:
        case tree.Constant():
            return
        case tree.Arithmetic() | tree.Minus():
            yield literal(0)
        case tree.Not(operand):
            # The cast of an Integer fails to false, which is then negated: so says the specification's test suite.
            part = translator.part(operand)
            if part.type is Type.INTEGER:
                yield TRUE
            elif part.type is Type.ANY:
                yield Compare(Comparison.EQ, call("type", part.node), Name("int"))
            yield FALSE
        case tree.Invocation(name, arguments, position):
            found = translator.signature(name, len(arguments), position)
            if name in _BESIDE_ERROR:
                cast = arguments_of(found, tuple(map(translator.part, arguments)))
                yield _BESIDE_ERROR[name](tuple(argument.node for argument in cast))
            yield {Type.STRING: literal(""), Type.INTEGER: literal(0)}.get(found.result, FALSE)
        case tree.Attribute() | tree.Exists() | tree.Comparison() | tree.Logic() | tree.Like() | tree.OneOf():
            yield FALSE
        case _:
            assert_never(parsed)
