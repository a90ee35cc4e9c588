"""How do the dispatcher's files of state open, change and get read? SQLite in WAL mode, a transaction a change."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headgate.storage import sqlite

ALONE_S: Final = 5.0
"""How long a writer that should be the only one waits for another one's transaction."""
SHARED_S: Final = 10.0
"""The same for a file that several processes write."""


class StoreFile:
    """One of these files. Blocking; one thread at a time an object.

    Args:
        path: Made when absent.
        schema: Statements that make what is not there.
        version: Of the tables; a file with a higher one is refused.
        synced: Whether a commit is on disk when it returns; else it is whole after a crash, but may be gone.
        busy_s: How long to wait for another writer.

    Raises:
        DatabaseNewerError: A newer Headgate wrote it.
    """

    def __init__(
        self, path: Path, schema: str, *, version: int = 1, synced: bool = True, busy_s: float = ALONE_S
    ) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=busy_s)
        try:
            found = sqlite.version(self._connection, path, version)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            self._connection.executescript(schema)
            if found != version:
                self._connection.execute(f"PRAGMA user_version = {version}")
        except BaseException:
            self._connection.close()
            raise

    def data_version(self) -> int:
        """A number that differs after every commit of another connection; a few microseconds."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything in the block, or nothing."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:  # an error of the disk may have ended it
                self._connection.execute("ROLLBACK")


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A file that another process writes, and which exists.

    Raises:
        sqlite3.OperationalError: It is busy, or cannot be opened.
    """
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    with contextlib.closing(connection):
        yield connection
