"""Patterns of whole texts with wildcards, in CEL: `startsWith`, `endsWith`, `contains` where they say it, else RE2.

`parse_pattern` reads SQL's LIKE; `wildcards.py` reads those of a shell.

`%` stands for any text, `_` for one code point; an escape character before one of them, or before itself, takes their
meaning away. Upper and lower case differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from headgate.filter.cel.ast import And, Compare, Comparison, Node
from headgate.filter.cel.build import literal, method

_SPECIAL: Final = re.compile(r"[\\.+*?()\[\]{}|^$]")


class Wildcard(Enum):
    """What stands for other text."""

    ANY = auto()  # %
    ONE = auto()  # _


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern taken apart: plain texts (never empty, never two in a row) and wildcards (never two ANY in a row)."""

    parts: tuple[str | Wildcard, ...]


class PatternError(ValueError):
    """The escape character is misused; `position` is the code point of the pattern where."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def parse_pattern(text: str, escape: str | None) -> Pattern:
    """Takes a LIKE pattern apart.

    Args:
        text: The pattern.
        escape: One character, or None.

    Raises:
        PatternError: The escape character stands before something that needs none, or at the end.
    """
    return pattern_of(_pieces(text, escape))


def pattern_of(pieces: Iterable[str | Wildcard]) -> Pattern:
    """A pattern of texts that are not empty and wildcards, as they come."""
    parts: list[str | Wildcard] = []
    for piece in pieces:
        if isinstance(piece, str) and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        elif piece is not Wildcard.ANY or not parts or parts[-1] is not Wildcard.ANY:
            parts.append(piece)
    return Pattern(tuple(parts))


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
    match pattern.parts:
        case ():
            return ""
        case (str(text),):
            return text
        case _:
            return None


def like(value: Node, pattern: Pattern) -> Node:
    """Whether the string `value` is like the pattern; an error where `value` is no string."""
    match pattern.parts:
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
        case (str(start), Wildcard.ANY, str(end)) if not _overlap(start, end):
            return And((method(value, "startsWith", start), method(value, "endsWith", end)))
        case parts:
            return method(value, "matches", regular_expression(parts))


def _overlap(start: str, end: str) -> bool:
    """Whether one text shorter than both together can begin with `start` and end with `end`."""
    return any(start[-length:] == end[:length] for length in range(1, min(len(start), len(end)) + 1))


def regular_expression(parts: tuple[str | Wildcard, ...]) -> str:
    """The pattern for RE2; it begins with `^` and any plain text, which an index can use."""
    written = {Wildcard.ANY: "(?s:.*)", Wildcard.ONE: "(?s:.)"}
    texts = (_SPECIAL.sub(r"\\\g<0>", part) if isinstance(part, str) else written[part] for part in parts)
    return f"^{''.join(texts)}$"
