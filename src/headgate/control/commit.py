"""The interface by which a transaction of control.db becomes durable, and the embedded way: SQLite's own commit."""

from __future__ import annotations

import sqlite3
from typing import Protocol

from headgate.errors import UnavailableError


class NotLeaderError(UnavailableError):
    """This process may not write objects: another control process leads, or none does."""

    code = "not-leader"


class Committer(Protocol):
    """Begins and ends the transactions of the one connection that writes; called under the database's write lock.

    Two have it: `SqliteCommitter`, and `store/kafka/objects.py` of a deployment on Kafka. One suite of tests holds the
    store to the same promises with both (`tests/store/objects_contract.py`).
    """

    def attach(self, connection: sqlite3.Connection) -> None:
        """Takes the connection that writes; called once, outside of a transaction."""
        ...

    def begin(self, connection: sqlite3.Connection) -> None:
        """Opens a transaction that sees every earlier one.

        Raises:
            NotLeaderError: This process may not write now; no transaction is open.
        """
        ...

    def commit(self, connection: sqlite3.Connection) -> None:
        """Makes everything that the open transaction changed durable, as a whole, and ends the transaction.

        After an error the caller rolls back what is still open: this process then reads nothing of it.

        Raises:
            NotLeaderError: Another process leads. Whether the changes are stored is known only to who reads them again.
            UnavailableError: They could not be stored; the message says when even that is not known.
        """
        ...


class SqliteCommitter:
    """SQLite alone: durable when its file is synced."""

    def attach(self, connection: sqlite3.Connection) -> None:
        """See `Committer.attach`."""

    def begin(self, connection: sqlite3.Connection) -> None:
        """See `Committer.begin`."""
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        """See `Committer.commit`."""
        connection.execute("COMMIT")
