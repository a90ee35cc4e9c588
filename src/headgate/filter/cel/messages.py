"""cel-cpp's messages, as refusals with a place and a hint, or as one plain line."""

from __future__ import annotations

import re
from typing import Final

from headgate.filter.cel.errors import FilterError, over_limit

_DIAGNOSTIC: Final = re.compile(
    r"ERROR: <input>:(-?\d+):(-?\d+): (.*?)(?=\n \||\nERROR: |\s*\[[A-Z_]+\]\s*$|\Z)", re.DOTALL
)
_STATUS: Final = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]\s*$")
_RECURSION: Final = re.compile(r"recursion (?:depth|limit)", re.IGNORECASE)
_HINTS: Final = (
    (re.compile(r"token recognition error at: '=[^=]"), "equality is written with =="),
    (re.compile(r"token recognition error at: '&[^&]"), "conjunction is written with &&"),
    (re.compile(r"token recognition error at: '\|[^|]"), "disjunction is written with ||"),
    (re.compile(r"(extraneous|mismatched) input '(and|AND)'"), "conjunction is written with &&"),
    (re.compile(r"(extraneous|mismatched) input '(or|OR)'"), "disjunction is written with ||"),
    (re.compile(r"undeclared reference to"), "attributes are read as ce.<name>, JSON data as data.<path>"),
    (re.compile(r"overload for .*type\("), "attributes are read as ce.<name>: ce.type, not type"),
    (re.compile(r"no matching overload"), "both sides must have the same type; dyn(x) defers the check to each event"),
    (re.compile(r"has\(\) argument must be a field selection"), "write has(ce.name) or has(data.path)"),
    (re.compile(r"no viable alternative at input '\.(null|true|false|in)"), 'write the name as an index: data["null"]'),
    (re.compile(r"invalid int literal"), "integers are 64 bits wide; append u for an unsigned one"),
)


def refusal(text: str, message: str) -> FilterError:
    """The refusal of an expression that cel-cpp did not compile, from its message."""
    if _RECURSION.search(message):
        return over_limit("FILTER_DEPTH_MAX", "the expression is nested too deeply")
    found = _DIAGNOSTIC.search(message)
    if found is None:
        return FilterError(plain(message), field="filter.expression")
    line, column, reason = int(found[1]), int(found[2]), " ".join(found[3].split())
    hint = next((hint for pattern, hint in _HINTS if pattern.search(message)), "")
    fault = FilterError(reason.removeprefix("Syntax error: "), field="filter.expression", hint=hint)
    return fault.at(text, _offset(text, line, column))


def _offset(text: str, line: int, column: int) -> int | None:
    lines = text.split("\n")
    if not 1 <= line <= len(lines) or column < 1:
        return None
    return min(sum(len(before) + 1 for before in lines[: line - 1]) + column - 1, len(text))


def plain(message: str) -> str:
    """The first line of a message without its status."""
    first = _STATUS.sub("", message.strip().split("\n")[0])
    return first or "evaluation failed"
