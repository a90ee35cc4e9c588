"""Patterns of whole texts with wildcards, in CEL: `startsWith`, `endsWith`, `contains` where they say it, else RE2.

`parse_pattern` reads SQL's LIKE: `%` stands for any text, `_` for one code point; an escape character before one of
them, or itself, takes their meaning away. `without_wildcards` reads those of a shell. Case counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Final, TypeAlias

from headgate.filter.cel.ast import And, Call, Compare, Comparison, Literal, LiteralKind, Name, Node, map_children
from headgate.filter.cel.build import literal, method
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.rewrite import is_path

_SPECIAL: Final = re.compile(r"[\\.+*?()\[\]{}|^$]")


class Wildcard(Enum):
    """What stands for other text."""

    ANY = auto()  # %
    ONE = auto()  # _


Pattern: TypeAlias = tuple[str | Wildcard, ...]
"""A pattern taken apart: plain texts (never empty, never two in a row) and wildcards (never two ANY in a row)."""


class PatternError(ValueError):
    """The escape character is misused; `position` is the code point of the pattern where."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def parse_pattern(text: str, escape: str | None) -> Pattern:
    """Takes a LIKE pattern apart; raises PatternError where the escape character is misused."""
    return pattern_of(_pieces(text, escape))


def pattern_of(pieces: Iterable[str | Wildcard]) -> Pattern:
    """A pattern of texts that are not empty and wildcards, as they come."""
    parts: list[str | Wildcard] = []
    for piece in pieces:
        if isinstance(piece, str) and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        elif piece is not Wildcard.ANY or not parts or parts[-1] is not Wildcard.ANY:
            parts.append(piece)
    return tuple(parts)


def _pieces(text: str, escape: str | None) -> Iterator[str | Wildcard]:
    written = {"%": Wildcard.ANY, "_": Wildcard.ONE}
    position = 0
    while position < len(text):
        character = text[position]
        if character == escape:
            position += 1
            if position == len(text):
                raise PatternError("the pattern ends with the escape character", position - 1)
            character = text[position]
            if character not in {"%", "_", escape}:
                raise PatternError(f"the escape character stands before {character!r}, which needs none", position - 1)
            yield character
        else:
            yield written.get(character, character)
        position += 1


def plain_text(pattern: Pattern) -> str | None:
    """The only text that the pattern matches; None when it has wildcards."""
    match pattern:
        case ():
            return ""
        case (str(text),):
            return text
        case _:
            return None


def like(value: Node, pattern: Pattern) -> Node:
    """Whether the string `value` is like the pattern; an error where `value` is no string."""
    match pattern:
        case ():
            return Compare(Comparison.EQ, value, literal(""))
        case (str(text),):
            return Compare(Comparison.EQ, value, literal(text))
        case (Wildcard.ANY,):
            return method(value, "startsWith", "")
        case (str(text), Wildcard.ANY):
            return method(value, "startsWith", text)
        case (Wildcard.ANY, str(text)):
            return method(value, "endsWith", text)
        case (Wildcard.ANY, str(text), Wildcard.ANY):
            return method(value, "contains", text)
        case (str(start), Wildcard.ANY, str(end)) if not overlap(start, end):
            return And((method(value, "startsWith", start), method(value, "endsWith", end)))
        case _:
            return method(value, "matches", regular_expression(pattern))


def overlap(start: str, end: str) -> bool:
    """Whether one text shorter than both together can begin with `start` and end with `end`."""
    return any(start[-length:] == end[:length] for length in range(1, min(len(start), len(end)) + 1))


def regular_expression(pattern: Pattern) -> str:
    """The pattern for RE2; it begins with `^` and any plain text, which an index can use."""
    written = {Wildcard.ANY: "(?s:.*)", Wildcard.ONE: "(?s:.)"}
    texts = (_SPECIAL.sub(r"\\\g<0>", part) if isinstance(part, str) else written[part] for part in pattern)
    return f"^{''.join(texts)}$"


# --- the wildcards of a shell ---------------------------------------------------------------------
# `match`, the wildcards of a shell in CEL: `ce.source.match("https://github.com*")`.
#
# `*` stands for any text, `/` and line feeds among it, `?` for one code point; `\` takes the meaning of the character
# after it away. The whole text must be as the pattern says, and upper and lower case differ. cel-cpp never sees the
# function: each call becomes `startsWith`, `endsWith`, `contains` or `matches` before it is evaluated.

WILDCARDS: Final = "match"
_PIECE: Final = re.compile(r"\\(.)|\\\Z|\*+|\?|[^\\*?]+", re.DOTALL)


class WildcardError(FilterError):
    """A call of `match` without a usable pattern."""

    def __init__(self, call: Call, reason: str, hint: str) -> None:
        super().__init__(reason, field="filter.expression", hint=hint)
        self.call = call


def without_wildcards(node: Node) -> Node:
    """The same in functions that cel-cpp has; WildcardError when a pattern is no constant, or ends within an escape."""
    match node:
        case Call(function, target, (pattern,)) if function == WILDCARDS and target is not None:
            return _in_cel(without_wildcards(target), _parsed(node, pattern))
        case _:
            return map_children(node, without_wildcards)


def _parsed(call: Call, pattern: Node) -> Pattern:
    match pattern:
        case Literal(LiteralKind.STRING, str(text)):
            return pattern_of(_wildcard_pieces(call, text))
        case _:
            hint = 'write it in quotes: ce.source.match("/shop/*")'
            raise WildcardError(call, "match() needs a constant pattern", hint)


def _wildcard_pieces(call: Call, text: str) -> Iterator[str | Wildcard]:
    for piece in _PIECE.finditer(text):
        match piece[0]:
            case "\\":
                hint = r"a backslash of the text is written \\, which in quotes is \\\\"
                raise WildcardError(call, "the pattern of match() ends with a lone backslash", hint)
            case "?":
                yield Wildcard.ONE
            case stars if stars.startswith("*"):
                yield Wildcard.ANY
            case plain:
                yield piece[1] or plain


def _in_cel(target: Node, pattern: Pattern) -> Node:
    # `like` may read its operand twice, which in a nest of conditionals would be 2^depth times; and it compares a text
    # without wildcards by `==`, which is no error where the operand is no string.
    once = not is_path(target) and not isinstance(target, Name)
    if once or plain_text(pattern) is not None:
        return method(target, "matches", regular_expression(pattern))
    return like(target, pattern)
