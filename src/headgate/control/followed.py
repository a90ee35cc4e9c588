"""A copy of some kinds of objects in memory, as new as the last write that was answered: the frame of such copies."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

import structlog

from headgate.control.database import StoreUnavailableError
from headgate.control.errors import ExpiredError
from headgate.control.objects import Kind, Object, ObjectKey, decode_stored, key_of
from headgate.control.store import Store
from headgate.observe.logs import Recurring

_log: Final = structlog.get_logger("headgate.control")

ObjectChange = tuple[ObjectKey, Object | None]
"""What names an object, and what it is now; None when it is gone."""


class ObjectCopy(ABC):
    """A copy of what the store says of some kinds, for whoever must know it without a wait.

    Args:
        store: The objects.
        kinds: Which kinds.
        what: They in messages: `brokers`.
    """

    def __init__(self, store: Store, kinds: tuple[Kind, ...], what: str) -> None:
        self._store = store
        self._kinds = kinds
        self._what = what
        self._version: int | None = None
        """The resourceVersion up to which changes are in the copy; None before the first read."""
        self._reading = threading.Lock()
        """Held while objects are read, so that an older result never replaces a newer one."""

    @abstractmethod
    def _begin(self, objects: Iterable[Object]) -> None:
        """Everything there is."""

    @abstractmethod
    def _apply(self, changes: Iterable[ObjectChange]) -> None:
        """What has changed, in order."""

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
        self._begin(decode_stored(kind, item.body) for kind in self._kinds for item in self._store.page(kind).items)
        self._version = version

    def _read_changes(self, since: int) -> None:
        versions = []
        for kind in self._kinds:
            at = since
            while True:
                changes = self._store.changes(kind, at)
                at = changes.version
                if not changes.items:
                    break
                objects = ((change.type, decode_stored(kind, change.body)) for change in changes.items)
                self._apply((key_of(obj), None if type_ == "DELETED" else obj) for type_, obj in objects)
            versions.append(at)
        self._version = min(versions)  # what came between two kinds is read again

    async def follow(self) -> None:
        """Read whenever the store has changed, until it is cancelled."""
        problem = f"{self._what} cannot be read, those that are known are served"
        looks = Recurring(_log, problem, StoreUnavailableError)
        seen: int | None = None
        while True:
            await self._store.change_watch.pause()
            with looks.attempt():
                version = self._store.data_version()
                if version != seen:
                    await asyncio.to_thread(self.refresh)
                    seen = version
