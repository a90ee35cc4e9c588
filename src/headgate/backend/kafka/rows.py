"""Rows of an SQLite file as records of a compacted topic: which ones a transaction changed, and their way into a cache.

A record is one row: its key names the table and the row's primary key, its value has the other columns, and none where
the row was deleted. The topics `objects` and `changelog` hold such records (docs/spec/).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.backend.kafka.records import KafkaRecord
from headgate.storage.commit import TABLE as COMMITS
from headgate_api.errors import FatalError, TooLargeError
from headgate_api.limits import KAFKA_RECORD_BYTES_MAX

if TYPE_CHECKING:
    from confluent_kafka import Message

VERSION_HEADER: Final = "headgate_tables"
"""Header with the version of the tables that the row belongs to."""
SEQUENCES: Final = "sqlite_sequence"
"""Where SQLite keeps the last number that each table with AUTOINCREMENT gave; it cannot have triggers."""
_COLUMN_TYPES: Final = (str, int, bytes, type(None))
"""Of the values of columns; no table has fractions."""
_VALUES: Final = msgspec.msgpack.Decoder(dict[str, object])
_KEY: Final = msgspec.json.Decoder(list[str | int])


class RowRecordError(FatalError):
    """A record of a topic of rows is none that this version of Headgate can apply."""

    code = "row-record"


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Which tables of a file are in the topic: all but its own (`local`)."""

    version: int
    local: frozenset[str] = frozenset()

    @property
    def header(self) -> tuple[str, bytes]:
        return VERSION_HEADER, str(self.version).encode()


@dataclass(frozen=True, slots=True)
class RowTable:
    """A table whose rows are in the topic, with the columns of its primary key, in order, and all other stored ones."""

    name: str
    key: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def where(self) -> str:
        """The condition for one row, with a parameter a column of the key."""
        return " AND ".join(f"{column} = ?" for column in self.key)

    def record(self, connection: sqlite3.Connection, key: Sequence[str | int]) -> KafkaRecord:
        """One row as it is now; TooLargeError when it is larger than a record may be."""
        columns = ", ".join(self.others)
        row = connection.execute(f"SELECT {columns} FROM main.{self.name} WHERE {self.where}", key).fetchone()
        name = msgspec.json.encode([self.name, *key])
        value = msgspec.msgpack.encode(dict(zip(self.others, row, strict=True))) if row is not None else None
        size_bytes = len(name) + len(value or b"")
        if size_bytes > KAFKA_RECORD_BYTES_MAX:
            raise TooLargeError(f"a row of {size_bytes} bytes is over the {KAFKA_RECORD_BYTES_MAX} of a record")
        return KafkaRecord(name, value)


def tables(connection: sqlite3.Connection, form: RowFormat) -> dict[str, RowTable]:
    """Every table whose rows are in the topic, by name."""
    names = connection.execute(
        "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        " ORDER BY name"
    ).fetchall()
    return {name: _table(connection, name) for (name,) in names if name not in {COMMITS, *form.local}}


def _note(table: RowTable, row: str) -> str:
    """Notes the key of a row once. Not by OR IGNORE: what the statement says that fires a trigger replaces that."""
    values = ", ".join(f"{row}.{column}" for column in table.key)
    same = " AND ".join(f"{column} IS {row}.{column}" for column in table.key)
    noted = f"changed_{table.name}"
    return f"INSERT INTO {noted} SELECT {values} WHERE NOT EXISTS (SELECT 1 FROM {noted} WHERE {same});"


def _numbered(connection: sqlite3.Connection) -> frozenset[str]:
    """The tables with AUTOINCREMENT."""
    if not connection.execute("SELECT 1 FROM main.sqlite_schema WHERE name = ?", (SEQUENCES,)).fetchone():
        return frozenset()
    found = connection.execute(
        "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"
    )
    return frozenset(name for (name,) in found)


def _table(connection: sqlite3.Connection, name: str) -> RowTable:
    columns = connection.execute("SELECT name, pk FROM pragma_table_info(?)", (name,)).fetchall()
    key = sorted((place, column) for column, place in columns if place)
    return RowTable(name, tuple(column for _, column in key), tuple(column for column, place in columns if not place))


