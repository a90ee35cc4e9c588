"""Rows of control.db as records of the topic `objects`: which ones a transaction changed, and their way into a cache.

A record is one row: its key names the table and the row's primary key, its value has the other columns, and none where
the row was deleted. docs/spec/objects-topic.md has the format.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from headgate.control.schema import MIGRATIONS, migrate
from headgate.errors import FatalError, TooLargeError
from headgate.limits import KAFKA_RECORD_BYTES_MAX
from headgate.store.kafka.state_record import StateRecord

VERSION_HEADER: Final = "headgate_tables"
"""Header with the version of the tables that the row belongs to."""
POSITION_TABLE: Final = "topic_position"
_OWN_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS topic_leader (id INTEGER PRIMARY KEY, name TEXT NOT NULL, term INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS {POSITION_TABLE} (
  id INTEGER PRIMARY KEY, topic TEXT NOT NULL, next_offset INTEGER NOT NULL, read_at_s INTEGER NOT NULL);
"""
"""Beside those of control.db: who leads, a row of the topic as all others; and how far this cache is, its own."""

_COLUMN_TYPES: Final = (str, int, bytes, type(None))
"""Of the values of columns; no table has fractions."""
_VALUES: Final = msgspec.msgpack.Decoder(dict[str, object])
_KEY: Final = msgspec.json.Decoder(list[str | int])


class ObjectRecordError(FatalError):
    """A record of the topic `objects` is none that this version of Headgate can apply."""

    code = "object-record"


@dataclass(frozen=True, slots=True)
class RowTable:
    """A table whose rows are in the topic, with its columns.

    Attributes:
        name: Its name.
        key: Columns of its primary key, in order.
        others: Every other column but generated ones.
    """

    name: str
    key: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def where(self) -> str:
        """The condition for one row, with a parameter a column of the key."""
        return " AND ".join(f"{column} = ?" for column in self.key)

    def record(self, connection: sqlite3.Connection, key: Sequence[str | int]) -> StateRecord:
        """One row as it is now.

        Raises:
            TooLargeError: It is larger than a record may be.
        """
        columns = ", ".join(self.others)
        row = connection.execute(f"SELECT {columns} FROM main.{self.name} WHERE {self.where}", key).fetchone()
        name = msgspec.json.encode([self.name, *key])
        value = msgspec.msgpack.encode(dict(zip(self.others, row, strict=True))) if row is not None else None
        size_bytes = len(name) + len(value or b"")
        if size_bytes > KAFKA_RECORD_BYTES_MAX:
            raise TooLargeError(f"a row of {size_bytes} bytes is over the {KAFKA_RECORD_BYTES_MAX} of a record")
        return StateRecord(name, value)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Makes the tables that are not there, inside the caller's transaction; writes no object.

    Raises:
        DatabaseNewerError: A newer Headgate wrote the file.
    """
    migrate(connection, path)
    for statement in filter(str.strip, _OWN_TABLES.split(";")):
        connection.execute(statement)


def tables(connection: sqlite3.Connection) -> dict[str, RowTable]:
    """Every table whose rows are in the topic, by name."""
    names = connection.execute(
        "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        " AND name != ? ORDER BY name",
        (POSITION_TABLE,),
    ).fetchall()
    return {name: _table(connection, name) for (name,) in names}


def _table(connection: sqlite3.Connection, name: str) -> RowTable:
    columns = connection.execute("SELECT name, pk FROM pragma_table_info(?)", (name,)).fetchall()
    key = sorted((place, column) for column, place in columns if place)
    return RowTable(name, tuple(column for _, column in key), tuple(column for column, place in columns if not place))


class RowCapture:
    """Notes which rows a connection's transaction changes, by triggers that only this connection has.

    Args:
        connection: The one that writes; outside of a transaction, its tables are there.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._tables = tables(connection)
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA recursive_triggers = ON")  # else a row that REPLACE removes is not noted
        for table in self._tables.values():
            columns = ", ".join(table.key)
            connection.execute(
                f"CREATE TEMP TABLE changed_{table.name} ({columns}, PRIMARY KEY ({columns})) WITHOUT ROWID"
            )
            for event, rows in (("INSERT", ("NEW",)), ("DELETE", ("OLD",)), ("UPDATE", ("OLD", "NEW"))):
                notes = " ".join(_note(table, row) for row in rows)
                connection.execute(
                    f"CREATE TEMP TRIGGER note_{event.lower()}_{table.name} AFTER {event} ON main.{table.name}"
                    f" BEGIN {notes} END"
                )

    def records(self, connection: sqlite3.Connection) -> Iterator[StateRecord]:
        """Every row that the open transaction changed, as it is now.

        Raises:
            TooLargeError: One is larger than a record may be.
        """
        for table in self._tables.values():
            for key in connection.execute(f"SELECT * FROM temp.changed_{table.name}").fetchall():
                yield table.record(connection, key)

    def clear(self, connection: sqlite3.Connection) -> None:
        """Forgets them, in the same transaction: a rollback needs no more."""
        for name in self._tables:
            connection.execute(f"DELETE FROM temp.changed_{name}")


