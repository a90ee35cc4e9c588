"""CEL text by its tokens: what can be known of it without a parser, or must be before one sees it."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Final

from headgate_api.limits import FILTER_CONSTANTS_A_NODE, FILTERS_CACHED_MAX

TEXTS: Final = (
    r"""//[^\n]*|[bB]?[rR](?:"{3}.*?"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')|"{3}(?:[^\\]|\\.)*?"{3}|'{3}(?:[^\\]|\\.)*?'{3}"""
    r"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
)
"""Comments and texts as a whole."""

# --- parentheses ----------------------------------------------------------------------------------

_NESTED: Final = re.compile(r"\(\s*\(")
_TOKENS: Final = re.compile(rf"""{TEXTS}|`[^`]*`|[^\s"'`/()]+|[()"'`/]""", re.DOTALL)
"""Texts, comments and names as a whole, and what else is no white space."""


def without_nested_parentheses(text: str) -> str:
    """The same expression, with blanks for each pair of parentheses that stands directly in another one.

    For cel-cpp's parser each pair is two levels of recursion. As long as `text`, so that every offset stays what it is.
    """
    if _NESTED.search(text) is None:
        return text
    kept = list(text)
    open_: list[tuple[int, int]] = []  # where it stands, and which token it is
    last = (-1, -1, -1)  # of the pair that was closed last: its tokens, and where it closes
    where: dict[int, int] = {}
    number = 0
    for token in _TOKENS.finditer(text):
        if token[0].startswith("//"):
            continue
        number += 1
        if token[0] == "(":
            open_.append((token.start(), number))
        elif token[0] == ")" and open_:
            start, first = open_.pop()
            where[first] = start
            if last[0] == first + 1 and last[1] == number - 1:
                kept[where[last[0]]] = kept[last[2]] = " "
            last = (first, number, token.start())
    return "".join(kept)


# --- nodes ----------------------------------------------------------------------------------------

_SIGNS: Final = frozenset({"==", "!=", "<=", ">=", "<", ">", "&&", "||", "+", "*", "/", "%", "?", ".", "[", "{"})
_COUNTED: Final = re.compile(rf"{TEXTS}|[0-9][0-9.]*|[=!<>]=|&&|\|\||[-+*/%<>?.,\[{{]", re.DOTALL)
"""Texts, comments and numbers as a whole, and signs."""


def nodes_min(text: str) -> int:
    """Nodes that the tree of a text has at least: a sign is one, a comma perhaps a constant."""
    tokens = Counter(found[0] for found in _COUNTED.finditer(text))
    return sum(tokens[sign] for sign in _SIGNS) + tokens[","] // FILTER_CONSTANTS_A_NODE


# --- names of attributes --------------------------------------------------------------------------

_STRING: Final = r"""[rR]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_NAMES: Final = re.compile(
    rf"""//[^\n]*|{'"' * 3}.*?{'"' * 3}|'{{3}}.*?'{{3}}"""
    rf"""|(?P<asked>{_STRING})\s+in\s+ce\b(?!\s*[.\[])|{_STRING}"""
    rf"""|(?<![\w.`])ce\s*(?:\.\s*(?:`(?P<quoted>[^`]*)`|(?P<field>[A-Za-z_]\w*))|\[\s*(?P<key>{_STRING})\s*\])""",
    re.DOTALL,
)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def names_in(text: str) -> tuple[str, ...]:
    """Names of attributes that a valid expression reads, each once, without a compiler; not those with escapes."""
    found = (_name(token) for token in _NAMES.finditer(text))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def _name(token: re.Match[str]) -> str | None:
    literal = token["asked"] or token["key"]
    if literal is not None:
        return None if "\\" in literal else literal.lstrip("rR")[1:-1]
    return token["quoted"] or token["field"]
