"""What filters say of one another and of themselves: which are equal, implied by another, never or always true. Pure.

A filter is not compared with every other one. Each row of a filter is found by its rarest comparison, so a filter meets
those alone that a row of it might lie in; beyond LINT_CANDIDATES_MAX of these, it is not compared any more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from headgate.filter.compile.plan import CompiledFilter, Constant, ConstantKind, Op, Operand
from headgate.filter.tools.algebra import Meaning, Row, Value
from headgate_api.limits import LINT_CANDIDATES_MAX


class Related(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is sure of a filter; others are by name."""

    equal: tuple[str, ...] = ()  # those that are true of the same events
    implied_by: tuple[str, ...] = ()  # some of those that it lies within, at most `LINT_CANDIDATES_MAX`
    never: bool = False  # no event makes it true
    always: bool = False  # every event does
    redundant: int = 0  # how many of its alternatives lie in others

    def __bool__(self) -> bool:
        return self != _NOTHING


_NOTHING: Final = Related()


class _Anchor(NamedTuple):
    """A comparison that a row is found by: EQ or STARTS with a constant, or any other one of the place."""

    operand: Operand
    op: Op | None = None
    kind: ConstantKind = ConstantKind.NONE
    constant: Constant = None


class FilterIndex:
    """Filters by name, found by what they compare."""

    def __init__(self, filters: Mapping[str, CompiledFilter]) -> None:
        self._filters = filters
        self._names: dict[str, list[str]] = defaultdict(list)
        """Of the filters with a CEL text."""
        self._meanings: dict[str, Meaning] = {}
        for name, one in filters.items():
            self._names[one.cel].append(name)
            if one.cel not in self._meanings:
                self._meanings[one.cel] = Meaning(one)
        rarity = Counter(
            anchor for one in self._meanings.values() for row in one.exact_rows for anchor in _anchors(row)
        )
        self._lengths: dict[Operand, set[int]] = defaultdict(set)
        """Of the prefixes that rows are found by."""
        self._found: dict[_Anchor | None, dict[str, None]] = defaultdict(dict)
        for cel, meaning in self._meanings.items():
            for row in meaning.exact_rows:
                rarest = min(_anchors(row), key=rarity.__getitem__, default=None)
                self._found[rarest][cel] = None
                if rarest is not None and rarest.op is Op.STARTS and isinstance(rarest.constant, str):
                    self._lengths[rarest.operand].add(len(rarest.constant))

    def of(self, name: str) -> Related:
        cel = self._filters[name].cel
        one = self._meanings[cel]
        if one.is_never:
            return Related(never=True)
        equal, wider = [*self._names[cel]], list[str]()
        for other in self._candidates(one):
            if one.implies(meaning := self._meanings[other]):
                (equal if meaning.implies(one) else wider).extend(self._names[other])
        return Related(
            equal=tuple(sorted(other for other in equal if other != name)),
            implied_by=tuple(sorted(wider)[:LINT_CANDIDATES_MAX]),
            always=one.is_always,
            redundant=len(one.redundant),
        )

    def _candidates(self, one: Meaning) -> Iterator[str]:
        seen = {one.cel}
        for anchor in (None, *self._ways_in(one.rows[0])):
            for other in self._found.get(anchor, ()):
                if other not in seen:
                    seen.add(other)
                    yield other
                    if len(seen) > LINT_CANDIDATES_MAX:
                        return

    def _ways_in(self, row: Row) -> Iterator[_Anchor]:
        """Every anchor of a row that may contain this one."""
        for operand, place in row.places.items():
            yield from self._ways_at(operand, place.values[0] if place.values else None, place.texts[Op.STARTS])
            for form, value in place.forms():
                yield from self._ways_at(form, value)
            for length in range(1, len(operand.path) + 1):  # that something is there
                yield _Anchor(Operand(operand.root, operand.path[:length]))

    def _ways_at(self, operand: Operand, value: Value | None, texts: Iterable[str] = ()) -> Iterator[_Anchor]:
        yield _Anchor(operand)
        if value is not None:
            kind, constant = value
            yield _Anchor(operand, Op.EQ, kind, constant)
            texts = [constant] if isinstance(constant, str) else []
        for text in texts:
            for length in self._lengths.get(operand, ()):
                if length <= len(text):
                    yield _Anchor(operand, Op.STARTS, ConstantKind.STRING, text[:length])


def _anchors(row: Row) -> Iterator[_Anchor]:
    """By what a row can be found: a row that lies in it has one of these ways in."""
    for operand, place in row.places.items():
        if place.values is not None and len(place.values) == 1:
            ((kind, constant),) = place.values
            yield _Anchor(operand, Op.EQ, kind, constant)
        elif starts := place.texts[Op.STARTS]:
            yield _Anchor(operand, Op.STARTS, ConstantKind.STRING, starts[0])
        else:
            yield _Anchor(operand)