def _note(table: RowTable, row: str) -> str:
    """Notes the key of a row once. Not by OR IGNORE: what the statement says that fires a trigger replaces that."""
    values = ", ".join(f"{row}.{column}" for column in table.key)
    same = " AND ".join(f"{column} IS {row}.{column}" for column in table.key)
    noted = f"changed_{table.name}"
    return f"INSERT INTO {noted} SELECT {values} WHERE NOT EXISTS (SELECT 1 FROM {noted} WHERE {same});"


def version_header() -> tuple[str, bytes]:
    """The header of every record."""
    return VERSION_HEADER, str(len(MIGRATIONS)).encode()


class CacheTables:
    """Applies records to the tables of a cache.

    Args:
        connection: Of the cache, whose tables are there.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._tables = tables(connection)

    def apply(self, key: bytes | None, value: bytes | None, headers: Mapping[str, bytes | None]) -> None:
        """Puts or deletes the row of one record, in the caller's transaction.

        Raises:
            ObjectRecordError: It is no row of these tables.
        """
        version = headers.get(VERSION_HEADER)
        if version != version_header()[1]:
            written = repr(version.decode(errors="replace")) if version is not None else "none"
            raise ObjectRecordError(
                f"its tables have version {written}, this Headgate knows {len(MIGRATIONS)}",
                hint="every control process of a deployment runs the same version of Headgate",
            )
        try:
            name, *place = _KEY.decode(key or b"")
            table = self._tables[str(name)]
            others = _VALUES.decode(value) if value is not None else None
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise ObjectRecordError(f"no row that Headgate stored: {error}") from error
        if len(place) != len(table.key) or (others is not None and others.keys() != set(table.others)):
            raise ObjectRecordError(f"no row that Headgate stored: its columns are not those of {table.name}")
        if others is None:
            self._connection.execute(f"DELETE FROM {table.name} WHERE {table.where}", place)
        else:
            row = {**dict(zip(table.key, place, strict=True)), **others}
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            insert = f"INSERT OR REPLACE INTO {table.name} ({names}) VALUES ({marks})"
            if any(type(column) not in _COLUMN_TYPES for column in others.values()):
                raise ObjectRecordError(f"no row that Headgate stored: a column of {table.name} has no value of SQLite")
            try:
                self._connection.execute(insert, [*row.values()])
            except (sqlite3.IntegrityError, OverflowError) as error:
                raise ObjectRecordError(f"no row that Headgate stored: {error}") from error

    def empty(self) -> None:
        """Leaves every table as it is in a new file, in the caller's transaction."""
        new = sqlite3.connect(":memory:", isolation_level=None)
        try:
            prepare(new, Path(":memory:"))
            for table in tables(new).values():
                self._connection.execute(f"DELETE FROM {table.name}")
                columns = (*table.key, *table.others)
                insert = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
                self._connection.executemany(insert, new.execute(f"SELECT {', '.join(columns)} FROM {table.name}"))
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
