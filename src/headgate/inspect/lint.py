"""What the filters of a broker's triggers and subscriptions say of one another, without an event."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.tools.advice import SeenNames, UnseenName, UnseenNames
from headgate.filter.tools.lint import FilterIndex, Related
from headgate.objects.kinds.routing import Target
from headgate.objects.kinds.status import identity_of
from headgate.objects.store.store import Store
from headgate_api.errors import InvalidInputError, NotFoundError, TooLargeError
from headgate_api.limits import LINT_BROKERS_KEPT_MAX, LINT_FILTERS_MAX, LINT_ITEMS_MAX, LINT_UNSEEN_MAX
from headgate_api.objects.kinds import Broker, Kind, ObjectKey

_KINDS: Final = {False: Kind.TRIGGER, True: Kind.SUBSCRIPTION}


class TooManyFiltersError(TooLargeError):
    """A broker has more filters than can be compared."""

    code = "too-many-filters"


class NotComparedError(NotFoundError):
    """A broker has no such trigger or subscription, or one whose events can go nowhere."""

    code = "not-compared"


class LintItem(Related, frozen=True):
    """A trigger or subscription of whose filter something is to be said; others are by `Kind/name`.

    `unseen` are names in it that no event has had, and that are nearly those of one.
    """

    kind: str
    name: str
    unseen: tuple[UnseenName, ...] = ()


class LintView(msgspec.Struct, frozen=True, rename="camel"):
    """The answer; `left_out` are further items, `filters` how many were compared."""

    broker: str
    filters: int
    items: list[LintItem]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks, by name and groups, and which targets he may see: the others are as if they were not there."""

    user: tuple[str, ...]
    sees: Callable[[Target], bool]


@dataclass(slots=True)
class _Kept:
    """The filters of a broker, as of a generation of all.

    `views` are answers on all of them: for who may not know what events there are (None), and by the names that events
    had when somebody else asked last.
    """

    generation: int
    index: FilterIndex
    views: dict[SeenNames | None, LintView] = field(default_factory=dict)


class Lints:
    """Compares the filters of brokers. Blocking, for one thread; what was found is kept until it changes.

    Kept are LINT_BROKERS_KEPT_MAX brokers, and of several LINT_FILTERS_MAX filters.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, tuple[str, ...]], _Kept] = OrderedDict()
        """By broker and who asks; empty for all who see every filter."""

    def read(
        self, key: ObjectKey, of: str = "", seen: SeenNames | None = None, viewer: Viewer | None = None
    ) -> LintView:
        """What is known of a broker's filters, or of that of one: `Trigger/NAME` or `Subscription/NAME`.

        Of another namespace's one the NAME is `namespace/name`. `seen` are names that the broker's events have had;
        None where who asks may not know them. Without a `viewer` all filters count. Raises ObjectNotFoundError without
        a broker, NotComparedError without the one, TooManyFiltersError.
        """
        kind, _, name = of.partition("/")
        if of and (kind not in _KINDS.values() or not name or name.count("/") > 1):
            problem = f"of names no trigger or subscription: {of[:64]!r}"
            raise InvalidInputError(problem, hint="of=Trigger/NAME or of=Subscription/NAME")
        kept = self._of_broker(key, viewer)
        if of:
            if of not in kept.index.filters:
                hint = "one whose events can go nowhere is not compared"
                raise NotComparedError(f"the broker {key.path} has no {of}", hint=hint)
            return LintView(key.path, len(kept.index.filters), list(_items(kept.index, [of], seen)))
        view = kept.views.get(seen)
        if view is None:
            view = _view(key.path, kept.index, seen)
            for one in [one for one in kept.views if one is not None]:
                del kept.views[one]
            kept.views[seen] = view
        return view

    def _of_broker(self, key: ObjectKey, viewer: Viewer | None) -> _Kept:
        broker = self._store.get(key)
        assert isinstance(broker, Broker)
        identity, own = identity_of(broker), f"{key.namespace}/"
        table = self._store.snapshot()
        place: tuple[str, tuple[str, ...]] = identity, ()
        kept = self._kept.get(place)
        if viewer is not None or kept is None or kept.generation != table.generation:
            targets = [one for one in table.targets.values() if one.broker == identity]
            if viewer is not None and not all(map(viewer.sees, targets)):
                targets = [one for one in targets if viewer.sees(one)]
                place = identity, viewer.user
                kept = self._kept.get(place)
            filters = {f"{_KINDS[one.pull is not None]}/{one.name.removeprefix(own)}": one.filter for one in targets}
            _check_count(key.path, filters)
            if kept is None:
                kept = self._kept[place] = _Kept(table.generation, FilterIndex(filters))
            elif kept.index.update(filters):
                kept.views.clear()
            kept.generation = table.generation
        self._kept.move_to_end(place)
        while len(self._kept) > 1 and (len(self._kept) > LINT_BROKERS_KEPT_MAX or self._count() > LINT_FILTERS_MAX):
            self._kept.popitem(last=False)
        return kept

    def _count(self) -> int:
        return sum(len(one.index.filters) for one in self._kept.values())


def lint_view(path: str, filters: Mapping[str, CompiledFilter]) -> LintView:
    """The answer on the filters of a broker, by `Kind/name`; TooManyFiltersError."""
    _check_count(path, filters)
    return _view(path, FilterIndex(filters))


def _check_count(path: str, filters: Mapping[str, CompiledFilter]) -> None:
    if len(filters) > LINT_FILTERS_MAX:
        raise TooManyFiltersError(
            f"the broker {path} has {len(filters)} filters: at most {LINT_FILTERS_MAX} are compared"
        )


def _view(path: str, index: FilterIndex, seen: SeenNames | None = None) -> LintView:
    found = _items(index, sorted(index.filters), seen)
    items = list(islice(found, LINT_ITEMS_MAX))
    return LintView(path, len(index.filters), items, sum(1 for _ in found))


def _items(index: FilterIndex, names: Iterable[str], seen: SeenNames | None) -> Iterator[LintItem]:
    """Those of some filters of which something is to be said."""
    unseen = None if seen is None else UnseenNames(seen, LINT_UNSEEN_MAX)
    for name in names:
        related, wrong = index.of(name), () if unseen is None else unseen.of(index.filters[name])
        if related or wrong:
            kind, _, of = name.partition("/")
            yield LintItem(kind, of, wrong, **msgspec.structs.asdict(related))
