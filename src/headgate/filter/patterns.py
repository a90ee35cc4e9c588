"""Which plain conditions say what a regular expression says? Prefixes, suffixes, parts and lists of whole texts.

RE2 searches: without an anchor a pattern may stand anywhere. `.` is any character but a line feed. A pattern is read as
alternatives of (anchored?) text (anything?) ... pieces; whatever else it holds makes it cel-cpp's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headgate.filter.ast import And, Call, Compare, Comparison, Literal, LiteralKind, Node, Not, Or

ALTERNATIVES_MAX: Final = 32
"""Texts that a pattern may be written out as."""
_SPECIAL: Final = frozenset("\\.+*?()[]{}|^$")
_ESCAPED: Final = frozenset("\\.+*?()[]{}|^$/-_@:,;#&=!\"'<>%~` ")
_FOLDS_BEYOND_ASCII: Final = frozenset("kKsS")
"""With `(?i)` they also stand for U+212A and U+017F."""
_PLAIN: Final = r"((?:[^\\.+*?()\[\]{}|^$]|\\[\\.+*?()\[\]{}|^$])*)"
_LIKE: Final = re.compile(rf"\^{_PLAIN}((?:\(\?s:\.\*?\))+){_PLAIN}\$")
"""What becomes of LIKE: text, wildcards for one or any number of characters of all kinds, text."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """`.*` or `.+` or `.`: at least `least` characters, none a line feed; `bounded`: and no more."""

    least: int
    bounded: bool = False


_Piece = str | _Gap
_Sequence = tuple[_Piece, ...]


class _Unsaid(Exception):
    """The pattern holds something that only a regular expression can say."""


def conditions_of(subject: Node, pattern: str) -> Node | None:
    """`subject.matches(pattern)` in other words, exact where `subject` is a string; None when there are none.

    For any other value the regular expression is an error, and the words may be false.
    """
    if (found := _LIKE.fullmatch(pattern)) is not None:
        return _like(subject, *(re.sub(r"\\(.)", r"\1", text) for text in found.groups()))
    fold = pattern.startswith("(?i)")
    if fold:
        pattern = pattern[4:]
        if not pattern.isascii() or any(character in _FOLDS_BEYOND_ASCII for character in pattern):
            return None
        subject = Call("lowerAscii", subject, ())
    try:
        alternatives = _Reader(pattern).alternatives()
        parts = [_condition(subject, one, fold=fold) for one in alternatives]
    except _Unsaid:
        return None
    return parts[0] if len(parts) == 1 else Or(tuple(parts))


def _like(subject: Node, first: str, wildcards: str, last: str) -> Node:
    """The ends, and the length: with it the ends cannot overlap."""
    length = len(first) + len(last) + wildcards.count("(?s:.)")
    comparison = Comparison.GE if "(?s:.*)" in wildcards else Comparison.EQ
    ends = [_method(subject, "startsWith", first)] if first or not last else []
    ends += [_method(subject, "endsWith", last)] if last else []
    return And((*ends, _sized(subject, comparison, length)))


@dataclass(frozen=True, slots=True)
class _Alternative:
    start: bool
    pieces: _Sequence
    end: bool


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def alternatives(self) -> list[_Alternative]:
        found: list[_Alternative] = []
        while True:
            start = self._anchor("^")
            sequences = self._sequences()
            end = self._anchor("$")
            found += [_Alternative(start, sequence, end) for sequence in sequences]
            if len(found) > ALTERNATIVES_MAX:
                raise _Unsaid
            if not self._peek():
                return found
            if self._take() != "|":
                raise _Unsaid

    def _anchor(self, sign: str) -> bool:
        if self._peek() == sign:
            self._take()
            return True
        return False

    def _sequences(self) -> list[_Sequence]:
        """Up to an anchor, a bar or the end of a group: the texts it may stand for."""
        found: list[_Sequence] = [()]
        while (sign := self._peek()) and sign not in "|)^$":
            pieces = self._repeated(self._piece())
            found = [_joined(before, piece) for before in found for piece in pieces]
            if len(found) > ALTERNATIVES_MAX:
                raise _Unsaid
        return found

    def _piece(self) -> list[_Sequence]:
        sign = self._take()
        match sign:
            case "\\":
                escaped = self._take() if self._peek() else ""
                if escaped not in _ESCAPED:
                    raise _Unsaid
                return [(escaped,)]
            case "[":
                return [(character,) for character in self._class()]
            case "(":
                return self._group()
            case ".":
                return [(_Gap(1, bounded=True),)]
            case _ if sign in _SPECIAL:
                raise _Unsaid
            case _:
                return [(sign,)]

    def _class(self) -> list[str]:
        """`[abc]`, without ranges and classes of classes."""
        characters: list[str] = []
        while (sign := self._take() if self._peek() else "") != "]":
            if sign == "\\":
                sign = self._take() if self._peek() else ""
                if sign not in _ESCAPED:
                    raise _Unsaid
            elif sign in {"", "^", "[", "-"}:
                raise _Unsaid
            characters.append(sign)
        if not characters or len(characters) > ALTERNATIVES_MAX:
            raise _Unsaid
        return list(dict.fromkeys(characters))

    def _group(self) -> list[_Sequence]:
        if self._peek() == "?":
            self._take()
            if not self._anchor(":"):
                raise _Unsaid
        found = self._sequences()
        while self._anchor("|"):
            found += self._sequences()
        if not self._anchor(")") or len(found) > ALTERNATIVES_MAX:
            raise _Unsaid
        return found

    def _repeated(self, pieces: list[_Sequence]) -> list[_Sequence]:
        sign = self._peek()
        if not sign or sign not in "*+?{":
            return pieces
        self._take()
        if self._peek() in {"?", "+", "*"}:
            raise _Unsaid  # lazy, or repeated again
        gap = _Gap(1, bounded=True)
        if sign == "?":
            return [(), *pieces]
        if pieces == [(gap,)] and sign in "*+":
            return [(_Gap(0 if sign == "*" else 1),)]
        raise _Unsaid


def _joined(before: _Sequence, after: _Sequence) -> _Sequence:
    if before and after:
        match before[-1], after[0]:
            case str() as left, str() as right:
                return (*before[:-1], left + right, *after[1:])
            case _Gap() as left, _Gap() as right:
                both = _Gap(left.least + right.least, left.bounded and right.bounded)
                return (*before[:-1], both, *after[1:])
    return before + after


def _condition(subject: Node, alternative: _Alternative, *, fold: bool) -> Node:
    pieces = list(alternative.pieces)
    # An open end may stop before what asks for nothing.
    if not alternative.start and pieces and pieces[0] == _Gap(0):
        pieces.pop(0)
    if not alternative.end and pieces and pieces[-1] == _Gap(0):
        pieces.pop()
    texts = [_lower(piece) if fold and isinstance(piece, str) else piece for piece in pieces]
    match alternative.start, texts, alternative.end:
        case True, [], True:
            return _compare(subject, Comparison.EQ, "")
        case True, [str(text)], True:
            return _compare(subject, Comparison.EQ, text)
        case _, [], _:
            return _method(subject, "startsWith", "")
        case True, [str(text)], False:
            return _method(subject, "startsWith", text)
        case False, [str(text)], True:
            return _method(subject, "endsWith", text)
        case False, [str(text)], False:
            return _method(subject, "contains", text)
        case True, [str(text), _Gap(1)], False:
            no_line = Not(_method(subject, "startsWith", text + "\n"))
            return And((_method(subject, "startsWith", text), no_line, _longer(subject, len(text) + 1)))
        case True, [_Gap(0 | 1) as gap], True if not gap.bounded:
            return And((_one_line(subject), _longer(subject, gap.least)))
        case True, [str(text), _Gap() as gap], True if not gap.bounded and "\n" not in text:
            start = _method(subject, "startsWith", text)
            return And((start, _one_line(subject), _longer(subject, len(text) + gap.least)))
        case True, [_Gap() as gap, str(text)], True if not gap.bounded and "\n" not in text:
            end = _method(subject, "endsWith", text)
            return And((end, _one_line(subject), _longer(subject, len(text) + gap.least)))
        case True, [str(first), _Gap() as gap, str(last)], True if not gap.bounded and "\n" not in first + last:
            ends = (_method(subject, "startsWith", first), _method(subject, "endsWith", last))
            return And((*ends, _one_line(subject), _longer(subject, len(first) + gap.least + len(last))))
        case _:
            raise _Unsaid


def _lower(text: str) -> str:
    return "".join(character.lower() if character.isascii() else character for character in text)


def _method(subject: Node, function: str, text: str) -> Node:
    return Call(function, subject, (Literal(LiteralKind.STRING, text),))


def _compare(subject: Node, comparison: Comparison, text: str) -> Node:
    return Compare(comparison, subject, Literal(LiteralKind.STRING, text))


def _one_line(subject: Node) -> Node:
    return Not(_method(subject, "contains", "\n"))


def _longer(subject: Node, least: int) -> Node:
    return _sized(subject, Comparison.GE, least)


def _sized(subject: Node, comparison: Comparison, length: int) -> Node:
    if isinstance(subject, Call) and subject.function == "lowerAscii" and subject.target is not None:
        subject = subject.target  # as long
    return Compare(comparison, Call("size", None, (subject,)), Literal(LiteralKind.INT, length))
