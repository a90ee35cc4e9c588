"""Objects of a data directory that others own: read for a command or a library, never made, migrated or written.

A server may be running on it, start or stop meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from headgate.objects.kinds.routing import RoutingTable
from headgate.objects.kinds.specs import ServedBroker
from headgate.objects.kinds.status import served_broker
from headgate.objects.store.database import StoreUnavailableError
from headgate.objects.store.rows import broker_at
from headgate.objects.store.schema import MIGRATIONS
from headgate.objects.store.targets import SnapshotCache
from headgate.storage.sqlite import DatabaseDamagedError, DatabaseOlderError, decoding, read_only, version_of
from headgate_api.errors import InvalidInputError
from headgate_api.limits import OBJECT_READS_MAX

_DATABASE: Final = "control.db"
_Answer = TypeVar("_Answer")


class NoDataDirectoryError(InvalidInputError):
    """A folder is no data directory of Headgate."""

    code = "data-directory"


class ObjectReader:
    """Reads the objects; every method opens the file for a moment. Blocking; one thread at a time."""

    def __init__(self, data: Path) -> None:
        self._path = data / _DATABASE
        if not self._path.is_file():
            raise NoDataDirectoryError(
                f"{data} is no data directory of Headgate: {self._path} is missing",
                hint="name the directory of headgate serve --data",
            )
        self._cache = SnapshotCache()

    def served(self, path: str) -> ServedBroker | None:
        """The broker `namespace/name`; None when there is none that accepts events.

        Raises NoDataDirectoryError when the file has no tables of Headgate, DatabaseOlderError, DatabaseNewerError or
        DatabaseDamagedError when this version cannot read it, StoreUnavailableError when it is locked or not ours.
        """
        return served_broker(self._asked(lambda connection: broker_at(connection, path)))

    def snapshot(self) -> RoutingTable:
        """Everything routed, at one moment; raises as `served` does."""
        return self._asked(lambda connection: self._cache.table(connection))

    def _asked(self, ask: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        log = self._path.with_name(f"{_DATABASE}-wal")
        for _ in range(OBJECT_READS_MAX):
            # Where no process has it open, SQLite would make a log and an index, of a user who may be another one.
            is_at_rest = not log.exists()
            try:
                answer = self._answer(ask, is_at_rest=is_at_rest)
            except DatabaseDamagedError:
                if not (is_at_rest and log.exists()):
                    raise
            else:
                if not (is_at_rest and log.exists()):
                    return answer
            self._cache = SnapshotCache()  # a server has started: what was read may be of several moments
        raise StoreUnavailableError(
            f"{self._path} is changing hands", hint="try again", detail="servers start and stop"
        )

    def _answer(self, ask: Callable[[sqlite3.Connection], _Answer], *, is_at_rest: bool) -> _Answer:
        try:
            with read_only(self._path, is_at_rest=is_at_rest) as connection, decoding(self._path):
                connection.execute("BEGIN")
                found = version_of(connection, self._path, len(MIGRATIONS))
                if found == 0:
                    raise NoDataDirectoryError(
                        f"{self._path} has no tables of Headgate", hint="a server that starts on it makes them"
                    )
                if found < len(MIGRATIONS):
                    raise DatabaseOlderError(self._path, found, len(MIGRATIONS))
                return ask(connection)
        except sqlite3.OperationalError as error:
            raise StoreUnavailableError(
                f"{self._path} cannot be read now: {error}", hint="is it on this machine's disk, and yours to read?"
            ) from error
        except sqlite3.DatabaseError as error:
            raise DatabaseDamagedError(self._path, str(error)) from error
