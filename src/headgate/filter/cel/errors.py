"""Errors of filters: where the fault is, what was expected, and how to write it instead."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final

from headgate_api import limits
from headgate_api.errors import InvalidInputError

_CARET_CHARACTERS: Final = 100
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")


class FilterError(InvalidInputError):
    """A filter that Headgate does not accept. Nothing is ever matched by it: a filter never fails open."""

    code = "invalid-filter"
    http_status = 422

    def __init__(
        self,
        reason: str,
        *,
        field: str = "filter",
        position: int | None = None,
        caret: str = "",
        hint: str = "",
        limit: str = "",
    ) -> None:
        super().__init__(f"{field}: {reason}", hint=hint)
        self.reason = reason
        self.field = field  # path of the field inside the trigger, for instance `filter.attributes.type`
        self.position = position  # offset (code points, from 0) of the place in the expression's text; None without one
        self.caret = caret  # the offending line and, below it, a caret under the place; empty without one
        self.limit = limit  # name of the constant of `headgate_api.limits` that is exceeded; empty for another fault

    def at_field(self, field: str) -> FilterError:
        """The same fault, told of another field: who translates a dialect knows where its text came from."""
        return FilterError(
            self.reason, field=field, position=self.position, caret=self.caret, hint=self.hint, limit=self.limit
        )

    def at(self, text: str, position: int | None) -> FilterError:
        shown = "" if position is None else caret(text, position)
        return FilterError(
            self.reason, field=self.field, position=position, caret=shown, hint=self.hint, limit=self.limit
        )


class EvaluationError(InvalidInputError):
    """An expression has no value on its input, or not one that can be used."""

    code = "evaluation"


def over_limit(name: str, what: str, *, field: str = "filter.expression", maximum: int | None = None) -> FilterError:
    """The refusal of what is over the limit `name` of `headgate_api.limits`, or over `maximum` in its place."""
    maximum = getattr(limits, name) if maximum is None else maximum
    return FilterError(f"{what}: the limit is {maximum} ({name})", field=field, limit=name)


def unusable_character(text: str) -> tuple[str, int] | None:
    """The first character that cel-cpp does not take, and its offset; None without one."""
    found = _UNUSABLE.search(text)
    if found is None:
        return None
    return "a NUL character" if found[0] == "\0" else "half of a surrogate pair", found.start()


def caret(text: str, position: int) -> str:
    """The line of `text` that holds the code point at `position`, cut when it is long, and a caret under the place."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    shown_from = max(start, position - _CARET_CHARACTERS // 2)
    shown = text[shown_from : min(end, shown_from + _CARET_CHARACTERS)]
    printable = "".join(character if character.isprintable() else " " for character in shown)
    return f"{printable}\n{' ' * (position - shown_from)}^"


# --- messages -------------------------------------------------------------------------------------

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
_WORDS: Final = (
    (re.compile(r"token recognition error at: '([\"'].*)'"), r"the string \1 has no closing quote"),
    (re.compile(r"token recognition error at: '(.*?)\s*'"), r"unexpected '\1'"),
    (re.compile(r"\w+ input '<EOF>' expecting .*"), "the expression ends too early"),
    (re.compile(r"\w+ input '(.*)' expecting <EOF>"), r"unexpected '\1' behind a whole expression"),
    (
        re.compile(r"\w+ input '(.*)' expecting \{.*\}"),
        r"unexpected '\1': a name, a value or a condition should stand here",
    ),
    (re.compile(r"\w+ input '(.*)' expecting ('.*'|\w+)"), r"unexpected '\1': \2 should stand here"),
    (re.compile(r"missing ('.*'|\w+) at '<EOF>'"), r"\1 is missing at the end"),
    (re.compile(r"missing ('.*'|\w+) at ('.*')"), r"\1 is missing before \2"),
    (re.compile(r"no viable alternative at input '(.*)'"), r"unexpected '\1'"),
)
"""What the parser says, in plain words."""
_UNDECLARED: Final = re.compile(r"undeclared reference to '(.*)' \(in container '.*'\)")
_FUNCTIONS: Final = (
    *("all", "bool", "bytes", "charAt", "contains", "double", "duration", "dyn", "endsWith", "exists", "exists_one"),
    *("filter", "format", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours"),
    *("getMilliseconds", "getMinutes", "getMonth", "getSeconds", "has", "indexOf", "int", "join", "json.objects"),
    *("json.values", "lastIndexOf", "lowerAscii", "map", "match", "matches", "replace", "reverse", "size", "split"),
    *("startsWith", "string", "substring", "timestamp", "trim", "type", "uint", "upperAscii"),
)
_OF_OTHER_LANGUAGES: Final = {
    **dict.fromkeys(("len", "length", "count"), "size"),
    **dict.fromkeys(("lower", "tolower", "tolowercase", "lowercase"), "lowerAscii"),
    **dict.fromkeys(("upper", "toupper", "touppercase", "uppercase"), "upperAscii"),
    **dict.fromkeys(("like", "regex", "search", "test"), "matches"),
    **dict.fromkeys(("includes", "has_key"), "contains"),
    **dict.fromkeys(("any", "some"), "exists"),
    **dict.fromkeys(("strip",), "trim"),
}


def refusal(text: str, message: str) -> FilterError:
    """The refusal of an expression that cel-cpp did not compile, from its message."""
    if _RECURSION.search(message):
        return over_limit("FILTER_DEPTH_MAX", "the expression is nested too deeply")
    found = _DIAGNOSTIC.search(message)
    if found is None:
        return FilterError(plain(message), field="filter.expression")
    line, column, reason = int(found[1]), int(found[2]), " ".join(found[3].split())
    hint = next((hint for pattern, hint in _HINTS if pattern.search(message)), "")
    offset = _offset(text, line, column)
    reason = reason.removeprefix("Syntax error: ")
    if (undeclared := _UNDECLARED.fullmatch(reason)) is not None:
        reason, hint = _undeclared(undeclared[1], text, offset, hint)
    else:
        said = ((pattern.fullmatch(reason), words) for pattern, words in _WORDS)
        reason = next((found.expand(words) for found, words in said if found is not None), reason)
    return FilterError(reason, field="filter.expression", hint=hint).at(text, offset)


def _undeclared(name: str, text: str, offset: int | None, hint: str) -> tuple[str, str]:
    """Reason and hint for a name that there is not; a function's place is its name or its parenthesis."""
    called = re.search(rf"\b{re.escape(name)}\s*\(", text if offset is None else text[max(0, offset - len(name) - 1) :])
    if called is None:
        return f"there is no name {name}", hint
    if name in _FUNCTIONS:
        return (
            f"the function {name} does not take these arguments",
            "look at their number, and at what stands before it",
        )
    lowered = {function.lower(): function for function in _FUNCTIONS}
    near = get_close_matches(name.lower(), lowered, n=1)
    meant = _OF_OTHER_LANGUAGES.get(name.lower()) or (lowered[near[0]] if near else "")
    return f"there is no function {name}", f"did you mean {meant}?" if meant else "the functions are those of CEL"


def _offset(text: str, line: int, column: int) -> int | None:
    lines = text.split("\n")
    if not 1 <= line <= len(lines) or column < 1:
        return None
    return min(sum(len(before) + 1 for before in lines[: line - 1]) + column - 1, len(text))


def plain(message: str) -> str:
    """The first line of a message without its status."""
    first = _STATUS.sub("", message.strip().split("\n")[0])
    return first or "evaluation failed"
