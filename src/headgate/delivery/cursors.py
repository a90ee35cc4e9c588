"""The cursors of deliveries, dispatch.db: one position for all, and a row only for a target that is behind.

Every outbox row below the position G has been handed to the scheduler; what no target's row names below G has ended.
Old cursors only repeat deliveries, as at-least-once allows. They never skip one, because G and all rows move together.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from headgate.outbox.writer import WhenDurable, always_durable
from headgate.storage.commit import Committer
from headgate.storage.sqlite import StoreFile, decoding, read_only
from headgate.storage.threads import Threads
from headgate_api import limits

_log = structlog.get_logger(__name__)

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS watermarks (partition INTEGER PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS targets (
  id INTEGER PRIMARY KEY, lag_from INTEGER, pending BLOB NOT NULL, retries BLOB NOT NULL) STRICT;
"""


class Tried(NamedTuple):
    """A delivery that has failed and not ended."""

    position: int  # of its outbox row
    failures: int
    due_us: int  # when the next attempt is due, microseconds since 1970 UTC
    tried_us: int  # microseconds from its first attempt to its last, while dispatchers ran: no jump of a clock counts


@dataclass(frozen=True, slots=True)
class TargetCursor:
    """A target that is behind. What is `pending` is bounded by a queue; what has ended above a mark would not be."""

    target: int
    lag_from: int | None  # outbox position from which on it has read nothing; None when it is up to G
    pending: tuple[int, ...]  # positions below `lag_from` (or G) that have not ended, in order
    retries: tuple[Tried, ...] = ()  # those of them that have failed

    @property
    def oldest(self) -> int | None:
        """The first position below G that has not ended; None when all have."""
        return self.pending[0] if self.pending else self.lag_from

    def waits(self, position: int) -> bool:
        """Whether the target's row at a position below G has not ended."""
        if self.lag_from is not None and position >= self.lag_from:
            return True
        at = bisect_left(self.pending, position)
        return self.pending[at : at + 1] == (position,)


@dataclass(frozen=True)
class Cursors:
    """Everything that is remembered, at one moment."""

    position: int = 0  # G
    watermarks: dict[int, int] = field(default_factory=dict)  # per log partition, of the outbox's progress rows below G
    targets: tuple[TargetCursor, ...] = ()

    @cached_property
    def behind(self) -> dict[int, TargetCursor]:
        return {one.target: one for one in self.targets}

    @property
    def oldest_needed(self) -> int:
        """The lowest position that a restart would read again: G, or what a target has not ended below it."""
        return min([self.position, *(one.oldest for one in self.targets if one.oldest is not None)])

    def has_ended(self, target: int, position: int) -> bool:
        """Whether the delivery of a trigger's row has ended; what stands behind G is not handed out yet."""
        one = self.behind.get(target)
        return position < self.position and (one is None or not one.waits(position))


@dataclass(frozen=True, slots=True)
class CursorChange:
    """What one flush writes."""

    position: int  # G
    watermarks: dict[int, int]  # per log partition; those not named stay
    behind: list[TargetCursor]
    done: list[int]  # ids of targets that are behind no longer


