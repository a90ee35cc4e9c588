"""What the filters of a broker's triggers and subscriptions say of one another, without an event."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.tools.lint import FilterIndex, Related
from headgate.objects.kinds.status import identity_of
from headgate.objects.store.store import Store
from headgate_api.errors import TooLargeError
from headgate_api.limits import LINT_BROKERS_KEPT_MAX, LINT_FILTERS_MAX, LINT_ITEMS_MAX
from headgate_api.objects.kinds import Broker, Kind, ObjectKey

_KINDS: Final = {False: Kind.TRIGGER, True: Kind.SUBSCRIPTION}


class TooManyFiltersError(TooLargeError):
    """A broker has more filters than can be compared."""

    code = "too-many-filters"


class LintItem(Related, frozen=True):
    """A trigger or subscription of whose filter something is to be said; others are by `Kind/name`."""

    kind: str
    name: str


class LintView(msgspec.Struct, frozen=True, rename="camel"):
    """The answer; `left_out` are further items, `filters` how many were compared."""

    broker: str
    filters: int
    items: list[LintItem]
    left_out: int = 0


class Lints:
    """Compares the filters of brokers. Blocking, for any thread; what was read of a broker is kept until it changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[int, LintView]] = OrderedDict()

    def read(self, key: ObjectKey) -> LintView:
        """What is known of a broker's filters; ObjectNotFoundError without a broker, TooManyFiltersError."""
        broker = self._store.get(key)
        assert isinstance(broker, Broker)
        identity = identity_of(broker)
        with self._lock:  # one at a time: whoever asks for the same meanwhile gets it then
            table = self._store.snapshot()
            kept = self._kept.get(identity)
            if kept is None or kept[0] != table.generation:
                filters = {
                    f"{_KINDS[one.pull is not None]}/{one.name.partition('/')[2]}": one.filter
                    for one in table.targets.values()
                    if one.broker == identity
                }
                kept = self._kept[identity] = table.generation, _view(key.path, filters)
            self._kept.move_to_end(identity)
            while len(self._kept) > LINT_BROKERS_KEPT_MAX:
                self._kept.popitem(last=False)
            return kept[1]


def _view(path: str, filters: Mapping[str, CompiledFilter]) -> LintView:
    if len(filters) > LINT_FILTERS_MAX:
        raise TooManyFiltersError(
            f"the broker {path} has {len(filters)} filters: at most {LINT_FILTERS_MAX} are compared"
        )
    index = FilterIndex(filters)
    found = [_item(name, related) for name in sorted(filters) if (related := index.of(name))]
    return LintView(path, len(filters), found[:LINT_ITEMS_MAX], max(0, len(found) - LINT_ITEMS_MAX))


def _item(name: str, related: Related) -> LintItem:
    kind, _, of = name.partition("/")
    return LintItem(kind, of, **msgspec.structs.asdict(related))
