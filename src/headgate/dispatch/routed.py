"""What does the control database route to now? The dispatcher's copy of the table, as new as it needs to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from headgate.control.errors import ObjectNotFoundError
from headgate.control.logrules import log_rule
from headgate.control.objects import Broker, Kind, Object, ObjectKey
from headgate.control.reconcile import is_served
from headgate.control.routing import RoutingTable, Target, TargetReport
from headgate.filter.value import FilterValueRule


class Routing(Protocol):
    """What the dispatcher needs of `control.store.Store`."""

    def data_version(self) -> int:
        """Differs after every commit of another process; cheap."""

    def snapshot(self) -> RoutingTable:
        """Everything routed; may block."""

    def get(self, key: ObjectKey) -> Object:
        """One object; may block. Raises ObjectNotFoundError."""

    def report(self, reports: list[TargetReport]) -> None:
        """Add what was seen of filters and subscribers; may block."""

    def forget_trouble(self) -> None:
        """What an earlier dispatcher reported of subscribers no longer counts; may block."""


class Routed:
    """The routing table in force.

    Args:
        store: Where it comes from.
        on_table: Called with each newer table, the first one included.
    """

    def __init__(self, store: Routing, on_table: Callable[[RoutingTable], None]) -> None:
        self._store = store
        self._on_table = on_table
        self._version = -1
        self._table: RoutingTable | None = None

    async def look(self) -> None:
        """Bring the table up to date when the store has changed."""
        version = self._store.data_version()
        if version != self._version:
            self._apply(version, await asyncio.to_thread(self._store.snapshot))

    def look_now(self) -> None:
        """The same at once, blocking: a row names a target that nobody knows, and the store may be newer.

        A look that is under way is not waited for: the row would end before it.
        """
        version = self._store.data_version()
        if version != self._version:
            self._apply(version, self._store.snapshot())

    def trigger(self, name: str) -> Target | None:
        """A trigger by `namespace/name`."""
        targets = self._table.targets if self._table is not None else ()
        return next((target for target in targets if target.name == name and target.pull is None), None)

    def rule_of(self, broker: str) -> FilterValueRule | None:
        """What the filter values of a broker's events are; may block. None when there is no such broker here."""
        namespace, _, name = broker.partition("/")
        try:
            found = self._store.get(ObjectKey(Kind.BROKER, namespace, name))
        except ObjectNotFoundError:
            return None
        assert isinstance(found, Broker)
        return log_rule(found.spec.log).value if is_served(found) else None

    def _apply(self, version: int, table: RoutingTable) -> None:
        """A snapshot was read, the store's version before that being this one."""
        self._version = version
        # Two snapshots may be under way: the older one must not win.
        if self._table is None or table.version > self._table.version:
            self._table = table
            self._on_table(table)
