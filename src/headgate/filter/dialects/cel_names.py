"""Names of attributes that CEL text reads, found by its tokens: for advice, which must not take a compiler's time."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from headgate.limits import FILTERS_CACHED_MAX

_STRING: Final = r"""[rR]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_TOKENS: Final = re.compile(
    rf"""//[^\n]*|{'"' * 3}.*?{'"' * 3}|'{{3}}.*?'{{3}}"""
    rf"""|(?P<asked>{_STRING})\s+in\s+ce\b(?!\s*[.\[])|{_STRING}"""
    rf"""|(?<![\w.`])ce\s*(?:\.\s*(?:`(?P<quoted>[^`]*)`|(?P<field>[A-Za-z_]\w*))|\[\s*(?P<key>{_STRING})\s*\])""",
    re.DOTALL,
)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def names_in(text: str) -> tuple[str, ...]:
    """Names of the attributes that a valid expression reads, each once; those written with escapes are left out."""
    found = (_name(token) for token in _TOKENS.finditer(text))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def _name(token: re.Match[str]) -> str | None:
    literal = token["asked"] or token["key"]
    if literal is not None:
        return None if "\\" in literal else literal.lstrip("rR")[1:-1]
    return token["quoted"] or token["field"]
