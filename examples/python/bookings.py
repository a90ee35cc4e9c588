"""Bookings, each event's once: what makes a subscriber safe against events that come twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing


class Bookings:
    """A table in SQLite whose key is what identifies an event: its source and its id.

    The work and the note that it was done are one transaction. Two tables, or a table and a call to somebody else,
    could be torn apart by a crash between them.

    Args:
        path: The file of the database; made when absent.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS bookings (source, id, total, PRIMARY KEY (source, id))")

    def book(self, source: str, event_id: str, total: int) -> bool:
        """Books a payment; False when that event was booked before.

        Raises:
            sqlite3.OperationalError: The database is locked or its disk is full: later it may work.
        """
        with closing(sqlite3.connect(self._path, timeout=2)) as connection, connection:
            row = (source, event_id, total)
            return connection.execute("INSERT INTO bookings VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row).rowcount == 1
