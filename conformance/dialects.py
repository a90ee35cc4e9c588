"""Filters of other dialects against public cases: selectors (strict JMS), event patterns and tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from conformance.cases import Result, compared, read
from headgate.filter.cel.engine import Activation, FilterOutcome, OutcomeKind, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import decode_json
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.dialects.eventpattern.rules import Field
from headgate.filter.dialects.eventpattern.to_cel import pattern_to_cel
from headgate_api.limits import FILTER_CANONICAL_CHARACTERS_MAX
from headgate_conformance.broker import CaseStatus

KNOWN_PATTERNS: Final = {
    "dot_joining_event": "a member whose own name has a dot is found when the pattern writes the dot as well, not"
    " through nested members: every level of nesting would double what has to be looked up",
}
_ATTRIBUTES: Final = {"JMSType": "type", "JMSMessageID": "id"}
_REQUIRED: Final[dict[str, object]] = {"id": "1", "source": "/conformance", "specversion": "1.0", "type": "case"}


class SelectorCase(msgspec.Struct):
    """A line of RabbitMQ's, ActiveMQ's and Qpid's cases; a value is an object of its type and its text."""

    source: str
    name: str
    selector: str
    properties: dict[str, dict[str, str | bool | None]]
    headers: dict[str, dict[str, str | bool | None]]
    expect: Literal["true", "false", "unknown", "invalid"]
    dialect_specific: object = None
    folded: bool = False
    note: str = ""


def selectors(lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of selectors of strict JMS.

    A selector is unknown where neither it nor its negation selects. A case whose source only says "no match"
    (`folded`) may be false or unknown.
    """
    for case in read(lines, SelectorCase):
        id = f"{case.source}/{case.name}"
        if case.dialect_specific:
            yield Result(id, CaseStatus.SKIPPED, case.note or "binds its source alone")
            continue
        found = _selected(case)
        is_folded = case.folded and case.expect == "false" and found == "unknown"
        yield compared(id, case.expect if is_folded else found, case.expect)


def _selected(case: SelectorCase) -> str:
    event = Activation({"ce": _REQUIRED | _attributes(case.headers) | _attributes(case.properties)})
    try:
        selects, rejects = (_holds(text, event) for text in (case.selector, f"NOT ({case.selector})"))
    except FilterError as error:
        return "invalid" if not error.limit else f"over a limit: {error.message}"
    if selects and rejects:
        return "both true and false"
    return "true" if selects else "false" if rejects else "unknown"


def _attributes(typed: dict[str, dict[str, str | bool | None]]) -> dict[str, object]:
    """Properties or headers as attributes of an event; null is none."""
    found: dict[str, object] = {}
    for name, pair in typed.items():
        for kind, value in pair.items():
            if kind != "null":
                convert = {"int": int, "double": float, "string": str, "bool": bool}[kind]
                found[_ATTRIBUTES.get(name, name)] = convert(value)
    return found


def _holds(selector: str, event: Activation) -> bool:
    text = compile_filter({"jms": selector}).cel
    expression = compile_expression(text, characters_max=FILTER_CANONICAL_CHARACTERS_MAX)
    return expression.evaluate(event).kind is OutcomeKind.TRUE


class EventPatternCase(msgspec.Struct):
    """A line of EventBridge's and event-ruler's cases, whose event is the whole tree.

    Pattern and event stay text, because a decoder changes number literals.
    """

    name: str
    event: msgspec.Raw
    pattern: msgspec.Raw
    expect: Literal["match", "no_match", "invalid"]


def whole_tree(field: Field) -> tuple[str, ...]:
    """The tree is the JSON data: for events that are no CloudEvents, such as those of the conformance cases."""
    return ("data", *field.names)


def event_patterns(lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of event patterns."""
    for case in read(lines, EventPatternCase):
        yield compared(case.name, _matched(case), case.expect, KNOWN_PATTERNS)


def _matched(case: EventPatternCase) -> str:
    event = decode_json(bytes(case.event))
    if event is None:
        return "event that CEL cannot hold"
    try:
        text = pattern_to_cel(bytes(case.pattern).decode(), "pattern", whole_tree)
        compiled = compile_cel(text)
    except FilterError as error:
        return "invalid" if not error.limit or error.limit.startswith("PATTERN_") else f"over a limit: {error.message}"
    return _text(compile_expression(compiled.cel).evaluate(Activation({"ce": {}, "data": event[0]})))


class TagsCase(msgspec.Struct):
    """A line of Pulsar's pull request 8544: tags that a consumer asks for, and a message's properties."""

    name: str
    predicate: dict[str, str]
    properties: dict[str, str]
    expect: Literal["match", "no_match"]


def tags(lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of tags."""
    for case in read(lines, TagsCase):
        yield compared(case.name, _tagged(case), case.expect)


def _tagged(case: TagsCase) -> str:
    try:
        expression = compile_expression(compile_filter({"tags": case.predicate}).cel)
    except FilterError as error:
        return f"refused: {error.message}"
    return _text(expression.evaluate(Activation({"ce": case.properties})))


def _text(outcome: FilterOutcome) -> str:
    """A filter's value as files of cases write it; an error with its message."""
    match outcome.kind:
        case OutcomeKind.TRUE:
            return "match"
        case OutcomeKind.FALSE:
            return "no_match"
        case OutcomeKind.ERROR:
            return f"error: {outcome.message}"
