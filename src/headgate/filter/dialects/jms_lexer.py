"""Which words is a selector made of? Tokens with their places; whatever is none is refused where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from headgate.filter.errors import FilterError, caret
from headgate.limits import FILTER_CHARACTERS_MAX, FILTER_WORDS_MAX

KEYWORDS: Final = frozenset({"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"})
"""Words that are no identifiers, in upper, lower or mixed case."""


class Kind(StrEnum):
    """What a token is."""

    KEYWORD = "keyword"
    IDENTIFIER = "identifier"
    NUMBER = "number"
    TEXT = "text"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """One word.

    Attributes:
        kind: What it is.
        text: A keyword in upper case, a string without its quotes, anything else as it was written.
        position: Offset in the selector, in code points from 0.
    """

    kind: Kind
    text: str
    position: int


_NAME: Final = r"(?:[^\W\d]|\$)[\w$]*"
_TOKEN: Final = re.compile(
    rf"""
      (?P<space>[ \t\f\r\n]+)
    | (?P<text>'(?:[^']|'')*')
    | (?P<number>0[xX][0-9a-fA-F]+[lL]?
        | (?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?
        | [0-9]+(?:[eE][+-]?[0-9]+[dDfF]?|[lLdDfF])?)
    | (?P<identifier>{_NAME}(?:\.{_NAME})*)
    | (?P<sign><>|<=|>=|[=<>+\-*/(),])
    """,
    re.VERBOSE,
)
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
_AFTER_NUMBER: Final = re.compile(r"[\w$.]")

_HINTS: Final = {
    '"': "a string stands in single quotes: 'text'",
    "'": "the string has no closing quote; a quote inside is written twice: 'it''s'",
    "!": "write <> for unequal and NOT for negation",
    "&": "conjunction is written with AND",
    "|": "disjunction is written with OR",
    "%": "selectors have no remainder; write it in `expression`, with CEL",
    "[": "a name stands without brackets",
}


def fault(text: str, position: int, reason: str, hint: str = "") -> FilterError:
    """The refusal of a selector at a place; `to_cel` of the dialect adds the field."""
    return FilterError(reason, position=position, caret=caret(text, position), hint=hint)


def tokens(text: str) -> Iterator[Token]:
    """The words of a selector, with one END after the last.

    Raises:
        FilterError: Too long, or something that is no word.
    """
    if len(text) > FILTER_CHARACTERS_MAX:
        raise FilterError(
            f"the selector has {len(text)} characters: the limit is {FILTER_CHARACTERS_MAX} (FILTER_CHARACTERS_MAX)",
            limit="FILTER_CHARACTERS_MAX",
        )
    position, words = 0, 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            shown = repr(text[position])
            raise fault(text, position, f"unexpected {shown}", _hint(text, position))
        group, word = str(found.lastgroup), found[0]
        words += group != "space"
        if words > FILTER_WORDS_MAX:
            over = fault(text, position, f"the selector has more than {FILTER_WORDS_MAX} words (FILTER_WORDS_MAX)")
            over.limit = "FILTER_WORDS_MAX"
            raise over
        if group == "number" and _AFTER_NUMBER.match(text, found.end()):
            raise fault(text, position, "a number runs into a name", "a name begins with a letter, _ or $")
        if group == "text":
            yield Token(Kind.TEXT, _unquoted(text, word, position), position)
        elif group == "identifier" and word.isascii() and word.upper() in KEYWORDS:
            yield Token(Kind.KEYWORD, word.upper(), position)
        elif group != "space":
            yield Token(Kind(group), word, position)
        position = found.end()
    yield Token(Kind.END, "", len(text))


def _unquoted(text: str, word: str, position: int) -> str:
    found = _NO_TEXT.search(word)
    if found is not None:
        what = "a NUL character" if found[0] == "\0" else "half of a surrogate pair"
        raise fault(text, position + found.start(), f"{what} in a string")
    return word[1:-1].replace("''", "'")


def _hint(text: str, position: int) -> str:
    return _HINTS.get(text[position], "")
