"""The tokens of CESQL (CloudEvents SQL 1.0, section 2.3)."""

from __future__ import annotations

import re
from typing import Final

from headgate.filter.dialects.sql_tokens import Lexicon


def _unquoted(word: str) -> str:
    """A backslash is itself unless it stands before the quote."""
    quote = word[0]
    return re.sub(r"\\(.)", lambda pair: quote if pair[1] == quote else pair[0], word[1:-1], flags=re.DOTALL)


LEXICON: Final = Lexicon(
    what="expression",
    pattern=re.compile(
        r"""
          (?P<space>[ \t\r\n]+)
        | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
        | (?P<number>[0-9]++(?![A-Za-z_]))
        | (?P<name>[A-Za-z0-9_]+)
        | (?P<sign><>|!=|<=|>=|[=<>+\-*/%(),])
        """,
        re.VERBOSE | re.DOTALL,
    ),
    keywords=frozenset({"AND", "EXISTS", "FALSE", "IN", "LIKE", "NOT", "OR", "TRUE", "XOR"}),
    unquoted=_unquoted,
    hints={
        "'": "the string has no closing quote; a quote inside is written \\'",
        '"': 'the string has no closing quote; a quote inside is written \\"',
        "!": "write != for unequal and NOT for negation",
        "&": "conjunction is written with AND",
        "|": "disjunction is written with OR",
        ".": "CESQL sees attributes and integers only; use `expression` to filter on data",
        "[": "a list after IN stands in parentheses",
        ";": "an expression is one condition",
    },
)
