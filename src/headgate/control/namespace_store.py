"""The store of namespaces: those that were created, and those that are in use."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from typing import Final

import msgspec

from headgate.control.database import Database
from headgate.control.errors import NamespaceNotFoundError, QuotaError
from headgate.control.namespaces import namespace
from headgate.control.objects import Namespace, encode
from headgate.control.rows import bump, counter
from headgate.control.writes import kube_time
from headgate.event.names import NAMESPACE_DEFAULT
from headgate.limits import NAMESPACES_MAX

_DECODER: Final = msgspec.json.Decoder(Namespace)
Make = Callable[[Namespace | None], Namespace]
"""What becomes of a namespace; None neither was created nor is in use."""


class NamespaceTable:
    """Namespaces. Every method may block: call it in a thread.

    Args:
        database: Of the objects.
        clock_s: Seconds since 1970.
    """

    def __init__(self, database: Database, clock_s: Callable[[], float]) -> None:
        self._database = database
        self._clock_s = clock_s

    def all(self) -> tuple[tuple[Namespace, ...], int]:
        """All of them by name, and the resourceVersion at which they are so."""
        with self._database.read() as connection:
            used = {
                name for (name,) in connection.execute("SELECT DISTINCT namespace FROM objects WHERE namespace != ''")
            }
            kept = {name: _DECODER.decode(body) for name, body in connection.execute("SELECT * FROM namespaces")}
            version = counter(connection, "version")
        names = sorted(used | {NAMESPACE_DEFAULT} | kept.keys())
        return tuple(kept.get(name) or namespace(name) for name in names), version

    def get(self, name: str) -> Namespace:
        """One of them.

        Raises:
            NamespaceNotFoundError: There is none.
        """
        with self._database.read() as connection:
            found = _found(connection, name)
        if found is None:
            raise NamespaceNotFoundError(name)
        return found

    def change(self, name: str, make: Make, *, dry_run: bool = False) -> Namespace:
        """Put what `make` makes of a namespace in its place.

        Args:
            name: Which one.
            make: Gets the namespace; an error of it changes nothing.
            dry_run: Store nothing.

        Raises:
            QuotaError: There are as many as there may be.
        """
        with self._database.write() as connection:
            old = _found(connection, name)
            new = make(old)
            if new == old:
                return new
            (count,) = connection.execute("SELECT count(*) FROM namespaces").fetchone()
            if count >= NAMESPACES_MAX and _kept(connection, name) is None:
                raise QuotaError(f"there are {count} namespaces already, which is the maximum")
            given = old.metadata if old is not None else None
            changes = {
                "uid": given.uid if given else str(uuid.uuid4()),
                "creation_timestamp": (given.creation_timestamp if given else "") or kube_time(self._clock_s()),
                "resource_version": str(counter(connection, "version") + 1),
            }
            new = msgspec.structs.replace(new, metadata=msgspec.structs.replace(new.metadata, **changes))
            if not dry_run:
                bump(connection, "version")
                connection.execute("INSERT OR REPLACE INTO namespaces VALUES (?, ?)", (name, encode(new)))
            return new

    def delete(self, name: str) -> None:
        """Forget one that was created; it exists as long as something is in it."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM namespaces WHERE name = ?", (name,))
            bump(connection, "version")


def _kept(connection: sqlite3.Connection, name: str) -> Namespace | None:
    row = connection.execute("SELECT body FROM namespaces WHERE name = ?", (name,)).fetchone()
    return _DECODER.decode(row[0]) if row else None


def _found(connection: sqlite3.Connection, name: str) -> Namespace | None:
    """A namespace that was created, or is there because something is in it."""
    if (kept := _kept(connection, name)) is not None:
        return kept
    used = connection.execute("SELECT 1 FROM objects WHERE namespace = ? LIMIT 1", (name,)).fetchone()
    return namespace(name) if used or name == NAMESPACE_DEFAULT else None
