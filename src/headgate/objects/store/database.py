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
from collections.abc import Callable, Coroutine, Iterator, Sequence
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
            # For who follows the file: SQLite's own writes tell of no commit, which is visible only behind them.
            with contextlib.suppress(OSError):  # they look now and then all the same
                os.utime(self.path)
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

_IN_ATTRIB: Final = 0x4
_EVENTS_BYTES: Final = 4_096


class StoreCommits:
    """Commits to the store by any process, of which the kernel tells: inotify, see `Database._commit`.

    `watch` is a descriptor that is readable after a commit; -1 where the kernel has none for us.
    """

    def __init__(self, database: Path) -> None:
        self.watch = _watched(database)

    @property
    def look_s(self) -> float:
        """How long to wait for a commit before looking for one all the same."""
        return limits.ROUTING_POLL_S if self.watch < 0 else limits.STORE_LOOK_S

    def hear(self) -> None:
        """`watch` was readable."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.watch, _EVENTS_BYTES):
                pass

    def close(self) -> None:
        if self.watch >= 0:
            os.close(self.watch)
            self.watch = -1


class StoreChanges:
    """When to look at the store, for all who follow it on one event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._commits: StoreCommits | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard = asyncio.Event()
        self._number = 0
        """Of commits that were heard of, and of loops."""

    def follow(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """For one who follows: waits until the next look at the store is due, the first time not at all.

        No commit is missed that comes between two waits. While commits keep coming looks are STORE_APART_S apart, and
        so far apart that they take STORE_LOOKS_SHARE of the time at most, but not over STORE_APART_S_MAX.
        """
        seen, looked_s = 0, -math.inf

        async def pause() -> None:
            nonlocal seen, looked_s
            loop = asyncio.get_running_loop()
            if loop is not self._loop or self._commits is None:
                self._begin(loop)
                looked_s = -math.inf
            assert self._commits is not None
            apart_s = max(limits.STORE_APART_S, (loop.time() - looked_s) / limits.STORE_LOOKS_SHARE)
            due_s = looked_s + min(apart_s, limits.STORE_APART_S_MAX)
            if seen == self._number:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._commits.look_s):
                        await self._heard.wait()
            if (early_s := due_s - loop.time()) > 0:
                await asyncio.sleep(early_s)
            seen, looked_s = self._number, loop.time()

        return pause

    def close(self) -> None:
        if self._commits is not None and self._commits.watch >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._commits.watch)
            self._commits.close()
        self._commits = None

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.close()
        self._loop, self._heard = loop, asyncio.Event()
        self._number += 1
        self._commits = commits = StoreCommits(self._path)
        if commits.watch >= 0:
            loop.add_reader(commits.watch, self._hear, commits)

    def _hear(self, commits: StoreCommits) -> None:
        commits.hear()
        self._number += 1
        heard, self._heard = self._heard, asyncio.Event()
        heard.set()


def _watched(path: Path) -> int:
    """A descriptor that is readable when the file's times were set; -1 where the kernel has none for us."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        watch = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except AttributeError:  # another system than Linux
        return -1
    if watch >= 0 and libc.inotify_add_watch(watch, os.fsencode(path), _IN_ATTRIB) < 0:
        os.close(watch)
        return -1
    return watch