class RowCapture:
    """Notes which rows a connection's transactions change, by triggers of its own; made outside of one."""

    def __init__(self, connection: sqlite3.Connection, form: RowFormat) -> None:
        self._tables = tables(connection, form)
        self._numbered = _numbered(connection)
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

    def records(self, connection: sqlite3.Connection) -> Iterator[KafkaRecord]:
        """Every row that the open transaction changed, as it is now; TooLargeError for one that no record can hold."""
        for table in self._tables.values():
            keys = connection.execute(f"SELECT * FROM temp.changed_{table.name}").fetchall()
            if keys and table.name in self._numbered:
                yield _last_number(connection, table.name)
            for key in keys:
                yield table.record(connection, key)

    def clear(self, connection: sqlite3.Connection) -> None:
        """Forgets them, in the same transaction: a rollback needs no more."""
        for name in self._tables:
            connection.execute(f"DELETE FROM temp.changed_{name}")


def _last_number(connection: sqlite3.Connection, table: str) -> KafkaRecord:
    """The last number that a table gave: rows that are gone must not give theirs to others."""
    found = connection.execute(f"SELECT seq FROM main.{SEQUENCES} WHERE name = ?", (table,)).fetchone()
    value = msgspec.msgpack.encode({"seq": found[0] if found else 0})
    return KafkaRecord(msgspec.json.encode([SEQUENCES, table]), value)


def table_of(key: bytes | None) -> str:
    """The table that a record's key names; RowRecordError when it is no key of a row."""
    try:
        name, *place = _KEY.decode(key or b"")
    except (msgspec.DecodeError, ValueError) as error:
        raise _no_row(str(error)) from error
    return str(place[0]) if name == SEQUENCES and place else str(name)


def _no_row(why: str) -> RowRecordError:
    return RowRecordError(f"no row that Headgate stored: {why}")


def row_headers(message: Message) -> dict[str, bytes | None]:
    """The headers of a record of rows; RowRecordError when a name is no UTF-8."""
    try:
        return dict(message.headers() or ())  # type: ignore[arg-type] # a list of pairs, as documented
    except UnicodeDecodeError as error:
        raise RowRecordError(f"the name of a header is no UTF-8: {error.reason}") from error


class CacheTables:
    """Applies records to the tables of a cache, which are there."""

    def __init__(self, connection: sqlite3.Connection, form: RowFormat) -> None:
        self._connection = connection
        self._form = form
        self.tables = tables(connection, form)

    def apply(self, key: bytes | None, value: bytes | None, headers: Mapping[str, bytes | None]) -> None:
        """Puts or deletes the row of one record, in the caller's transaction; RowRecordError for any other record."""
        version = headers.get(VERSION_HEADER)
        if version != self._form.header[1]:
            written = repr(version.decode(errors="replace")) if version is not None else "none"
            raise RowRecordError(
                f"its tables have version {written}, this Headgate knows {self._form.version}",
                hint="all processes of a deployment run the same version of Headgate",
            )
        try:
            name, *place = _KEY.decode(key or b"")
            if name == SEQUENCES:
                self._apply_number(place, value)
                return
            table = self.tables[str(name)]
            others = _VALUES.decode(value) if value is not None else None
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise _no_row(str(error)) from error
        if len(place) != len(table.key) or (others is not None and others.keys() != set(table.others)):
            raise _no_row(f"its columns are not those of {table.name}")
        if others is None:
            self._connection.execute(f"DELETE FROM {table.name} WHERE {table.where}", place)
        else:
            row = {**dict(zip(table.key, place, strict=True)), **others}
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            insert = f"INSERT OR REPLACE INTO {table.name} ({names}) VALUES ({marks})"
            if any(type(column) not in _COLUMN_TYPES for column in others.values()):
                raise _no_row(f"a column of {table.name} has no value of SQLite")
            try:
                self._connection.execute(insert, [*row.values()])
            except (sqlite3.IntegrityError, OverflowError) as error:
                raise _no_row(str(error)) from error

    def _apply_number(self, place: Sequence[str | int], value: bytes | None) -> None:
        number = (_VALUES.decode(value) if value is not None else {}).get("seq")
        if len(place) != 1 or place[0] not in self.tables or type(number) is not int:
            raise _no_row(f"its columns are not those of {SEQUENCES}")
        self._connection.execute(f"DELETE FROM {SEQUENCES} WHERE name = ?", place)
        self._connection.execute(f"INSERT INTO {SEQUENCES} (name, seq) VALUES (?, ?)", (*place, number))
