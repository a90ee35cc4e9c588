"""Promises derived from a filter's text about chunks of the log that it cannot match, for readers to skip by.

A chunk keeps a Bloom filter over its events' *filter values* and the range of their times. A filter that is only true
of few filter values (it *pins* them), or only within a time range, cannot match in a chunk that holds none of those.
Every promise is one-sided: MIGHT_MATCH promises nothing. An event on which the filter is an error does not satisfy it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from headgate.filter.cel.ast import (
    FALSE,
    PUBLISH_TIME,
    Call,
    Compare,
    Comparison,
    Has,
    In,
    ListOf,
    Literal,
    LiteralKind,
    Name,
    Node,
    reads_publish_time,
)
from headgate.filter.cel.budget import check_limits
from headgate.filter.cel.build import attribute
from headgate.filter.cel.engine import Expression, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView
from headgate.filter.cel.parsing import simplified_tree, tree_of
from headgate.filter.cel.rewrite import Fold, resolve, whole_text
from headgate.filter.cel.unparse import is_plain_field
from headgate_api.event import rfc3339
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES, is_name
from headgate_api.event.http import canonical
from headgate_api.event.model import Event
from headgate_api.limits import FILTERS_CACHED_MAX, PRUNE_VALUES_MAX

FILTER_VALUE: Final = "ce.type"
"""What an event's filter value is unless its broker says otherwise."""


class ChunkMatch(StrEnum):
    """What a chunk can hold for a filter."""

    CANNOT_MATCH = "cannot"  # no event of the chunk satisfies the filter
    MIGHT_MATCH = "might"  # nothing is promised


class SkippedBy(StrEnum):
    """Which promise rules a chunk out."""

    OFFSET = "offset"  # none of its events is wanted
    TIME = "time"  # its events' times
    STORED = "stored"  # the time at which it was stored
    VALUE = "value"  # its events' filter values


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """What is known of a chunk before its body is read. Times are in microseconds since 1970 UTC."""

    first_offset: int
    next_offset: int
    time_range_us: tuple[int, int] | None  # smallest and largest event time; None when no event has a time
    publish_time_us: int  # of all its events
    unfiltered: bool  # whether it holds an event without a filter value
    may_hold: Callable[[frozenset[str]], bool]  # where it is False, no event has one of these filter values


@dataclass(frozen=True, slots=True)
class Pruning:
    """What an event must have for a filter to be true of it; None: it may be any.

    Times lie within a range, both ends included (None: open). An event without a time lies in none.
    """

    values: frozenset[str] | None = None  # its filter value is one of these; "" stands for an event without one
    time_range_us: tuple[int | None, int | None] | None = None
    published_us: tuple[int | None, int | None] | None = None

    def judge(self, chunk: ChunkSummary, offsets: range | None = None) -> ChunkMatch:
        """What `chunk` can hold; its filter values were made by the text that this pruning was derived for.

        `offsets` are the events that are wanted at all; None for all of them.
        """
        return ChunkMatch.MIGHT_MATCH if self.skipped_by(chunk, offsets) is None else ChunkMatch.CANNOT_MATCH

    def skipped_by(self, chunk: ChunkSummary, offsets: range | None = None) -> SkippedBy | None:
        """What rules `chunk` out, as `judge`; None where it might match."""
        if offsets is not None and (chunk.next_offset <= offsets.start or chunk.first_offset >= offsets.stop):
            return SkippedBy.OFFSET
        if self.time_range_us is not None and not _meet(self.time_range_us, chunk.time_range_us):
            return SkippedBy.TIME
        if self.published_us is not None and not _meet(self.published_us, (chunk.publish_time_us,) * 2):
            return SkippedBy.STORED
        if self.values is None or (chunk.unfiltered and self.match_unfiltered):
            return None
        wanted = self.values - {""}
        return None if wanted and chunk.may_hold(wanted) else SkippedBy.VALUE

    @property
    def match_unfiltered(self) -> bool:
        """Whether the filter may be true of an event without a filter value."""
        return self.values is None or "" in self.values


def _meet(wanted: tuple[int | None, int | None], found: tuple[int, int] | None) -> bool:
    low, high = wanted
    return found is not None and (low is None or low <= found[1]) and (high is None or found[0] <= high)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def pruning(cel: str, value: str = FILTER_VALUE) -> Pruning:
    """What an event must have for the filter `cel`, as admission took it or canonical; FilterError for no expression.

    `value` is CEL text whose value is an event's filter value where it is a string that is not empty.
    """
    tree = simplified_tree(cel)
    return Pruning(_pinned(tree, resolve(tree_of(value))), _range(tree, _TIME), _range(tree, _PUBLISHED))


# --- filter values --------------------------------------------------------------------------------------------------


_Strings = frozenset[str] | None


def _pinned(tree: Node, value: Node) -> _Strings:
    """Strings of which `value` is one wherever `tree` is true; None when there may be any number."""
    if isinstance(value, Literal):
        return frozenset({value.value}) if isinstance(value.value, str) else None
    found = _strings(value)(tree)
    match value:
        case Call("_+_", None, (left, right)) if found is None:
            heads, tails = _pinned(tree, left), _pinned(tree, right)
            if heads is None or tails is None or len(heads) * len(tails) > PRUNE_VALUES_MAX:
                return None
            return frozenset(head + tail for head in heads for tail in tails)
        case _:
            return found


