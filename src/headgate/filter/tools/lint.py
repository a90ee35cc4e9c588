"""What filters say of one another and of themselves: which are equal, implied by another, never or always true.

A filter is not compared with every other one. Each row of a filter is found by its rarest comparison, so a filter meets
those alone that a row of it might lie in, and of those that one comparison finds LINT_CANDIDATES_MAX at most. When some
filters change, the others meet these alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from headgate.filter.compile.plan import CompiledFilter, Constant, ConstantKind, Form, Op, Root
from headgate.filter.tools.algebra import Meaning, Place, Row, Value
from headgate_api.limits import LINT_CANDIDATES_MAX


class Related(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is sure of a filter; others are by name, at most `LINT_CANDIDATES_MAX`."""

    equal: tuple[str, ...] = ()  # some of those that are true of the same events
    implied_by: tuple[str, ...] = ()  # some of those that it lies within
    never: bool = False  # no event makes it true
    always: bool = False  # every event does
    redundant: int = 0  # how many of its alternatives lie in others

    def __bool__(self) -> bool:
        return self != _NOTHING


_NOTHING: Final = Related()


class FilterIndex:
    """Filters by name, found by what they compare; `filters` are those of the last update."""

    def __init__(self, filters: Mapping[str, CompiledFilter]) -> None:
        self.filters: Mapping[str, CompiledFilter] = {}
        self._known: dict[str, _Filter] = {}
        """By CEL text."""
        self._rarity = Counter[_Anchor]()
        self._found: dict[_Anchor | None, dict[_Filter, None]] = {}
        self._places: _Places = {}
        self.update(filters)

    def of(self, name: str) -> Related:
        """What is sure of a filter; what it lies within is found out once."""
        one = self._known[self.filters[name].cel]
        if one.meaning.is_never:
            return Related(never=True)
        if not one.is_asked:
            one.is_asked = True
            one.redundant = len(one.meaning.redundant)
            for way in _ways_in(one.meaning.rows[0], self._places):
                one.meet(self._seen_from(way))
        equal, wider = one.names[: LINT_CANDIDATES_MAX + 1], list[str]()
        for other, is_equal in one.within.items():
            (equal if is_equal else wider).extend(other.names[: LINT_CANDIDATES_MAX + 1])
        return Related(
            equal=tuple(other for other in sorted(equal) if other != name)[:LINT_CANDIDATES_MAX],
            implied_by=tuple(sorted(wider)[:LINT_CANDIDATES_MAX]),
            always=one.meaning.is_always,
            redundant=one.redundant,
        )

    def update(self, filters: Mapping[str, CompiledFilter]) -> bool:
        """Puts other filters in the place of those before; whether any of them has changed."""
        gone, come, is_changed = self._take_up(filters)
        before: dict[_Anchor | None, tuple[_Filter, ...]] = {}
        """What was seen from where something has gone or come."""
        self._rarity -= Counter(anchor for one in gone for anchor in one.comparisons())
        self._rarity += Counter(anchor for one in come for anchor in one.comparisons())
        for one in gone:
            for anchor in one.anchors:
                before.setdefault(anchor, self._seen_from(anchor))
                del self._found[anchor][one]
                if not self._found[anchor]:
                    del self._found[anchor]
        for one in come:
            rarest = (min(_anchors(row), key=self._rarity.__getitem__, default=None) for row in one.meaning.exact_rows)
            one.anchors = tuple(dict.fromkeys(rarest))
            for anchor in one.anchors:
                before.setdefault(anchor, self._seen_from(anchor))
                self._found.setdefault(anchor, {})[one] = None
        self._places = _places_of(self._found)
        self._look_again(before)
        return is_changed

    def _take_up(self, filters: Mapping[str, CompiledFilter]) -> tuple[list[_Filter], list[_Filter], bool]:
        """Which filters no name has any more, which none had before, and whether any name has another one."""
        left, joined = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        for name, filter_ in self.filters.items():
            if filters.get(name) is not filter_:
                left[filter_.cel].add(name)
        for name, filter_ in filters.items():
            if self.filters.get(name) is not filter_:
                joined[filter_.cel].add(name)
        self.filters = dict(filters)
        gone, come, is_changed = list[_Filter](), list[_Filter](), False
        for cel in left | joined:
            old = self._known.pop(cel, None)
            names = sorted({*(old.names if old is not None else ())} - left[cel] | joined[cel])
            if old is not None and names and old.filter == filters[names[0]]:
                is_changed |= names != old.names
                self._known[cel], old.names = old, names
                continue
            is_changed = True
            if old is not None:
                gone.append(old)
            if names:
                new = self._known[cel] = _Filter(filters[names[0]], names)
                come.append(new)
        return gone, come, is_changed

    def _look_again(self, before: Mapping[_Anchor | None, tuple[_Filter, ...]]) -> None:
        """Filters meet what they see for the first time, and forget what they see no more."""
        asked = [one for one in self._known.values() if one.is_asked]
        if not asked:
            return
        changes: dict[_Anchor | None, tuple[list[_Filter], list[_Filter]]] = {}
        for anchor, old in before.items():
            new = self._seen_from(anchor)
            if new != old:
                changes[anchor] = [one for one in old if one not in new], [one for one in new if one not in old]
        places = _places_of(changes)
        for one in asked:
            for way in _ways_in(one.meaning.rows[0], places):
                if way in changes:
                    gone, come = changes[way]
                    one.forget(gone)
                    one.meet(come)

    def _seen_from(self, anchor: _Anchor | None) -> tuple[_Filter, ...]:
        return tuple(islice(self._found.get(anchor, ()), LINT_CANDIDATES_MAX))


