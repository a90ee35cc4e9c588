"""Tables of control.db that are in the topic `objects`, and how far a cache of it is.

docs/spec/objects-topic.md has the format, `rows.py` how a row becomes a record and comes back.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.control.schema import MIGRATIONS, migrate
from headgate.store.kafka.rows import RowFormat, tables

POSITION_TABLE: Final = "topic_position"
OBJECT_ROWS: Final = RowFormat(len(MIGRATIONS), frozenset({POSITION_TABLE}))
"""Every table of control.db, but for the cache's own."""
_OWN_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS topic_leader (id INTEGER PRIMARY KEY, name TEXT NOT NULL, term INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS {POSITION_TABLE} (
  id INTEGER PRIMARY KEY, topic TEXT NOT NULL, next_offset INTEGER NOT NULL, read_at_s INTEGER NOT NULL);
"""
"""Beside those of control.db: who leads, a row of the topic as all others; and how far this cache is, its own."""


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Makes the tables that are not there, inside the caller's transaction; writes no object.

    Raises:
        DatabaseNewerError: A newer Headgate wrote the file.
    """
    migrate(connection, path)
    for statement in filter(str.strip, _OWN_TABLES.split(";")):
        connection.execute(statement)


def empty(connection: sqlite3.Connection) -> None:
    """Leaves every table of a cache as it is in a new file, in the caller's transaction."""
    new = sqlite3.connect(":memory:", isolation_level=None)
    try:
        prepare(new, Path(":memory:"))
        for table in tables(new, OBJECT_ROWS).values():
            connection.execute(f"DELETE FROM {table.name}")
            columns = (*table.key, *table.others)
            insert = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            connection.executemany(insert, new.execute(f"SELECT {', '.join(columns)} FROM {table.name}"))
    finally:
        new.close()


@dataclass(frozen=True, slots=True)
class CachePosition:
    """How far a cache is.

    Attributes:
        topic: Kafka's id of the topic, which a topic made anew does not share.
        next_offset: Every record below it is in the cache, or superseded by one that is.
        read_at_s: When the cache had everything that there was; seconds since 1970.
    """

    topic: str
    next_offset: int
    read_at_s: int


def position(connection: sqlite3.Connection) -> CachePosition | None:
    """How far the cache is; None in a file that never was one."""
    found = connection.execute(f"SELECT topic, next_offset, read_at_s FROM {POSITION_TABLE} WHERE id = 1").fetchone()
    return CachePosition(*found) if found else None


def put_position(connection: sqlite3.Connection, now: CachePosition) -> None:
    """Remembers how far the cache is, in the caller's transaction."""
    connection.execute(
        f"INSERT OR REPLACE INTO {POSITION_TABLE} VALUES (1, ?, ?, ?)", (now.topic, now.next_offset, now.read_at_s)
    )
