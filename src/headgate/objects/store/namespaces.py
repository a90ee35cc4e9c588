"""Namespaces: every one in use exists; one that was created keeps its labels and annotations in the store."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from typing import Final

import msgspec

from headgate.objects.kinds.decode import check_shape, converted
from headgate.objects.kinds.managers import with_metadata
from headgate.objects.kinds.validate import namespace_causes
from headgate.objects.store.database import Database, Table
from headgate.objects.store.rows import bump, counter
from headgate.objects.store.writes import kube_time
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_api.limits import NAMESPACES_MAX
from headgate_api.objects.bodies import is_namespace
from headgate_api.objects.errors import InvalidNamespaceError, MalformedObjectError, NamespaceNotFoundError, QuotaError
from headgate_api.objects.kinds import Metadata, Namespace, encode

_UID_SPACE: Final = uuid.UUID("6f1c1f0e-6d5c-5a55-9d6b-3c0b8f2c9a11")
_NAME_LABEL: Final = "kubernetes.io/metadata.name"


def namespace(name: str, metadata: Metadata | None = None) -> Namespace:
    """A namespace; without metadata one that exists because something is in it."""
    found = metadata or Metadata(uid=str(uuid.uuid5(_UID_SPACE, name)), resource_version="0")
    labels = found.labels | {_NAME_LABEL: name}
    return Namespace(
        api_version="v1",
        kind="Namespace",
        metadata=msgspec.structs.replace(found, name=name, namespace="", labels=labels),
        status={"phase": "Active"},
    )


def decode_namespace(document: object, name: str = "") -> Namespace:
    """A namespace from untrusted JSON or YAML and the name in the request's path; only its metadata is kept."""
    check_shape(document)
    if not isinstance(document, dict) or not is_namespace(document):
        raise MalformedObjectError("the body is no Namespace of v1")
    written = document.get("metadata")
    kept = {key: value for key, value in written.items() if value is not None} if isinstance(written, dict) else {}
    fields = {key: kept[key] for key in ("name", "labels", "annotations", "uid", "resourceVersion") if key in kept}
    metadata = converted(fields, Metadata, "metadata of the namespace")
    if name and metadata.name not in ("", name):
        raise MalformedObjectError(
            f"the name of the object ({metadata.name}) does not match the name on the URL ({name})"
        )
    made = namespace(name or metadata.name, metadata)
    if causes := namespace_causes(made.metadata):
        raise InvalidNamespaceError(made.metadata.name, f"is invalid: {', '.join(map(str, causes))}")
    return made


_DECODER: Final = msgspec.json.Decoder(Namespace)
Make = Callable[[Namespace | None], Namespace]
"""What becomes of a namespace; None neither was created nor is in use."""


class NamespaceTable(Table):
    """Namespaces."""

    def __init__(self, database: Database, clock_s: Callable[[], float]) -> None:
        super().__init__(database)
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
        with self._database.read() as connection:
            found = _found(connection, name)
        if found is None:
            raise NamespaceNotFoundError(name)
        return found

    def change(self, name: str, make: Make, *, dry_run: bool = False) -> Namespace:
        """Put what `make` makes of a namespace in its place; an error of it changes nothing."""
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
            new = with_metadata(new, **changes)
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