def _strings(value: Node) -> Callable[[Node], _Strings]:
    """Strings of which `value` is one wherever a condition is true."""

    def leaf(node: Node) -> _Strings:
        match node:
            case Compare(Comparison.EQ, left, Literal(LiteralKind.STRING, str(text))) if left == value:
                return frozenset({text})
            case In(element, ListOf(items)) if element == value:
                texts = [item.value for item in items if isinstance(item, Literal) and isinstance(item.value, str)]
                # What is no string has no filter value, and how it is told apart is the writer's business.
                return frozenset(texts) if len(texts) == len(items) <= PRUNE_VALUES_MAX else None
            case Call("matches", target, (Literal(LiteralKind.STRING, str(pattern)),)) if target == value:
                whole = whole_text(pattern)
                return None if whole is None else frozenset({whole})
            case _:
                return frozenset() if node == FALSE else None

    return Fold(leaf, _common, _union)


def _common(parts: Iterable[_Strings]) -> _Strings:
    known = [part for part in parts if part is not None]
    return frozenset.intersection(*known) if known else None


def _union(parts: Iterable[_Strings]) -> _Strings:
    union: frozenset[str] = frozenset()
    for part in parts:
        if part is None or len(union := union | part) > PRUNE_VALUES_MAX:
            return None
    return union


# --- times ----------------------------------------------------------------------------------------------------------

_Range = tuple[float, float]
"""Microseconds from and to, both included; an open end is infinite."""
_TIME: Final = attribute("time")
_PUBLISHED: Final = Name(PUBLISH_TIME)
_ANY: Final[_Range] = (-math.inf, math.inf)
_EMPTY: Final[_Range] = (1, 0)


def _range(tree: Node, time: Node) -> tuple[int | None, int | None] | None:
    """The range of a time wherever `tree` is true; None when it may be any, and of `ce.time` when there may be none."""

    def leaf(node: Node) -> _Range | None:
        match node:
            case Compare(comparison, left, right) if left == time:
                return _bounded(comparison, right)
            case Compare(comparison, left, right) if right == time and comparison is not Comparison.NE:
                return _bounded(comparison.mirrored, left)
            case Has(Name("ce"), "time") if time == _TIME:
                return _ANY
            case _:
                return _EMPTY if node == FALSE else None

    found = Fold(leaf, _intersection, _hull)(tree)
    return None if found is None else (_end(found[0]), _end(found[1]))


def _end(micros: float) -> int | None:
    return None if math.isinf(micros) else int(micros)


def _bounded(comparison: Comparison, bound: Node) -> _Range:
    """The time is read, so there is one; chunks know microseconds, so the bounds are those around the instant."""
    match bound:
        case Call("timestamp", None, (Literal(LiteralKind.STRING, str(text)),)):
            instant = rfc3339.micros(text)
        case _:
            instant = None
    if instant is None:
        return _ANY
    match comparison:
        case Comparison.LT | Comparison.LE:
            return (-math.inf, instant)
        case Comparison.GT | Comparison.GE:
            return (instant, math.inf)
        case Comparison.EQ:
            return (instant, instant)
        case _:
            return _ANY


def _intersection(ranges: list[_Range | None]) -> _Range | None:
    known = [one for one in ranges if one is not None]
    return (max(low for low, _ in known), min(high for _, high in known)) if known else None


def _hull(ranges: list[_Range | None]) -> _Range | None:
    if None in ranges:
        return None
    known = [one for one in ranges if one is not None and one[0] <= one[1]]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else _EMPTY


# --- filter value ---------------------------------------------------------------------------------
# The filter value of an event: the one string that its chunk's Bloom filter holds, by its broker's rule.
#
# A rule is an attribute's name or CEL text. Its producer may give an event another one, in the extension `filtervalue`.

EXTENSION: Final = "filtervalue"
"""The extension by which a producer gives an event's filter value; empty: the event has none."""
DEFAULT: Final = "type"


@dataclass(frozen=True, slots=True)
class FilterValueRule:
    """How a broker's events get their filter values."""

    cel: str  # the rule as CEL text: what a filter must pin for `prune` to skip by it
    attribute: str  # the attribute that it reads; "" when it is an expression

    def of(self, event: Event) -> str | None:
        """The rule's value for an event; None without one: absent, empty, no string, or an error."""
        name = self.attribute
        if name in CONTEXT_ATTRIBUTES:
            return getattr(event, name) or None
        if name:
            value = event.extensions.get(name)
            return None if value is None or type(value) is dict else canonical(value) or None
        return _expression(self.cel).text(EventView(event).activation) or None


def filter_value_rule(text: str) -> FilterValueRule:
    """Reads a rule: an attribute's name, or CEL whose value is a string; FilterError for neither, or over a limit."""
    if is_name(text) and text != "data":
        return FilterValueRule(f"ce.{text}" if is_plain_field(text) else f'ce["{text}"]', text)
    expression = _expression(text)
    result = expression.result_type()
    if result not in {"STRING", "DYN"}:
        raise FilterError(
            f"a filter value is a string, this expression is of type {result.lower()}", hint="string(...) converts"
        )
    tree = expression.tree()
    if reads_publish_time(tree):
        raise FilterError(
            "a filter value cannot depend on publish_time: it is made before the event is stored",
            hint="readers skip chunks by publish_time anyway",
        )
    check_limits(tree)
    return FilterValueRule(text, "")


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def _expression(cel: str) -> Expression:
    return compile_expression(cel)
