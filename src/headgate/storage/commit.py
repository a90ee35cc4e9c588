"""The interface by which a transaction of an SQLite file becomes durable, and the embedded way: SQLite's own commit."""

from __future__ import annotations

import sqlite3
from typing import Protocol


class Committer(Protocol):
    """Begins and ends the transactions of the one connection that writes; called under the database's write lock.

    `SqliteCommitter` is the embedded one. In a deployment on Kafka, `store/kafka/objects.py` has one for objects, whose
    store is held to the same promises with both (`tests/store/objects_contract.py`), and `store/kafka/changelog.py` one
    for what a dispatcher keeps.
    """

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
