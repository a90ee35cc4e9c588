"""Writing of the store: what is put into one part of it, in groups, as many as came while the last one was synced.

No `GroupCommit` does it: the store may take a part of a group, what it refuses waits for room in its order, and what
has ended goes along.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, TypeVar

import structlog

from headgate.deadletters.store import DeadLetterStore, Ended, Reschedule, StoredDeadLetter, StorePart, Totals
from headgate.outbox.writer import WhenDurable, until_durable
from headgate.shares import has_share
from headgate.storage.threads import Threads
from headgate_api import limits
from headgate_api.event.names import namespace_of

_T = TypeVar("_T")
_LOUD_S: Final = 10.0
_WORDS: Final = {StorePart.DEAD: "dead letters", StorePart.PENDING: "events that wait for their time"}
OnWritten = Callable[[Sequence[Ended], Sequence[Reschedule], Totals], None]
_New = list[tuple[StoredDeadLetter, asyncio.Future[None]]]

_log = structlog.get_logger(__name__)


class PartWriter:
    """Writes one part of the store, on one event loop, by the store's `thread`.

    What is put is written behind its row of the outbox (`when_durable`). `on_written` gets what is done
    on disk, and how full the store is then.
    """

    def __init__(
        self,
        store: DeadLetterStore,
        thread: Threads,
        part: StorePart,
        when_durable: WhenDurable,
        on_written: OnWritten,
        is_used_up: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._thread = thread
        self._part = part
        self._when_durable = when_durable
        self._on_written = on_written
        self._is_used_up = is_used_up
        self._loop = asyncio.get_running_loop()
        self._new: deque[tuple[StoredDeadLetter, asyncio.Future[None]]] = deque()
        self._gone: list[Ended] = []
        self._changed: list[Reschedule] = []
        self._writing: asyncio.Future[None] | None = None
        self._retry_at = 0.0
        self._closed = False
        self._broken = False  # a write failed as none does on a full or busy disk: none follows
        self._told_at = float("-inf")
        self._storing = Counter[str]()
        """Those that are being stored, by namespace."""
        self.totals = store.totals()

    @property
    def storing(self) -> int:
        """How many are being stored."""
        return self._storing.total()

    # --- room -------------------------------------------------------------------------------------------

    def has_room(self, namespace: str) -> bool:
        return not (self.totals.is_full(self._part) or self.is_over_quota(namespace))

    def is_over_quota(self, namespace: str) -> bool:
        words = _WORDS[self._part]
        if self._is_used_up(namespace):
            self.tell(f"a namespace has all the {words} of its quota, deliveries wait", namespace=namespace)
            return True
        if self._has_share(namespace):
            self.tell(f"a namespace has its share of all {words}, deliveries wait", namespace=namespace)
            return True
        return False

    def _has_share(self, namespace: str) -> bool:
        """Whether the rest of the store is for others; one that is full is for nobody, whoever has what."""
        (count, size_bytes), (count_max, bytes_max) = self.totals.of(self._part), self._part.bounds
        free, free_bytes = count_max - count - self.storing, bytes_max - size_bytes
        if free <= 0 or free_bytes <= 0:
            return False
        held_bytes = self._store.held_of(self._part, namespace)[1]
        return has_share(self.held(namespace), free) or has_share(held_bytes, free_bytes)

    def held(self, namespace: str) -> int:
        """How many a namespace has, with those that are being stored."""
        return self._store.held_of(self._part, namespace)[0] + self._storing[namespace]

    # --- writing ----------------------------------------------------------------------------------------

    async def put(self, new: StoredDeadLetter) -> None:
        """Store one; returns when it is on disk, which it waits for as long as there is no room."""
        namespace = namespace_of(new.trigger)
        while self.is_over_quota(namespace):
            await asyncio.sleep(limits.DEADLETTER_RETRY_S)
        # It takes its place before it waits for the outbox: whoever asks for room meanwhile must count it.
        self._storing[namespace] += 1
        try:
            await until_durable(self._when_durable, new.position + 1)
            done: asyncio.Future[None] = self._loop.create_future()
            self._new.append((new, done))
            self._write_soon()
            await done
        finally:
            drop(self._storing, namespace)

    def end(self, ended: Ended) -> None:
        self._gone.append(ended)
        self._write_soon()

    def change(self, change: Reschedule) -> None:
        self._changed.append(change)
        self._write_soon()

    async def close(self) -> None:
        """Write what is known; what was to be put is not stored."""
        self._closed = True
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if not self._broken:
            await self._thread.run(self._store.apply, [], self._gone, self._changed)

    def _write_soon(self) -> None:
        if self._writing is None and not self._closed and not self._broken:
            self._writing = self._loop.create_future()
            self._loop.call_at(max(self._loop.time(), self._retry_at), self._write)

    def _write(self) -> None:
        new: _New = []
        size = 0
        while self._new and len(new) < limits.DEADLETTERS_BATCH_MAX and size < limits.DEADLETTERS_BATCH_BYTES_MAX:
            dead_letter, done = self._new.popleft()
            if not done.cancelled():  # else: the delivery was broken off and will be repeated
                new.append((dead_letter, done))
                size += len(dead_letter.event.data or b"")
        gone, self._gone = self._gone, []
        changed, self._changed = self._changed, []

        def work() -> tuple[int, Totals]:
            return self._store.apply([dead_letter for dead_letter, _ in new], gone, changed), self._store.totals()

        self._thread.begin(work, partial(self._written, new, gone, changed))

    def _written(
        self, new: _New, gone: list[Ended], changed: list[Reschedule], result: Future[tuple[int, Totals]]
    ) -> None:
        # Whatever comes of it, nobody shall wait for this write any more: `close` does.
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.set_result(None)
        error = result.exception()
        if isinstance(error, sqlite3.OperationalError):
            self.tell(f"{_WORDS[self._part]} cannot be written, their deliveries wait", error=str(error))
            taken = 0
            self._gone, self._changed = gone + self._gone, changed + self._changed
        elif error is not None:
            self._broken = True
            raise error  # the loop's exception handler ends the dispatcher
        else:
            taken, self.totals = result.result()
            self._on_written(gone, changed, self.totals)
            if taken < len(new):
                count, size_bytes = self.totals.of(self._part)
                words = f"there is no more room for {_WORDS[self._part]}, deliveries wait"
                self.tell(words, count=count, bytes=size_bytes, kept=self.totals.kept)
        for _, done in new[:taken]:
            if not done.cancelled():
                done.set_result(None)
        self._new.extendleft(reversed(new[taken:]))
        self._retry_at = self._loop.time() + limits.DEADLETTER_RETRY_S if error or taken < len(new) else 0.0
        if self._new or self._gone or self._changed:
            self._write_soon()

    def tell(self, words: str, **facts: object) -> None:
        now = self._loop.time()
        if now - self._told_at >= _LOUD_S:
            self._told_at = now
            _log.error(words, **facts)


def drop(counts: Counter[_T], one: _T) -> None:
    """Count one less, and remember no zeros."""
    counts[one] -= 1
    if not counts[one]:
        del counts[one]
