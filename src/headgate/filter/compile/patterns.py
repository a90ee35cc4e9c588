"""Regular expressions as plain conditions: prefixes, suffixes, parts and lists of whole texts.

RE2 searches: without an anchor a pattern may stand anywhere. `.` is any character but a line feed, unless `(?s)` says
otherwise. A pattern is read as alternatives of texts and gaps between them; whatever else it holds makes it cel-cpp's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headgate.filter.cel.ast import And, Call, Compare, Comparison, Node, Not, Or
from headgate.filter.cel.build import LOWER_ASCII, call, joined, literal, method

ALTERNATIVES_MAX: Final = 32
"""Texts that a pattern may be written out as."""
_FLAGS: Final = re.compile(r"\(\?([is]{1,2})\)")
_SPECIAL: Final = frozenset("\\.+*?()[]{}|^$")
_ESCAPED: Final = frozenset("\\.+*?()[]{}|^$/-_@:,;#&=!\"'<>%~` ")
_FOLDS_BEYOND_ASCII: Final = frozenset("kKsS")
"""With `(?i)` they also stand for U+212A and U+017F."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """`.*` or `.+` or `.`: `least` characters or, unless `bounded`, more; `lines`: also line feeds, by `(?s)`."""

    least: int
    bounded: bool = False
    lines: bool = False


_Piece = str | _Gap
_Sequence = tuple[_Piece, ...]


class _Unsupported(Exception):
    """The pattern holds something that only a regular expression can say."""


def conditions_of(subject: Node, pattern: str) -> Node | None:
    """`subject.matches(pattern)` as plain conditions, exact where `subject` is a string; None when there are none.

    For any other value the regular expression is an error, and the conditions may be false.
    """
    flags = _FLAGS.match(pattern)
    fold, lines = (flag in flags[1] if flags is not None else False for flag in "is")
    pattern = pattern[flags.end() :] if flags is not None else pattern
    if fold:
        if not pattern.isascii() or any(character in _FOLDS_BEYOND_ASCII for character in pattern):
            return None
        subject = Call("lowerAscii", subject, ())
    try:
        alternatives = _Reader(pattern, lines=lines).alternatives()
        parts = [_condition(subject, one, fold=fold) for one in alternatives]
    except _Unsupported:
        return None
    return joined(Or, parts)


@dataclass(frozen=True, slots=True)
class _Alternative:
    start: bool
    pieces: _Sequence
    end: bool


class _Reader:
    def __init__(self, pattern: str, *, lines: bool) -> None:
        self._text = pattern
        self._at = 0
        self._lines = lines

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
                raise _Unsupported
            if not self._peek():
                return found
            if self._take() != "|":
                raise _Unsupported

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
                raise _Unsupported
        return found

    def _piece(self) -> list[_Sequence]:
        sign = self._take()
        match sign:
            case "\\":
                escaped = self._take() if self._peek() else ""
                if escaped not in _ESCAPED:
                    raise _Unsupported
                return [(escaped,)]
            case "[":
                return [(character,) for character in self._class()]
            case "(":
                return self._group()
            case ".":
                return [(_Gap(1, bounded=True, lines=self._lines),)]
            case _ if sign in _SPECIAL:
                raise _Unsupported
            case _:
                return [(sign,)]

    def _class(self) -> list[str]:
        """`[abc]`, without ranges and classes of classes."""
        characters: list[str] = []
        while (sign := self._take() if self._peek() else "") != "]":
            if sign == "\\":
                sign = self._take() if self._peek() else ""
                if sign not in _ESCAPED:
                    raise _Unsupported
            elif sign in {"", "^", "[", "-"}:
                raise _Unsupported
            characters.append(sign)
        if not characters or len(characters) > ALTERNATIVES_MAX:
            raise _Unsupported
        return list(dict.fromkeys(characters))

    def _group(self) -> list[_Sequence]:
        outside = self._lines
        if self._anchor("?"):
            self._lines |= self._anchor("s")
            if not self._anchor(":"):
                raise _Unsupported
        found = self._sequences()
        while self._anchor("|"):
            found += self._sequences()
        if not self._anchor(")") or len(found) > ALTERNATIVES_MAX:
            raise _Unsupported
        self._lines = outside
        return found

    def _repeated(self, pieces: list[_Sequence]) -> list[_Sequence]:
        sign = self._peek()
        if not sign or sign not in "*+?{":
            return pieces
        self._take()
        if self._peek() in {"?", "+", "*"}:
            raise _Unsupported  # lazy, or repeated again
        if sign == "?":
            return [(), *pieces]
        match pieces:
            case [(_Gap(1, True, lines),)] if sign in "*+":
                return [(_Gap(0 if sign == "*" else 1, lines=lines),)]
            case _:
                raise _Unsupported


def _joined(before: _Sequence, after: _Sequence) -> _Sequence:
    if before and after:
        match before[-1], after[0]:
            case str() as left, str() as right:
                return (*before[:-1], left + right, *after[1:])
            case _Gap() as left, _Gap() as right:
                if left.lines is not right.lines:
                    raise _Unsupported
                both = _Gap(left.least + right.least, left.bounded and right.bounded, left.lines)
                return (*before[:-1], both, *after[1:])
    return before + after


def _condition(subject: Node, alternative: _Alternative, *, fold: bool) -> Node:
    pieces = [
        piece.translate(LOWER_ASCII) if fold and isinstance(piece, str) else piece for piece in alternative.pieces
    ]
    # An open end may stop before what asks for nothing.
    if not alternative.start and pieces and pieces[0] in _NOTHING:
        pieces.pop(0)
    if not alternative.end and pieces and pieces[-1] in _NOTHING:
        pieces.pop()
    match alternative.start, pieces, alternative.end:
        case True, [], True:
            return Compare(Comparison.EQ, subject, literal(""))
        case True, [str(text)], True:
            return Compare(Comparison.EQ, subject, literal(text))
        case _, [], _:
            return method(subject, "startsWith", "")
        case True, [str(text)], False:
            return method(subject, "startsWith", text)
        case False, [str(text)], True:
            return method(subject, "endsWith", text)
        case False, [str(text)], False:
            return method(subject, "contains", text)
        case True, [str(text), _Gap(1, lines=False)], False:
            no_line = Not(method(subject, "startsWith", text + "\n"))
            return And((method(subject, "startsWith", text), no_line, _longer(subject, len(text) + 1)))
        case True, [*_], True:
            return _whole(subject, pieces)
        case _ if all(isinstance(piece, str) or piece.lines for piece in pieces):
            open_end = _Gap(0, lines=True)
            start = [] if alternative.start else [open_end]
            return _whole(subject, [*start, *pieces, *([] if alternative.end else [open_end])])
        case _:
            raise _Unsupported


_NOTHING: Final = (_Gap(0), _Gap(0, lines=True))


def _whole(subject: Node, pieces: list[_Piece]) -> Node:
    """From the first character to the last one: what stands at the ends, and what lies between."""
    parts: list[Node] = []
    if any(isinstance(piece, _Gap) and not piece.lines for piece in pieces):
        # Within one line all gaps are alike; in a text of several, only those of `(?s)` may hold a line feed.
        if any("\n" in piece if isinstance(piece, str) else piece.lines for piece in pieces):
            raise _Unsupported
        parts.append(Not(method(subject, "contains", "\n")))
    match pieces:
        case [_Gap() as gap]:
            parts.append(method(subject, "startsWith", ""))  # a list has a size, too
            parts.append(_longer(subject, gap.least))
            if gap.bounded:
                parts.append(Compare(Comparison.LE, _size(subject), literal(gap.least)))
        case [str(text), _Gap(0, False)]:
            parts.append(method(subject, "startsWith", text))
        case [_Gap(0, False), str(text)]:
            parts.append(method(subject, "endsWith", text))
        case [_Gap(0, False), str(text), _Gap(0, False)]:
            parts.append(method(subject, "contains", text))
        case _:
            if isinstance(pieces[0], str):
                parts.append(method(subject, "startsWith", pieces[0]))
            if isinstance(pieces[-1], str):
                parts.append(method(subject, "endsWith", pieces[-1]))
            parts.append(_between(subject, pieces))
    return joined(And, parts)


def _between(subject: Node, pieces: list[_Piece]) -> Node:
    """What stands between the ends. With one gap it is the length: with it the ends cannot overlap."""
    gaps = [piece for piece in pieces if isinstance(piece, _Gap)]
    if len(gaps) > 1:
        return method(subject, LIKE, "".join(map(_like, pieces)))
    length = gaps[0].least + sum(len(piece) for piece in pieces if isinstance(piece, str))
    comparison = Comparison.EQ if gaps[0].bounded else Comparison.GE
    return Compare(comparison, _size(subject), literal(length))


def _like(piece: _Piece) -> str:
    if isinstance(piece, str):
        return re.sub(r"([\\%_])", r"\\\1", piece)
    return "_" * piece.least + ("" if piece.bounded else "%")


LIKE: Final = "@like"
"""The method that stands for `Op.LIKE`; no filter can write it."""


def _longer(subject: Node, least: int) -> Node:
    return Compare(Comparison.GE, _size(subject), literal(least))


def _size(subject: Node) -> Node:
    if isinstance(subject, Call) and subject.function == "lowerAscii" and subject.target is not None:
        subject = subject.target  # as long
    return call("size", subject)
