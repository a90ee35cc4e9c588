"""What cel-cpp says of an expression that is none, in our words, and what its writer probably meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from headgate.filter.cel.errors import FilterError, over_limit
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES

_DIAGNOSTIC: Final = re.compile(
    r"ERROR: <input>:(-?\d+):(-?\d+): (.*?)(?=\n \||\nERROR: |\s*\[[A-Z_]+\]\s*$|\Z)", re.DOTALL
)
_STATUS: Final = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]\s*$")
_RECURSION: Final = re.compile(r"recursion (?:depth|limit)", re.IGNORECASE)
_JOIN: Final = "conditions are joined by && and ||"
_HINTS: Final = (
    (re.compile(r"token recognition error at: '=~"), 'a regular expression is matched by ce.type.matches("...")'),
    (re.compile(r"token recognition error at: '=>"), "at least is written >="),
    (re.compile(r"token recognition error at: '=[^=]"), "equality is written with =="),
    (re.compile(r"token recognition error at: '&[^&]"), "conjunction is written with &&"),
    (re.compile(r"token recognition error at: '\|[^|]"), "disjunction is written with ||"),
    (re.compile(r"token recognition error at: '~"), 'a regular expression is matched by ce.type.matches("...")'),
    (
        re.compile("token recognition error at: '[\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb\u00b4`]"),
        "quotes are \" or '",
    ),
    (re.compile(r"token recognition error at: '\$"), "JSON data is read as data.<path>"),
    (re.compile(r"token recognition error at: ';"), f"a filter is one expression; {_JOIN}"),
    (re.compile(r"token recognition error at: '#"), "a comment begins with //"),
    (re.compile(r"token recognition error at: '\.\."), "one point stands between two names"),
    (re.compile(r"has\(\) argument must be a field selection"), "write has(ce.name) or has(data.path)"),
    (re.compile(r"no viable alternative at input '\.(null|true|false|in)"), 'write the name as an index: data["null"]'),
    (re.compile(r"invalid int literal"), "integers are 64 bits wide; append u for an unsigned one"),
)
_BEHIND: Final = {
    "and": "conjunction is written with &&",
    "or": "disjunction is written with ||",
    "like": 'write ce.type.match("a*"), with the wildcards * and ?',
    "is": "write x == null, or !has(x)",
    "between": "write x >= 1 && x <= 9",
    **dict.fromkeys(
        ("matches", "contains", "startswith", "endswith"), 'a function stands behind a point: x.matches("...")'
    ),
    "equals": "equality is written with ==",
    ",": "a list is written [1, 2], and numbers have no commas",
}
"""What stands behind a whole expression, in lower case."""
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
_NO_NAME: Final = "there is no name {}"
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
_CONSTANTS: Final = {
    **dict.fromkeys(("true", "yes"), "true"),
    **dict.fromkeys(("false", "no"), "false"),
    **dict.fromkeys(("none", "null", "nil", "undefined"), "null"),
}
"""As CEL writes what other languages call so, in lower case."""
_EVENT: Final = frozenset({"attributes", "cloudevent", "cloudevents", "context", "e", "event", "evt", "headers"})
"""What others call the event."""
_METHODS: Final = frozenset({"contains", "endsWith", "lowerAscii", "match", "matches", "startsWith", "upperAscii"})
_MACROS: Final = ("all", "exists_one", "exists", "filter", "map")
_OVERLOAD: Final = re.compile(r"found no matching overload for '(.*?)' applied to '\((.*)\)'")
_SYMBOL: Final = re.compile(r"_?(\S+?)_?")
_COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
_TYPES: Final = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration", "dyn": "value"}
_SAME: Final = "both sides must have the same type; dyn(x) defers the check to each event"


def refusal(text: str, message: str) -> FilterError:
    """The refusal of an expression that cel-cpp did not compile, from its message."""
    if _RECURSION.search(message):
        return over_limit("FILTER_DEPTH_MAX", "the expression is nested too deeply")
    found = _DIAGNOSTIC.search(message)
    if found is None:
        return FilterError(plain(message), field="filter.expression")
    line, column, reason = int(found[1]), int(found[2]), " ".join(found[3].split())
    offset, unknown = _offset(text, line, column), ""
    reason = reason.removeprefix("Syntax error: ")
    hint = next((hint for pattern, hint in _HINTS if pattern.search(reason)), "")
    if (undeclared := _UNDECLARED.fullmatch(reason)) is not None:
        reason, hint = _undeclared(undeclared[1], text, offset)
        unknown = undeclared[1] if reason == _NO_NAME.format(undeclared[1]) else ""
        if offset is not None and "." in undeclared[1]:  # cel-cpp means the last point of it
            begins = text.rfind(undeclared[1].partition(".")[0], 0, offset)
            offset = begins if begins >= 0 else offset
    elif (overload := _OVERLOAD.fullmatch(reason)) is not None:
        reason, hint = _overload(overload[1], _split(overload[2]))
    else:
        said = ((pattern.fullmatch(reason), words) for pattern, words in _WORDS)
        reason = next((found.expand(words) for found, words in said if found is not None), reason)
        reason, offset, hint = _of_syntax(reason, hint, text, offset)
    return FilterError(reason, field="filter.expression", hint=hint, unknown=unknown).at(text, offset)


def _of_syntax(reason: str, hint: str, text: str, offset: int | None) -> tuple[str, int | None, str]:
    """Reason, place and hint of what the parser does not take, by what stands there."""
    if offset is None or hint:
        return reason, offset, hint
    before, rest = text[:offset], text[offset:]
    if (negated := re.search(r"\b(not|NOT)\s+$", before)) is not None:
        return f"unexpected '{negated[1]}'", negated.start(), "negation is written with !"
    if (
        reason.endswith("has no closing quote")
        and (escape := re.search(r"\\[^abfnrtv\\?\"'`xXuU0-7]", rest)) is not None
    ):
        where = offset + escape.start()
        return f"{escape[0]} is no escape", where, f'write \\{escape[0]}, or r before the quotes: r"{escape[0]}"'
    if rest.startswith("`"):
        return "unexpected '`'", offset, "quotes are \" or '"
    if before.endswith("<") and rest.startswith(">"):
        return "unexpected '<>'", offset - 1, "inequality is written with !="
    if before.endswith("-") and rest.startswith(">"):
        return "unexpected '->'", offset - 1, "a point stands between two names: data.total"
    if reason.startswith("unexpected ',': ')'"):
        return reason, offset, 'a list is written ["a", "b"]'
    if reason.endswith("behind a whole expression"):
        word = re.match(r"\w+|.", rest)
        if word is not None and before[-1:].isdigit() and word[0].isalpha():
            return reason, offset, "numbers are written 100, 1.5 or 1e3, without units"
        if word is not None and before[-1:] in ("'", '"') and word[0][:1].isalnum():
            return reason, offset, f"a quote inside of a string is written \\{before[-1]}"
        if word is not None:
            hint = _BEHIND.get(word[0].lower(), "" if word[0] == ")" else _JOIN)
    return reason, offset, hint


def _overload(function: str, types: Sequence[str]) -> tuple[str, str]:
    """Reason and hint for values that a function or an operator does not take."""
    shown = [_a(_TYPES.get(type_, re.split(r"[(<]", type_)[0])) for type_ in types]
    if "type(" in "".join(types):
        return "type is a function of CEL, and no attribute", "attributes are read as ce.<name>: ce.type, not type"
    if function == "@in":
        return f"in looks into a list or a map, and not into {shown[-1]}", "a text has contains(): x.contains(y)"
    if function == "_[_]":
        return f"{shown[0]} is not read by [{shown[-1].split(' ')[-1]}]", 'data["name"] and data.list[0] are read so'
    if function == "_?_:_":
        return f"what stands before ? is true or false, and not {shown[0]}", "compare it with something"
    symbol = _SYMBOL.fullmatch(function) if "_" in function else None
    if symbol is None:
        return (
            f"the function {function} does not take {' and '.join(shown)}",
            "look at the number and the types of what it is given; dyn(x) defers the check to each event",
        )
    if symbol[1] in _COMPARISONS:
        return f"{shown[0]} and {shown[-1]} are not compared by {symbol[1]}", _SAME
    return f"{symbol[1]} does not take {' and '.join(shown)}", _SAME if len(shown) > 1 else "compare it with something"


def _split(types: str) -> list[str]:
    """The types of a message, which stand between commas that are in no parentheses."""
    found, depth = [""], 0
    for character in types:
        depth += (character in "(<") - (character in ")>")
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return [one.strip() for one in found]


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aei" else f"a {kind}"


def _undeclared(name: str, text: str, offset: int | None) -> tuple[str, str]:
    """Reason and hint for a name that there is not; a function's place is its name or its parenthesis."""
    begins = 0 if offset is None else max(0, offset - len(name) - 1)
    called = re.search(rf"\b{re.escape(name)}\s*\(", text[begins:])
    if called is None:
        return _NO_NAME.format(name), _meant(name, text)
    if name in _METHODS and "." not in text[: begins + called.start()].rstrip()[-1:]:
        return f"the function {name} stands behind what it is about", f"write x.{name}(...), and not {name}(x, ...)"
    if name in _FUNCTIONS:
        return (
            f"the function {name} does not take these arguments",
            "look at their number, and at what stands before it",
        )
    lowered = {function.lower(): function for function in _FUNCTIONS}
    near = get_close_matches(name.lower(), lowered, n=1)
    meant = _OF_OTHER_LANGUAGES.get(name.lower()) or (lowered[near[0]] if near else "")
    if name.lower() in ("now", "today", "current_timestamp"):
        return f"there is no function {name}", "the time at which an event was stored is publish_time"
    return f"there is no function {name}", f"did you mean {meant}?" if meant else "the functions are those of CEL"


