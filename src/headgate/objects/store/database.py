"""SQLite shared by threads and processes: short transactions, WAL, one writer at a time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import queue
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.storage.commit import Committer, SqliteCommitter
from headgate.storage.sqlite import BUSY_TIMEOUT_MS, DatabaseDamagedError, check_commits, write_ahead
from headgate_api import limits
from headgate_api.errors import UnavailableError, own_copy

WRITES_SHARED_MAX: Final = 64
"""Writes of one commit: what the first of them waits for at most."""
READERS_MAX: Final = 4
"""Connections for reading; a further reader waits."""


class StoreUnavailableError(UnavailableError):
    """SQLite cannot do its work now: disk full, file locked for too long, input/output error."""

    code = "store-unavailable"


class Database:
    """Connections to one SQLite file, usable from any thread; the file is made when it is missing.

    The committer makes transactions durable; None: SQLite alone does. Raises DatabaseRolledBackError for a file that
    has lost commits.
    """

    def __init__(self, path: Path, committer: Committer | None = None) -> None:
        self.path = path
        self._committer = committer or SqliteCommitter(path)
        with translated_errors(path):
            if committer is None:
                check_commits(path)
            self._writer = self._connect()
            self._committer.attach(self._writer)
            self._poller = self._connect()
            self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
            for _ in range(READERS_MAX):
                self._readers.put(self._connect())
        self._write_lock = threading.Lock()
        self._waiting_lock = threading.Lock()
        self._waiting = 0
        self._shared: _SharedCommit | None = None
        self._poll_lock = threading.Lock()
        self._closed = False

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0)
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        write_ahead(connection)
        return connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """What may write; durable when the block ends well and this returns, else without a trace.

        Blocks of threads that wait for each other follow one another inside one transaction, of which the last one
        commits: syncing the file takes longer than everything else of a write.
        """
        with self._waiting_lock:
            self._waiting += 1
        self._write_lock.acquire()
        commit = None
        try:
            with self._waiting_lock:
                self._waiting -= 1
            commit = self._joined()
            with translated_errors(self.path), apart(self._writer, "write"):
                yield self._writer
        finally:
            if commit is not None and (not self._waiting or commit.writes >= WRITES_SHARED_MAX):
                self._commit(commit)
            self._write_lock.release()
            if commit is not None:
                # Also who failed: perhaps because of what another thread has written and nobody can read yet.
                commit.ended.wait()
        if commit.error is not None:
            raise own_copy(commit.error)

    def _joined(self) -> _SharedCommit:
        """The commit of which the next write is a part."""
        with translated_errors(self.path):
            if self._shared is not None and not self._writer.in_transaction:
                self._commit(self._shared)  # an error of the disk has ended it: tell them
            if self._shared is None:
                self._committer.begin(self._writer)
                self._shared = _SharedCommit()
        self._shared.writes += 1
        return self._shared

    def _commit(self, commit: _SharedCommit) -> None:
        """End the transaction and tell everybody whose writes are in it."""
        self._shared = None
        try:
            with translated_errors(self.path):
                self._committer.commit(self._writer)
        except Exception as error:  # noqa: BLE001 - handed to everybody who waits for this commit
            commit.error = error
        finally:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            commit.ended.set()

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one moment."""
        connection = self._readers.get()
        try:
            if self._closed:
                raise StoreUnavailableError(f"{self.path} is closed")
            with translated_errors(self.path):
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    connection.execute("COMMIT")
        finally:
            self._readers.put(connection)

    def rows(self, question: str, parameters: Sequence[object] = ()) -> list[Any]:
        """What a question finds, in a transaction of its own."""
        with self.read() as connection:
            return connection.execute(question, parameters).fetchall()

    def data_version(self) -> int:
        """A number that differs after any commit of any connection; a few microseconds."""
        # This connection never writes: a connection's own commits do not show in its data_version.
        with self._poll_lock, translated_errors(self.path):
            (version,) = self._poller.execute("PRAGMA data_version").fetchone()
        return int(version)

    def close(self) -> None:
        """Close every connection, behind the transactions that are open; later ones fail."""
        readers = [self._readers.get() for _ in range(READERS_MAX)]
        self._closed = True
        for reader in readers:
            reader.close()
            self._readers.put(reader)  # else a thread that reads too late would wait for ever, and its process with it
        with self._poll_lock:
            self._poller.close()
        with self._write_lock:
            if self._shared is not None:  # left to a write that comes too late: who has written waits for it
                self._commit(self._shared)
            self._committer.detach(self._writer)


