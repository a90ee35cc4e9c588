"""The brokers that accept events, in memory, as new as the last write of a broker that was answered."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.control.followed import ObjectChange, ObjectCopy
from headgate.control.log_spec import ServedBroker
from headgate.control.objects import Broker, Kind, Object
from headgate.control.status import served_brokers
from headgate.control.store import Store


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
