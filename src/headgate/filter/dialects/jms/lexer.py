"""The tokens of a selector (Jakarta Messaging 3.1, section 3.8.1.1)."""

from __future__ import annotations

import re
from typing import Final

from headgate.filter.dialects.sql_tokens import Lexicon

_NAME: Final = r"(?:[^\W\d]|\$)[\w$]*"
_NUMBER: Final = r"""
    (?:0[xX][0-9a-fA-F]+[lL]?
      | (?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?
      | [0-9]+(?:[eE][+-]?[0-9]+[dDfF]?|[lLdDfF])?)
"""

LEXICON: Final = Lexicon(
    what="selector",
    pattern=re.compile(
        rf"""
          (?P<space>[ \t\f\r\n]+)
        | (?P<text>'(?:[^']|'')*')
        | (?P<number>(?>{_NUMBER})(?![\w$.]))
        | (?P<fused>{_NUMBER})
        | (?P<name>{_NAME}(?:\.{_NAME})*)
        | (?P<sign><>|<=|>=|[=<>+\-*/(),])
        """,
        re.VERBOSE,
    ),
    keywords=frozenset({"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"}),
    unquoted=lambda word: word[1:-1].replace("''", "'"),
    hints={
        '"': "a string stands in single quotes: 'text'",
        "'": "the string has no closing quote; a quote inside is written twice: 'it''s'",
        "!": "write <> for unequal and NOT for negation",
        "&": "conjunction is written with AND",
        "|": "disjunction is written with OR",
        "%": "selectors have no remainder; write it in `expression`, with CEL",
        "[": "a name stands without brackets",
    },
)
