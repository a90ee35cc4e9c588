"""The brokers that accept events, in memory, as new as the last write of a broker that was answered."""

from __future__ import annotations

import asyncio
import threading
from typing import Final, cast

import structlog

from headgate.control.database import StoreUnavailableError
from headgate.control.errors import ExpiredError
from headgate.control.log_spec import ServedBroker
from headgate.control.objects import Broker, Kind, decode_stored
from headgate.control.status import served_brokers
from headgate.control.store import Store
from headgate.limits import ROUTING_POLL_S
from headgate.observe.logs import Recurring

_log: Final = structlog.get_logger("headgate.control")


class ServedBrokers:
    """A copy of what the store says of brokers, for whoever must know them without a wait.

    Args:
        store: The objects.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._served: dict[str, ServedBroker] = {}
        self._version: int | None = None
        """The resourceVersion up to which changes are in the copy; None before the first read."""
        self._reading = threading.Lock()
        """Held while brokers are read, so that an older result never replaces a newer one."""

    def get(self, path: str) -> ServedBroker | None:
        """The broker `namespace/name`; None when there is none that accepts events."""
        return self._served.get(path)

    def __len__(self) -> int:
        return len(self._served)

    def refresh(self) -> None:
        """Read what has changed; may block.

        Raises:
            StoreUnavailableError: The store cannot be read; what was known stays.
        """
        with self._reading:
            if self._version is None:
                self._read_all()
                return
            try:
                self._read_changes(self._version)
            except ExpiredError:
                self._read_all()

    def _read_all(self) -> None:
        version = self._store.version()  # first: what changes in between is read again
        self._served = served_brokers(self._store.brokers())
        self._version = version

    def _read_changes(self, since: int) -> None:
        served = None
        while True:
            changes = self._store.changes(Kind.BROKER, since)
            for change in changes.items:
                served = dict(self._served) if served is None else served
                broker = cast(Broker, decode_stored(Kind.BROKER, change.body))
                served.pop(broker.metadata.path, None)
                if change.type != "DELETED":
                    served |= served_brokers([broker])
            since = changes.version
            if not changes.items:
                break
        if served is not None:
            self._served = served
        self._version = since

    async def follow(self) -> None:
        """Read whenever the store has changed, until it is cancelled."""
        looks = Recurring(_log, "brokers cannot be read, those that are known are served", StoreUnavailableError)
        seen: int | None = None
        while True:
            await asyncio.sleep(ROUTING_POLL_S)
            with looks.attempt():
                version = self._store.data_version()
                if version != seen:
                    await asyncio.to_thread(self.refresh)
                    seen = version
