"""All objects of one kind in memory, brought up to date by what has changed since the last read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from headgate.control.objects import Kind, decode_stored
from headgate.control.rows import counter

_T = TypeVar("_T")


def _all(obj: Any) -> Any:  # noqa: ANN401 - what is given is returned
    return obj


class KnownObjects(Generic[_T]):
    """The objects of a kind that is stored as JSON, or what is made of each.

    With thousands of brokers most writes concern none of them, and then a read costs a look at two indexes.

    Args:
        make: What is kept of an object.
    """

    def __init__(self, kind: Kind, make: Callable[[Any], _T] = _all) -> None:
        self._kind = kind
        self._make = make
        self._version = 0
        self._objects: dict[str, _T] = {}

    @property
    def by_path(self) -> Mapping[str, _T]:
        """As of the last read, by `namespace/name`; replaced as a whole."""
        return self._objects

    def read(self, connection: sqlite3.Connection) -> set[str]:
        """Brings the objects up to date with a transaction.

        Returns:
            The paths of objects that were created, changed or deleted since the last read. A read that raises an error
            is made good by the next one, which returns its paths, too.
        """
        version = counter(connection, "version")
        known, since = self._objects, self._version
        if version == since:
            return set()
        if version < since:  # the numbers of another store, which counts on its own
            known, since = {}, 0
        # The unary plus keeps SQLite to the index of versions.
        rows = connection.execute("SELECT body FROM objects WHERE +kind = ? AND version > ?", (self._kind, since))
        decoded = (decode_stored(self._kind, body) for (body,) in rows)
        newer = {one.metadata.path: self._make(one) for one in decoded}
        found, changed = known | newer if newer else known, newer.keys() | (self._objects.keys() - known.keys())
        (count,) = connection.execute("SELECT count(*) FROM objects WHERE kind = ?", (self._kind,)).fetchone()
        if count != len(found):  # what is stored is among what was found, so as many are the same
            keys = connection.execute("SELECT namespace, name FROM objects WHERE kind = ?", (self._kind,))
            there = {f"{namespace}/{name}" for namespace, name in keys}
            changed |= found.keys() - there
            found = {path: one for path, one in found.items() if path in there}
        self._objects, self._version = found, version
        return changed
