r"""The size of a regular expression's program inside RE2, estimated from its text without compiling it.

cel-cpp compiles a pattern at every call, in some 0.4 us an instruction, so the size counts more than the text's length:
`\pL` alone is some 3,000 instructions, `(a{100}){10}` a thousand. RE2 runs a pattern in linear time; where its lazily
built automaton gets too many states (several repeated character classes) each character costs a walk over the program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_UNICODE_CLASSES: Final = {
    **{"L": 1_300, "Ll": 1_000, "Lo": 1_000, "Lu": 1_000, "M": 650, "Mn": 650, "Mc": 400, "P": 400, "Po": 400},
    **{"S": 500, "So": 500, "N": 300, "Common": 450},
}
_UNICODE_CLASS: Final = 220
"""Of all other categories and scripts: the largest is 153, measured with RE2 of 2025; negated it is 30 more."""
_PERL_CLASS: Final = 6
_NEGATED_CLASS: Final = 12
_ANY: Final = 10
_FOLDED: Final = 3
"""Instructions of a letter whose case does not matter: the Kelvin sign is a k."""
_SIZE_MAX: Final = 10**9
_REPEAT: Final = re.compile(r"\{([0-9]{1,6})(,([0-9]{0,6}))?\}")
_UNICODE: Final = re.compile(r"\\[pP](\{[^}]*\}|.)", re.DOTALL)
_CLASS: Final = re.compile(r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\]", re.DOTALL)
_GROUP_START: Final = re.compile(r"\((?:\?(?:P?<[^>]*>|[a-zA-Z-]*:?))?")
_QUOTED: Final = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")


@dataclass(slots=True)
class RegexSize:
    """An estimate."""

    instructions: int = 0  # of RE2's program, about; rather too many than too few
    wide: int = 0  # characters that may be one of several, repetitions counted out: they multiply an automaton's states

    def add(self, other: RegexSize) -> None:
        self.instructions = min(self.instructions + other.instructions, _SIZE_MAX)
        self.wide = min(self.wide + other.wide, _SIZE_MAX)

    def times(self, count: int) -> RegexSize:
        return RegexSize(min(self.instructions * count + 1, _SIZE_MAX), min(self.wide * count, _SIZE_MAX))


def regex_size(pattern: str) -> RegexSize:
    """The size of a pattern, valid or not; linear in its length."""
    folded = _FOLDED if _IGNORES_CASE.search(pattern) else 1
    frames = [RegexSize()]
    last = RegexSize()
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        match character:
            case "(":
                found = _GROUP_START.match(pattern, position - 1)
                position = found.end() if found else position
                frames[-1].add(last)
                frames.append(RegexSize())
                last = RegexSize()
            case ")":
                frames[-1].add(last)
                last = frames.pop() if len(frames) > 1 else RegexSize()
                last.add(RegexSize(2))
            case "*" | "+" | "?":
                last.add(RegexSize(1))
            case "{" if found := _REPEAT.match(pattern, position - 1):
                position = found.end()
                last = last.times(_count(found))
            case "|":
                frames[-1].add(last)
                last = RegexSize(1, 1)
            case _:
                frames[-1].add(last)
                last, position = _one(pattern, position - 1, folded)
    while len(frames) > 1:
        frames[-1].add(last)
        last = frames.pop()
    frames[0].add(last)
    return frames[0]


def _count(found: re.Match[str]) -> int:
    low = int(found[1])
    if found[2] is None:
        return max(1, low)
    return max(1, int(found[3]) if found[3] else low + 1)


def _one(pattern: str, position: int, folded: int) -> tuple[RegexSize, int]:
    """The size of the one item at `position`, and where the next one stands."""
    character = pattern[position]
    if character == "[" and (found := _CLASS.match(pattern, position)):
        negated = _NEGATED_CLASS if found[0].startswith("[^") else 0
        unicode = sum(map(_unicode_class, _UNICODE.finditer(found[0])))
        ranges = max(1, len(found[0]) - 2 - 2 * found[0].count("-"))
        return RegexSize(negated + unicode + folded * ranges, 1), found.end()
    if character == ".":
        return RegexSize(_ANY, 1), position + 1
    if character == "\\":
        if found := _UNICODE.match(pattern, position):
            return RegexSize(_unicode_class(found), 1), found.end()
        if found := _QUOTED.match(pattern, position):
            return RegexSize(folded * len(found[1].encode())), found.end()
        return RegexSize(_PERL_CLASS, 1), position + 2
    return RegexSize(folded * len(character.encode())), position + 1


def _unicode_class(found: re.Match[str]) -> int:
    return _UNICODE_CLASSES.get(found[1].strip("{^}"), _UNICODE_CLASS)