class Table:
    """A part of the file, with the questions about it. Every method may block: call it in a thread."""

    def __init__(self, database: Database) -> None:
        self._database = database


class _SharedCommit:
    """One transaction's writes and what became of them.

    No `GroupCommit`: a write is a block of its caller's thread, which reads in the transaction what it decides by.
    """

    def __init__(self) -> None:
        self.writes = 0
        self.ended = threading.Event()
        self.error: Exception | None = None


@contextmanager
def apart(connection: sqlite3.Connection, name: str) -> Iterator[None]:
    """What fails inside takes nothing else of the transaction with it; a block inside another has a name of its own."""
    connection.execute(f"SAVEPOINT {name}")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # an error of the disk may have ended it
            connection.execute(f"ROLLBACK TO {name}")
        raise
    finally:
        if connection.in_transaction:
            connection.execute(f"RELEASE {name}")


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into StoreUnavailableError, and that of a row that cannot be read: DatabaseDamagedError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreUnavailableError(
            f"the database of objects does not work now: {error}",
            hint="is the server's disk full, or the file locked? The server's log names it",
            detail=str(path),
        ) from error
    except msgspec.DecodeError as error:
        raise DatabaseDamagedError(path, f"the content of a row cannot be read ({error})") from error


class NotLeaderError(UnavailableError):
    """This process may not write objects: another control process leads, or none does."""

    code = "not-leader"


# --- changes --------------------------------------------------------------------------------------

_IN_MODIFY: Final = 0x2
_EVENTS_BYTES: Final = 4_096


class StoreWrites:
    """Writes to the store, of which the kernel tells (inotify on SQLite's write-ahead log), and when to look for them.

    Every commit begins with a write, and is visible later: each look after a write comes after as long again as it has
    been since then, up to ROUTING_POLL_S. `watch` is a descriptor that is readable after a write; -1 where the kernel
    has none for us.
    """

    def __init__(self, database: Path) -> None:
        self.watch = _watched(Path(f"{database}-wal"))
        self._first = self._last = -math.inf  # of those that came one after the other

    def hear(self, now_s: float) -> None:
        """`watch` was readable."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.watch, _EVENTS_BYTES):
                pass
        if now_s - self._last > limits.STORE_SILENCE_S:
            self._first = now_s
        self._last = now_s

    def are_recent(self, now_s: float) -> bool:
        """Whether what was written may not be visible yet."""
        return now_s - self._last < limits.STORE_QUICK_S

    def next_look_s(self, now_s: float) -> float:
        """How long to wait for the next look."""
        return min(limits.ROUTING_POLL_S, max(limits.STORE_SOON_S, now_s - self._first))

    def close(self) -> None:
        if self.watch >= 0:
            os.close(self.watch)
            self.watch = -1


class StoreChanges:
    """The pause between two looks at the store; shared by all who follow it on one event loop.

    While writes are recent the looks are close together; where the kernel does not tell of writes they always are.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writes: StoreWrites | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._written = asyncio.Event()
        self._began = 0.0

    async def pause(self) -> None:
        """Wait until the next look at the store is due."""
        loop = asyncio.get_running_loop()
        writes = self._writes
        if loop is not self._loop or writes is None or writes.watch < 0:
            writes = self._begin(loop)
        now = loop.time()
        is_new = now - self._began < limits.STORE_QUICK_S
        if writes.watch < 0 or is_new or writes.are_recent(now):
            await asyncio.sleep(writes.next_look_s(now))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.STORE_LOOK_S):
                await self._written.wait()

    def close(self) -> None:
        if self._writes is not None and self._writes.watch >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._writes.watch)
            self._writes.close()
        self._writes = None

    def _begin(self, loop: asyncio.AbstractEventLoop) -> StoreWrites:
        self.close()
        self._loop, self._written, self._began = loop, asyncio.Event(), loop.time()
        self._writes = writes = StoreWrites(self._path)
        if writes.watch >= 0:
            loop.add_reader(writes.watch, self._hear, writes)
        return writes

    def _hear(self, writes: StoreWrites) -> None:
        writes.hear(asyncio.get_running_loop().time())
        written, self._written = self._written, asyncio.Event()
        written.set()


def _watched(path: Path) -> int:
    """A descriptor that is readable when the file was written to; -1 where the kernel has none for us."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        watch = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except AttributeError:  # another system than Linux
        return -1
    if watch >= 0 and libc.inotify_add_watch(watch, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(watch)
        return -1
    return watch
