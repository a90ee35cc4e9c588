"""The dispatcher's copy of the routing table, as new as it needs to be."""

from __future__ import annotations

import asyncio
import dataclasses
from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

from headgate.control.routing import RoutingTable, Target, TargetReport
from headgate.control.specs import ServedBroker
from headgate.filter.skipping.filter_value import FilterValueRule
from headgate.outbox.shards import Shard
from headgate_api.event.names import path_of


class TargetReports(Protocol):
    """Where a dispatcher tells what it sees of its targets."""

    def report(self, reports: list[TargetReport]) -> None:
        """Add what was seen of filters and subscribers; may block."""

    def forget_trouble(self, owns: Callable[[int], bool]) -> None:
        """What an earlier dispatcher reported of its own targets no longer counts; may block."""


class RoutingStore(Protocol):
    """What the dispatcher needs to know of objects."""

    def data_version(self) -> int:
        """Differs after every commit of another process; cheap."""

    def snapshot(self) -> RoutingTable:
        """Everything routed; may block."""

    def served(self, path: str) -> ServedBroker | None:
        """The broker "namespace/name"; may block."""


class RoutingCache:
    """The routing table in force, of a shard's targets alone; `on_table` gets each newer one, also the first."""

    def __init__(self, store: RoutingStore, on_table: Callable[[RoutingTable], None], shard: Shard) -> None:
        self._store = store
        self._on_table = on_table
        self._shard = shard
        self._version = -1
        self._table: RoutingTable | None = None
        self._whole: RoutingTable | None = None

    async def refresh(self) -> None:
        version = self._store.data_version()
        if version != self._version:
            self._apply(version, await asyncio.to_thread(self._store.snapshot))

    def refresh_now(self) -> None:
        """As `refresh`, at once and blocking: a row names a target that is not in the table; the store may be newer.

        It does not wait for a `refresh` under way, which would end after the row.
        """
        version = self._store.data_version()
        if version != self._version:
            self._apply(version, self._store.snapshot())

    def trigger(self, name: str) -> Target | None:
        """A trigger by `namespace/name`; None for one of another dispatcher."""
        return _trigger(self._table, name)

    def any_trigger(self, name: str) -> Target | None:
        """The same, whichever dispatcher's it is."""
        return _trigger(self._whole, name)

    def find(self, target: int) -> Target | None:
        """The target of an id, whichever dispatcher's it is."""
        targets = self._whole.targets if self._whole is not None else ()
        at = bisect_left(targets, target, key=lambda one: one.id)
        return targets[at] if at < len(targets) and targets[at].id == target else None

    def rule_of(self, broker: str) -> FilterValueRule | None:
        """What the filter values of the events of a broker (its identity) are; may block. None when it is no more."""
        found = self._store.served(path_of(broker))
        return found.rule.value if found is not None and found.identity == broker else None

    @property
    def generation(self) -> int:
        return self._table.generation if self._table is not None else -1

    def _apply(self, version: int, table: RoutingTable) -> None:
        """A snapshot was read, the store's version before that being this one."""
        self._version = version
        # Two snapshots may be under way: the older one must not win.
        if self._table is None or table.version > self._table.version:
            self._whole, self._table = table, self._own(table)
            self._on_table(self._table)

    def _own(self, table: RoutingTable) -> RoutingTable:
        if self._shard.count == 1:
            return table
        own = tuple(target for target in table.targets if self._shard.owns(target.id))
        return dataclasses.replace(table, targets=own)


def _trigger(table: RoutingTable | None, name: str) -> Target | None:
    targets = table.targets if table is not None else ()
    return next((target for target in targets if target.name == name and target.pull is None), None)
