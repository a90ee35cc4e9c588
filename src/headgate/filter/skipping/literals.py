r"""Texts and numbers that must stand in an event's bytes for a filter to be true of it, to look for before decoding.

A *clause* is a set of texts of which at least one occurs, byte for byte in UTF-8, in every event that satisfies the
filter: in its attributes as the log's columns hold them, or in its JSON data. What JSON has to escape is never in one;
any character may be written as `\uXXXX`, so bytes that hold `\u` prove nothing where a clause or a bound is about
data. A *bound* is a range of numbers, of which in every such event a member of that name has one, somewhere in its JSON
data. Numbers are compared as doubles, which may take two for one but never turns an order around: ends are included.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.filter.cel.ast import (
    And,
    Call,
    Compare,
    Comparison,
    In,
    ListOf,
    Literal,
    Macro,
    MacroKind,
    Name,
    Node,
    Select,
    root_of,
)
from headgate.filter.cel.parsing import simplified_tree
from headgate.filter.cel.rewrite import Fold
from headgate_api.limits import FILTERS_CACHED_MAX, LITERAL_BYTES_MIN, LITERAL_CLAUSES_MAX, LITERAL_STRINGS_MAX

ESCAPE: Final = b"\\u"
"""In bytes that hold it, a clause about data proves nothing."""
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f\x7f]')
"""What our own encoder of extensions escapes."""
ESCAPED_IN_DATA: Final = re.compile(r'["\\/\x00-\x1f\x7f]')
"""What some producer's encoder escapes."""
_METHODS: Final = frozenset({"startsWith", "endsWith", "contains"})
_ROOTS: Final = frozenset({"ce", "data"})


@dataclass(frozen=True, slots=True)
class Clause:
    """One of these texts, UTF-8, occurs; `in_data`: the data is where it may have to be found."""

    texts: tuple[bytes, ...]
    in_data: bool

    def occurs(self, body: bytes) -> bool:
        return any(body.find(text) >= 0 for text in self.texts)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def literals(cel: str) -> tuple[Clause, ...]:
    """The clauses of an admitted filter, each a condition by itself; empty when nothing can be promised."""
    clauses = dict.fromkeys(_clauses(None)(simplified_tree(cel)))
    return tuple(sorted(clauses, key=_worth, reverse=True)[:LITERAL_CLAUSES_MAX])


def _worth(clause: Clause) -> tuple[int, int]:
    """Long texts are rare, and few are soon looked for."""
    return min(map(len, clause.texts)), -len(clause.texts)


def _clauses(element: str | None) -> Callable[[Node], list[Clause]]:
    """Clauses of a condition; `element` names an element of JSON data, inside a macro over it."""
    return Fold(lambda node: _of_leaf(node, element), lambda parts: list(itertools.chain(*parts)), _any_of)


def _of_leaf(node: Node, element: str | None) -> list[Clause]:
    match node:
        case Compare(Comparison.EQ, left, right):
            return _clause(_in_data(left, element), (right,))
        case In(left, ListOf(items)):
            return _clause(_in_data(left, element), items)
        case In(left, container) if _in_data(container, element):
            return _clause(True, (left,))  # an element of a list, or a member's name
        case Call(method, target, (text,)) if method in _METHODS and target is not None:
            return _clause(_in_data(target, element), (text,))
        case Macro(MacroKind.EXISTS, source, variable, predicate, None) if variable not in _ROOTS:
            inside = predicate is not None and (_in_data(source, element) or _are_values(source))
            return _clauses(variable)(predicate) if inside and predicate is not None else []
        case _:
            return []


def _in_data(node: Node, element: str | None) -> bool | None:
    """Whether a path leads into the data; None when it leads nowhere that texts can be looked for."""
    if isinstance(node, Select) and node.operand == Name("ce"):
        return None if node.field == "time" else False  # a time is compared as an instant, however it is written
    match root_of(node):
        case Name(name) if name in {"data", element}:
            return True
        case _:
            return None


