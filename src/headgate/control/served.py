"""The brokers that accept events, in memory, as new as the last write of a broker that was answered."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.control.followed import ObjectChange, ObjectCopy
from headgate.control.log_spec import ServedBroker
from headgate.control.objects import Broker, Kind, Object
from headgate.control.status import served_brokers
from headgate.control.store import Store
from headgate.event.identity import path_of


class ServedBrokers(ObjectCopy):
    """A copy of what the store says of brokers.

    Args:
        store: The objects.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, (Kind.BROKER,), "brokers")
        self._served: dict[str, ServedBroker] = {}

    def get(self, path: str) -> ServedBroker | None:
        """The broker `namespace/name`; None when there is none that accepts events."""
        return self._served.get(path)

    def retention_us(self, identity: str) -> int | None:
        """How long a broker, by its identity, keeps its events, microseconds; None: as long as the log."""
        served = self._served.get(path_of(identity))
        return served.rule.retention_us if served is not None and served.identity == identity else None

    def __len__(self) -> int:
        return len(self._served)

    def _begin(self, objects: Iterable[Object]) -> None:
        self._served = served_brokers(obj for obj in objects if isinstance(obj, Broker))

    def _apply(self, changes: Iterable[ObjectChange]) -> None:
        served = dict(self._served)
        for key, obj in changes:
            served.pop(key.path, None)
            if isinstance(obj, Broker):
                served |= served_brokers([obj])
        self._served = served
