"""Selectors of strict JMS against cases of RabbitMQ, ActiveMQ and Qpid.

A selector is unknown where neither it nor its negation selects. A case whose source only says "no match" (`folded`) may
be false or unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from headgate.conformance.cases import CaseStatus, Result, compared, read
from headgate.filter.cel.engine import Activation, OutcomeKind, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.compiler import compile_filter
from headgate.limits import FILTER_CANONICAL_CHARACTERS_MAX

_ATTRIBUTES: Final = {"JMSType": "type", "JMSMessageID": "id"}
_REQUIRED: Final[dict[str, object]] = {"id": "1", "source": "/conformance", "specversion": "1.0", "type": "case"}


class SelectorCase(msgspec.Struct):
    """A line of the file; a value is an object of its type and its text."""

    source: str
    name: str
    selector: str
    properties: dict[str, dict[str, str | bool | None]]
    headers: dict[str, dict[str, str | bool | None]]
    expect: Literal["true", "false", "unknown", "invalid"]
    dialect_specific: object = None
    folded: bool = False
    note: str = ""


def run(lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of the cases."""
    for case in read(lines, SelectorCase):
        id = f"{case.source}/{case.name}"
        if case.dialect_specific:
            yield Result(id, CaseStatus.SKIPPED, case.note or "binds its source alone")
            continue
        found = _outcome(case)
        is_folded = case.folded and case.expect == "false" and found == "unknown"
        yield compared(id, case.expect if is_folded else found, case.expect)


def _outcome(case: SelectorCase) -> str:
    event = Activation({"ce": _REQUIRED | attributes(case.headers) | attributes(case.properties)})
    try:
        selects, rejects = (_holds(text, event) for text in (case.selector, f"NOT ({case.selector})"))
    except FilterError as error:
        return "invalid" if not error.limit else f"over a limit: {error.message}"
    if selects and rejects:
        return "both true and false"
    return "true" if selects else "false" if rejects else "unknown"


def attributes(typed: dict[str, dict[str, str | bool | None]]) -> dict[str, object]:
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
