"""Event patterns against cases of Amazon EventBridge and event-ruler; a case's event is the whole tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from headgate.conformance.cases import Result, compared, read
from headgate.conformance.outcomes import outcome_text
from headgate.filter.cel.engine import Activation, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import decode_json
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.dialects.eventpattern.dialect import pattern_to_cel, whole_tree

KNOWN: Final = {
    "dot_joining_event": "a member whose own name has a dot is found when the pattern writes the dot as well, not"
    " through nested members: every level of nesting would double what has to be looked up",
}


class EventPatternCase(msgspec.Struct):
    """A line of the file; pattern and event stay text, because a decoder changes number literals."""

    name: str
    event: msgspec.Raw
    pattern: msgspec.Raw
    expect: Literal["match", "no_match", "invalid"]


def run(lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of the cases."""
    for case in read(lines, EventPatternCase):
        yield compared(case.name, _outcome(case), case.expect, KNOWN)


def _outcome(case: EventPatternCase) -> str:
    event = decode_json(bytes(case.event))
    if event is None:
        return "event that CEL cannot hold"
    try:
        text = pattern_to_cel(bytes(case.pattern).decode(), "pattern", whole_tree)
        compiled = compile_cel(text)
    except FilterError as error:
        return "invalid" if not error.limit or error.limit.startswith("PATTERN_") else f"over a limit: {error.message}"
    return outcome_text(compile_expression(compiled.cel).evaluate(Activation({"ce": {}, "data": event[0]})))
