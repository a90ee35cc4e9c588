"""Which words is a CESQL expression made of? Tokens with their places; whatever is none is refused where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.filter.errors import FilterError, caret
from headgate.limits import FILTER_CHARACTERS_MAX, FILTER_WORDS_MAX

KEYWORDS: Final = frozenset({"AND", "EXISTS", "FALSE", "IN", "LIKE", "NOT", "OR", "TRUE", "XOR"})
"""Words that are no names, in upper, lower or mixed case."""


class Kind(StrEnum):
    """What a token is."""

    KEYWORD = "keyword"
    NAME = "name"
    INTEGER = "integer"
    TEXT = "text"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One word.

    Attributes:
        kind: What it is.
        text: A keyword in upper case, a string without its quotes, anything else as it was written.
        position: Offset in the expression, in code points from 0.
    """

    kind: Kind
    text: str
    position: int


_TOKEN: Final = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<word>[A-Za-z0-9_]+)
    | (?P<sign><>|!=|<=|>=|[=<>+\-*/%(),])
    """,
    re.VERBOSE | re.DOTALL,
)
_HINTS: Final = {
    "'": "the string has no closing quote; a quote inside is written \\'",
    '"': 'the string has no closing quote; a quote inside is written \\"',
    "!": "write != for unequal and NOT for negation",
    "&": "conjunction is written with AND",
    "|": "disjunction is written with OR",
    ".": "CESQL sees attributes and integers only; use `expression` to filter on data",
    "[": "a list after IN stands in parentheses",
    ";": "an expression is one condition",
}


def fault(text: str, position: int, reason: str, hint: str = "") -> FilterError:
    """The refusal of an expression at a place; the dialect adds the field."""
    return FilterError(reason, position=position, caret=caret(text, position), hint=hint)


def tokens(text: str) -> Iterator[Token]:
    """The words of an expression, with one END after the last.

    Raises:
        FilterError: Too long, or something that is no word.
    """
    if len(text) > FILTER_CHARACTERS_MAX:
        what = f"the expression has {len(text)} characters"
        reason = f"{what}: the limit is {FILTER_CHARACTERS_MAX} (FILTER_CHARACTERS_MAX)"
        raise FilterError(reason, limit="FILTER_CHARACTERS_MAX")
    position, words = 0, 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            shown = ascii(text[position])
            raise fault(text, position, f"unexpected {shown}", _HINTS.get(text[position], ""))
        word = found[0]
        words += found.lastgroup != "space"
        if words > FILTER_WORDS_MAX:
            over = fault(text, position, f"the expression has more than {FILTER_WORDS_MAX} words (FILTER_WORDS_MAX)")
            over.limit = "FILTER_WORDS_MAX"
            raise over
        match found.lastgroup:
            case "text":
                yield Token(Kind.TEXT, _unquoted(text, word, position), position)
            case "word" if word.upper() in KEYWORDS:
                yield Token(Kind.KEYWORD, word.upper(), position)
            case "word":
                yield Token(Kind.INTEGER if word.isdecimal() else Kind.NAME, word, position)
            case "sign":
                yield Token(Kind.SIGN, word, position)
            case _:
                pass
        position = found.end()
    yield Token(Kind.END, "", len(text))


def _unquoted(text: str, word: str, position: int) -> str:
    """The string without its quotes; a backslash is itself unless it stands before the quote."""
    for offset, character in enumerate(word):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            what = "a NUL character" if character == "\0" else "half of a surrogate pair"
            raise fault(text, position + offset, f"{what} in a string")
    quote = word[0]
    return re.sub(r"\\(.)", lambda pair: quote if pair[1] == quote else pair[0], word[1:-1], flags=re.DOTALL)
