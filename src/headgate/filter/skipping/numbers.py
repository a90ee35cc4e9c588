r"""Numbers that must stand in an event's data for a filter to be true of it: members and ranges to look for.

A *bound* is a condition by itself: in every event that satisfies the filter a member of that name has a number of that
range, somewhere in its JSON data. A reader looks for `"name": number` in the bytes of a whole chunk at once, at any
depth, and decodes nothing where none is in range.

Numbers are compared as doubles, which may take two for one but never turns an order around, so ranges include their
ends. As in `literals`, a name may be written with `\uXXXX`: bytes that hold `\u` prove nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.filter.cel.ast import And, Compare, Comparison, In, ListOf, Literal, Name, Node, Select, root_of
from headgate.filter.cel.parsing import simplified_tree
from headgate.filter.skipping.literals import ESCAPED_IN_DATA
from headgate.limits import FILTERS_CACHED_MAX, LITERAL_CLAUSES_MAX

_NUMBER: Final = rb'"[ \t\r\n]*:[ \t\r\n]*(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)'


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A member with a number from `least` to `most` occurs.

    Attributes:
        name: Of the member, UTF-8.
        least: Inclusive.
        most: Inclusive.
    """

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
    """The bounds of a filter, each a condition by itself; empty when nothing can be promised.

    Args:
        cel: CEL text as admission took it, or canonical.

    Raises:
        FilterError: It is no expression.
    """
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