def _meant(name: str, text: str) -> str:
    """What was probably meant by a name that there is not."""
    if (constant := _CONSTANTS.get(name.lower())) is not None:
        return f"did you mean {constant}?"
    first, _, rest = name.partition(".")
    if rest and first.lower() in _EVENT:
        return f"did you mean {'data' if rest.startswith('data') else 'ce'}.{rest.removeprefix('data.')}?"
    if first.lower() in _EVENT:
        return "attributes are read as ce.<name>, JSON data as data.<path>"
    escaped = re.escape(name)
    for macro in _MACROS:
        if (used := re.search(rf"(?<![.\w]){macro}\s*\(\s*([\w.]+)\s*,\s*{escaped}\s*,", text)) is not None:
            return f"write {used[1]}.{macro}({name}, ...)"
    if (used := re.search(rf"\.(\w+)\s*\(\s*{escaped}\s*,", text)) is not None and used[1] not in _MACROS:
        meant = {"every": "all", "select": "filter", "where": "filter"}.get(used[1], "exists")
        return f"did you mean .{meant}({name}, ...)?"
    near = get_close_matches(first.lower(), CONTEXT_ATTRIBUTES, n=1, cutoff=0.75)
    if near and not rest:
        return f"did you mean ce.{near[0]}?"
    return f'attributes are read as ce.<name>, JSON data as data.<path>; a text has quotes: "{name}"'


def _offset(text: str, line: int, column: int) -> int | None:
    lines = text.split("\n")
    if not 1 <= line <= len(lines) or column < 1:
        return None
    return min(sum(len(before) + 1 for before in lines[: line - 1]) + column - 1, len(text))


def plain(message: str) -> str:
    """The first line of a message without its status."""
    first = _STATUS.sub("", message.strip().split("\n")[0])
    return first or "evaluation failed"