class CursorStore(StoreFile):
    """The file `dispatch.db`, made when absent; `schema` is of further tables. Blocking; one thread at a time.

    `committer` makes transactions durable; None for SQLite alone, which syncs one every CURSOR_SYNC_S by `clock`
    (monotonic seconds).
    """

    def __init__(
        self,
        path: Path,
        schema: str = "",
        committer: Committer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(path, _SCHEMA + schema, clock=clock, committer=committer)

    @classmethod
    def read(cls, path: Path) -> Cursors:
        """What another process last wrote to a file that exists; OperationalError when it is busy or empty."""
        with read_only(path) as connection:
            connection.execute("BEGIN")  # one moment for all tables
            return _load(connection)

    def load(self) -> Cursors:
        """What the last flush wrote; the beginning of everything when there was none."""
        with decoding(self._path):
            return _load(self._connection)

    def flush(self, change: CursorChange) -> None:
        with self._transaction() as connection:
            self._write(connection, change)

    def _write(self, connection: sqlite3.Connection, change: CursorChange) -> None:
        connection.execute("REPLACE INTO position VALUES (0, ?)", (change.position,))
        connection.executemany("REPLACE INTO watermarks VALUES (?, ?)", change.watermarks.items())
        connection.executemany("DELETE FROM targets WHERE id = ?", [(target,) for target in change.done])
        connection.executemany("REPLACE INTO targets VALUES (?, ?, ?, ?)", map(_row, change.behind))

    def oldest_needed(self, position: int) -> int:
        """`Cursors.oldest_needed` for this position, without reading whole rows: writing a checkpoint asks for it."""
        rows = self._connection.execute("SELECT lag_from, substr(pending, 1, 8) FROM targets")
        needed = [array("q", first)[0] if first else lag_from for lag_from, first in rows]
        return min((one for one in needed if one is not None), default=position)

    def clear(self) -> None:
        with self._transaction() as connection:
            for table in ("position", "watermarks", "targets"):
                connection.execute(f"DELETE FROM {table}")


def _load(connection: sqlite3.Connection) -> Cursors:
    run = connection.execute
    row = run("SELECT value FROM position").fetchone()
    targets = [
        TargetCursor(target, lag_from, tuple(array("q", pending)), _tried(array("q", retries)))
        for target, lag_from, pending, retries in run("SELECT id, lag_from, pending, retries FROM targets ORDER BY id")
    ]
    watermarks = dict(run("SELECT partition, value FROM watermarks").fetchall())
    return Cursors(row[0] if row else 0, watermarks, tuple(targets))


def _row(cursor: TargetCursor) -> tuple[int, int | None, bytes, bytes]:
    pending, retries = array("q", cursor.pending), array("q", chain.from_iterable(cursor.retries))
    return cursor.target, cursor.lag_from, pending.tobytes(), retries.tobytes()


def _tried(numbers: Sequence[int]) -> tuple[Tried, ...]:
    width = len(Tried._fields)
    return tuple(map(Tried._make, zip(*(numbers[field::width] for field in range(width)), strict=True)))


class Flusher:
    """Writes cursor changes, in a thread of its own.

    `take` gives what changed since it was last asked. Each change waits for the outbox rows below its position
    (`when_durable`). `pause_s` lie between two transactions at least. One that is not synced is followed by one that
    is, CURSOR_SYNC_S later at the latest: a power cut costs so much, kill -9 at most one. No `GroupCommit`: it
    takes what has changed only when it is due, and hardly anybody waits for it (`settled`).
    """

    def __init__(
        self,
        store: CursorStore,
        take: Callable[[], CursorChange],
        on_flush: Callable[[], None],
        when_durable: WhenDurable = always_durable,
        pause_s: float = limits.CURSOR_FLUSH_S,
    ) -> None:
        self._store = store
        self._when_durable = when_durable
        self._pause_s = pause_s
        self._take = take
        self._on_flush = on_flush
        self._loop = asyncio.get_running_loop()
        self._thread = Threads("cursors")
        self._timer: asyncio.TimerHandle | None = None
        self._sync_timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._again = False
        self._closed = False
        self._unwritten: CursorChange | None = None
        self._waiting: list[asyncio.Future[None]] = []
        """Of those who wait for a flush: the one that is under way may have begun before."""
        self._served: list[asyncio.Future[None]] = []
        """Of those whom the flush under way serves."""

    async def settled(self) -> None:
        """Returns when the file has what has changed by now: a process that is killed then repeats nothing of it."""
        if not self._closed:
            done: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(done)
            self.wake()
            await done

    def wake(self) -> None:
        if self._closed:
            return
        if self._writing:
            self._again = True
        elif self._timer is None:
            self._timer = self._loop.call_later(self._pause_s, self._flush)

    async def close(self) -> None:
        """Write what is left, giving up when the disk refuses; what changes later is not written."""
        self._closed = True
        for timer in (self._timer, self._sync_timer):
            if timer is not None:
                timer.cancel()
        change = _merged(self._unwritten, self._take())
        durable: list[bool] = []
        self._when_durable(change.position, lambda: durable.append(True))
        try:
            if durable:
                await self._thread.run(self._store.flush, change)
            else:
                _log.error("the outbox cannot be written, what is delivered of its last rows is repeated")
        except sqlite3.OperationalError as error:  # the rest of the stop is not to be left out for it
            _log.error("cursors cannot be written, their deliveries are repeated", error=str(error))
        finally:
            self._thread.close()
            self._served += self._waiting
            self._serve()

    def _flush(self) -> None:
        self._timer = None
        self._writing, self._again = True, False
        self._served, self._waiting = self._served + self._waiting, []
        change = self._unwritten = _merged(self._unwritten, self._take())
        self._when_durable(change.position, lambda: self._write(change))

    def _write(self, change: CursorChange) -> None:
        if not self._closed:  # else `close` has decided about it
            self._thread.begin(partial(self._store.flush, change), self._flushed)

    def _flushed(self, done: Future[None]) -> None:
        self._writing = False
        error = done.exception()
        if isinstance(error, sqlite3.OperationalError):  # disk full, busy: deliveries go on, more would be repeated
            _log.error("cursors cannot be written, trying again", error=str(error))
            if not self._closed:
                self._timer = self._loop.call_later(1.0, self._flush)
            return
        done.result()
        if self._closed:
            return
        self._unwritten = None
        self._serve()
        if self._again:
            self.wake()
        if self._sync_timer is None and not self._store.is_synced:
            self._sync_timer = self._loop.call_later(limits.CURSOR_SYNC_S, self._sync)
        self._on_flush()

    def _serve(self) -> None:
        served, self._served = self._served, []
        for done in served:
            if not done.done():
                done.set_result(None)

    def _sync(self) -> None:
        self._sync_timer = None
        if not self._store.is_synced:
            self.wake()


def _merged(old: CursorChange | None, new: CursorChange) -> CursorChange:
    """One change instead of two; the newer one wins."""
    if old is None:
        return new
    behind = {cursor.target: cursor for cursor in old.behind}
    done = dict.fromkeys(old.done)
    for target in new.done:
        behind.pop(target, None)
        done[target] = None
    for cursor in new.behind:
        done.pop(cursor.target, None)
        behind[cursor.target] = cursor
    return CursorChange(new.position, {**old.watermarks, **new.watermarks}, list(behind.values()), list(done))
