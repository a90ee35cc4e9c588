"""Removal of parentheses without effect: for cel-cpp's parser each is two levels of recursion."""

from __future__ import annotations

import re
from typing import Final

_NESTED: Final = re.compile(r"\(\s*\(")
_TOKENS: Final = re.compile(
    r"""//[^\n]*|[bB]?[rR](?:"{3}.*?"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')|"{3}(?:[^\\]|\\.)*?"{3}|'{3}(?:[^\\]|\\.)*?'{3}"""
    r"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`|[^\s"'`/()]+|[()"'`/]""",
    re.DOTALL,
)
"""Texts, comments and names as a whole, and what else is no white space."""


def without_nested_parentheses(text: str) -> str:
    """The same expression, with blanks for each pair of parentheses that stands directly in another one.

    As long as `text`, so that every offset stays what it is.
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