class _Filter:
    """A filter that some names have, sorted; `anchors` are what its rows are found by.

    `within` are those that it lies in, as far as it has met them, and whether they are equal. Until somebody has asked
    for them (`is_asked`) it has met none.
    """

    __slots__ = ("anchors", "filter", "is_asked", "meaning", "names", "redundant", "within")

    def __init__(self, filter_: CompiledFilter, names: list[str]) -> None:
        self.filter = filter_
        self.names = names
        self.meaning = Meaning(filter_)
        self.anchors: tuple[_Anchor | None, ...] = ()
        self.is_asked = False
        self.redundant = 0
        self.within: dict[_Filter, bool] = {}

    def comparisons(self) -> Iterator[_Anchor]:
        for row in self.meaning.exact_rows:
            yield from _anchors(row)

    def meet(self, others: Iterable[_Filter]) -> None:
        for other in others:
            if other is not self and other not in self.within and self.meaning.implies(other.meaning):
                self.within[other] = other.meaning.implies(self.meaning)

    def forget(self, others: Iterable[_Filter]) -> None:
        for other in others:
            self.within.pop(other, None)


class _Anchor(NamedTuple):
    """A comparison that a row is found by: EQ or STARTS with a constant, or any other one of the place."""

    root: Root
    path: tuple[str, ...]
    form: Form = Form.VALUE
    op: Op | None = None
    kind: ConstantKind = ConstantKind.NONE
    constant: Constant = None


_Places = dict[tuple[Root, tuple[str, ...]], dict[Form, set[int]]]
"""Where something is found: the forms of each place, and the lengths of the prefixes there."""


def _places_of(anchors: Iterable[_Anchor | None]) -> _Places:
    places: _Places = {}
    for anchor in anchors:
        if anchor is not None:
            lengths = places.setdefault((anchor.root, anchor.path), {}).setdefault(anchor.form, set())
            if anchor.op is Op.STARTS and isinstance(anchor.constant, str):
                lengths.add(len(anchor.constant))
    return places


def _anchors(row: Row) -> Iterator[_Anchor]:
    """By what a row can be found: a row that lies in it has one of these ways in."""
    for at, place in row.places.items():
        if place.values is not None and len(place.values) == 1:
            ((kind, constant),) = place.values
            yield _Anchor(*at, Op.EQ, kind, constant)
        elif start := place.start:
            yield _Anchor(*at, Op.STARTS, ConstantKind.STRING, start)
        else:
            yield _Anchor(*at)


def _ways_in(row: Row, places: _Places) -> Iterator[_Anchor | None]:
    """Every anchor, of those at some places, of a row that may contain this one."""
    yield None
    for (root, path, own), place in row.places.items():
        for form, lengths in places.get((root, path), {}).items():
            if form is own:
                value = place.values[0] if place.values else None
                yield from _ways_at((root, path, form), value, place.start, lengths)
            else:
                for value in place.in_form(form):
                    yield from _ways_at((root, path, form), value, "", lengths)
        for length in range(1, len(path) + 1):  # that something is there
            if Form.VALUE in places.get((root, path[:length]), ()):
                yield _Anchor(root, path[:length])


def _ways_at(at: Place, value: Value | None, start: str, lengths: Iterable[int]) -> Iterator[_Anchor]:
    """Those at one place, of a value or of texts that begin so."""
    yield _Anchor(*at)
    if value is not None:
        kind, constant = value
        yield _Anchor(*at, Op.EQ, kind, constant)
        start = constant if isinstance(constant, str) else ""
    for length in lengths:
        if length <= len(start):
            yield _Anchor(*at, Op.STARTS, ConstantKind.STRING, start[:length])