def _are_values(node: Node) -> bool:
    """`json.values(data, [...])`: scalars somewhere in the data."""
    match node:
        case Call("values", Name("json"), (Name("data"), _)) | Call("json.values", None, (Name("data"), _)):
            return True
        case _:
            return False


def _clause(in_data: bool | None, items: Sequence[Node]) -> list[Clause]:
    if in_data is None or not 0 < len(items) <= LITERAL_STRINGS_MAX:
        return []
    escaped = ESCAPED_IN_DATA if in_data else _ESCAPED
    texts: dict[bytes, None] = {}
    for item in items:
        if not isinstance(item, Literal) or not isinstance(item.value, str):
            return []
        text = item.value.encode()
        if len(text) < LITERAL_BYTES_MIN or escaped.search(item.value):
            return []
        texts[text] = None
    return [Clause(tuple(texts), in_data)]


def _any_of(parts: list[list[Clause]]) -> list[Clause]:
    """A clause of every branch, joined; none when a branch promises nothing."""
    if not all(parts):
        return []
    best = [max(clauses, key=_worth) for clauses in parts]
    texts = tuple(dict.fromkeys(text for clause in best for text in clause.texts))
    return [Clause(texts, any(clause.in_data for clause in best))] if 0 < len(texts) <= LITERAL_STRINGS_MAX else []


# --- numbers --------------------------------------------------------------------------------------

_NUMBER: Final = rb'"[ \t\r\n]*:[ \t\r\n]*(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)'


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A member with a number from `least` to `most` occurs, both included."""

    name: bytes
    least: float
    most: float

    def occurs(self, data: bytes) -> bool:
        """Whether it does in these bytes, which may be the data of many events end to end."""
        # Three times as fast as Python's float, and rounds alike.
        found = pc.cast(pa.array(_pattern(self.name).findall(data), pa.utf8()), pa.float64())
        in_range = pc.and_(pc.greater_equal(found, self.least), pc.less_equal(found, self.most))
        return bool(in_range.true_count)

    def occurs_within(self, data: bytes, start: int, end: int) -> bool:
        """Whether it does in the bytes from `start` to `end`, which are one event's."""
        numbers = _pattern(self.name).finditer(data, start, end)
        return any(self.least <= float(found[1]) <= self.most for found in numbers)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def _pattern(name: bytes) -> re.Pattern[bytes]:
    return re.compile(b'"' + re.escape(name) + _NUMBER)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def number_ranges(cel: str) -> tuple[NumberRange, ...]:
    """The bounds of an admitted filter, each a condition by itself; empty when nothing can be promised."""
    found = dict.fromkeys(_ranges(simplified_tree(cel)))
    return tuple(found)[:LITERAL_CLAUSES_MAX]


def _ranges(node: Node) -> Iterator[NumberRange]:
    match node:
        case And(operands):
            for operand in operands:
                yield from _ranges(operand)
        case Compare(operator, left, right) if operator is not Comparison.NE:
            yield from _range(left, operator, right)
            yield from _range(right, operator.mirrored, left)
        case In(left, ListOf(items)):
            numbers = [number for item in items if (number := _number(item)) is not None]
            name = _member(left)
            if name is not None and numbers and len(numbers) == len(items):
                yield NumberRange(name, min(numbers), max(numbers))


def _range(path: Node, operator: Comparison, constant: Node) -> Iterator[NumberRange]:
    name, number = _member(path), _number(constant)
    if name is None or number is None:
        return
    most = number if operator in (Comparison.EQ, Comparison.LT, Comparison.LE) else math.inf
    least = number if operator in (Comparison.EQ, Comparison.GT, Comparison.GE) else -math.inf
    yield NumberRange(name, least, most)


def _member(node: Node) -> bytes | None:
    """The last name of a path into the data."""
    if not isinstance(node, Select) or ESCAPED_IN_DATA.search(node.field):
        return None
    return node.field.encode() if root_of(node) == Name("data") else None


def _number(node: Node) -> float | None:
    if not isinstance(node, Literal) or isinstance(node.value, bool) or not isinstance(node.value, int | float):
        return None
    number = float(node.value)
    return None if math.isnan(number) else number
