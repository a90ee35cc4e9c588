"""How do several threads and processes share one SQLite file? Short transactions, WAL, one writer at a time."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headgate.errors import UnavailableError

BUSY_TIMEOUT_MS: Final = 10_000
"""How long a writer waits for another process's transaction."""
READERS_MAX: Final = 4
"""Connections for reading; a further reader waits."""


class StoreUnavailableError(UnavailableError):
    """SQLite cannot do its work now: disk full, file locked for too long, input/output error."""

    code = "store-unavailable"


class Database:
    """Connections to one SQLite file, usable from any thread.

    Args:
        path: The file; made when it is missing.

    Raises:
        StoreUnavailableError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _translated(path):
            self._writer = self._connect()
            self._poller = self._connect()
            self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
            for _ in range(READERS_MAX):
                self._readers.put(self._connect())
        self._write_lock = threading.Lock()
        self._poll_lock = threading.Lock()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA journal_mode = WAL")
        # An answered write survives a power cut, not only a crash.
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that may write; committed when the block ends well, else rolled back."""
        with self._write_lock, _translated(self._path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one moment."""
        connection = self._readers.get()
        try:
            with _translated(self._path):
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    connection.execute("COMMIT")
        finally:
            self._readers.put(connection)

    def data_version(self) -> int:
        """A number that differs after any commit of any connection; a few microseconds."""
        # This connection never writes: a connection's own commits do not show in its data_version.
        with self._poll_lock, _translated(self._path):
            (version,) = self._poller.execute("PRAGMA data_version").fetchone()
        return int(version)

    def close(self) -> None:
        """Close every connection; no transaction may be open."""
        for _ in range(READERS_MAX):
            self._readers.get().close()
        with self._poll_lock:
            self._poller.close()
        with self._write_lock:
            self._writer.close()


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreUnavailableError(f"{path}: {error}", hint="is the disk full or the file locked?") from error
