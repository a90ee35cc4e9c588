"""The interface by which a transaction of an SQLite file becomes durable, and the embedded way: SQLite's own commit."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Protocol

import structlog

from headgate import limits
from headgate.storage import commit_record

_log = structlog.get_logger(__name__)


class Committer(Protocol):
    """Begins and ends the transactions of the one connection that writes; called under the database's write lock.

    `SqliteCommitter` is the embedded one. In a deployment on Kafka, `store/kafka/objects.py` has one for objects, whose
    store is held to the same promises with both (`tests/store/objects_contract.py`), and `store/kafka/changelog.py` one
    for what a dispatcher keeps.
    """

    @property
    def is_synced(self) -> bool:
        """Whether every transaction that ended is durable."""
        ...

    def attach(self, connection: sqlite3.Connection) -> None:
        """Takes the connection that writes; called once, outside of a transaction."""
        ...

    def begin(self, connection: sqlite3.Connection) -> None:
        """Opens a transaction that sees every earlier one.

        Raises:
            UnavailableError: This process may not write now; no transaction is open.
        """
        ...

    def commit(self, connection: sqlite3.Connection) -> None:
        """Makes everything that the open transaction changed durable, as a whole, and ends the transaction.

        After an error the caller rolls back what is still open: this process then reads nothing of it.

        Raises:
            UnavailableError: They could not be stored, or another process writes now; the message says when it is not
                known whether they are stored.
        """
        ...

    def detach(self, connection: sqlite3.Connection) -> None:
        """Closes the connection that writes; no transaction is open."""
        ...


class SqliteCommitter:
    """SQLite alone: durable when its file is synced. It counts commits, so that a start sees if some are gone.

    Args:
        path: The database; whoever makes this has looked by `sqlite.check_commits` whether commits are gone.
        synced: Whether each commit is on disk when it returns; else one every CURSOR_SYNC_S is.
    """

    def __init__(self, path: Path, *, synced: bool = True) -> None:
        self._path = path
        self._synced = synced
        self._record = commit_record.CommitRecord(path)
        self._due_s = 0.0
        self._syncs = True
        self._has_written = False
        self.is_synced = True

    def attach(self, connection: sqlite3.Connection) -> None:
        """See `Committer.attach`."""
        connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut, not only a crash
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # a checkpoint has its seal
        connection.execute(commit_record.SCHEMA)

    def begin(self, connection: sqlite3.Connection) -> None:
        """See `Committer.begin`."""
        syncs = self._synced or time.monotonic() >= self._due_s
        if syncs is not self._syncs:
            connection.execute(f"PRAGMA synchronous = {'FULL' if syncs else 'NORMAL'}")
            self._syncs = syncs
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        """See `Committer.commit`."""
        (number,) = connection.execute(commit_record.COUNT).fetchone()
        connection.execute("COMMIT")
        self._has_written, self.is_synced = True, self._syncs
        try:
            if self._syncs:
                self._due_s = time.monotonic() + limits.CURSOR_SYNC_S
                self._record.committed(number)
            if self._record.wants_checkpoint:
                self._record.checkpoint(connection)
        except (OSError, sqlite3.OperationalError) as error:  # it is committed
            _log.warning("the record of commits cannot be written", file=str(self._path), error=str(error))

    def detach(self, connection: sqlite3.Connection) -> None:
        """See `Committer.detach`."""
        try:
            if self._has_written:
                self._record.checkpoint(connection)
        except (OSError, sqlite3.OperationalError) as error:  # the next start does it
            _log.warning("the write-ahead log stays", file=str(self._path), error=str(error))
        finally:
            connection.close()
            self._record.close()
