"""Stored objects as JSON, page by page, and a bounded history of every write, for watchers and lists of the past."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.objects.store.rows import SEALED_KINDS, StoredForm, bump, counter
from headgate_api.limits import WATCH_BYTES_MAX, WATCH_EVENTS_MAX
from headgate_api.objects.errors import ExpiredError, FutureVersionError
from headgate_api.objects.kinds import Kind, Object, ObjectKey, key_of

CHANGES_PER_READ: Final = 500
"""Rows of one read: a watcher that is far behind catches up in several."""
TRIM_SLACK: Final = 1_024
"""Rows over the limit before the oldest go, so that not every write deletes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write of one object: ADDED, MODIFIED or DELETED, which gave it the resourceVersion `version`.

    Labels and body (JSON) are those after it, of DELETED the last ones; `labels_before` is None when there was no
    object.
    """

    key: ObjectKey
    type: str
    version: int
    labels: dict[str, str]
    labels_before: dict[str, str] | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes in order; `version` is where the next read starts."""

    items: tuple[Change, ...]
    version: int


def labels_text(obj: Object) -> str:
    """Labels as JSON text."""
    return msgspec.json.encode(obj.metadata.labels).decode()


def record(connection: sqlite3.Connection, type_: str, obj: Object, before: Object | None, body: bytes) -> None:
    """Keep a change, and drop the oldest ones beyond the limits, in a write transaction; DELETED has the last `obj`."""
    version = int(obj.metadata.resource_version)
    labels_before = labels_text(before) if before is not None else None
    connection.execute(
        "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (version, *key_of(obj), type_, labels_text(obj), labels_before, body),
    )
    size, floor = connection.execute(
        "UPDATE counters SET value = value + ? WHERE name = 'history_bytes'"
        " RETURNING value, (SELECT value FROM counters WHERE name = 'history_floor')",
        (len(body),),
    ).fetchone()
    # Every version is one row, so versions count rows.
    excess = version - floor - WATCH_EVENTS_MAX
    while excess > TRIM_SLACK or size > WATCH_BYTES_MAX:
        floor = bump(connection, "history_floor", max(1, min(excess, TRIM_SLACK)))
        rows = connection.execute("DELETE FROM history WHERE version <= ? RETURNING length(body)", (floor,)).fetchall()
        size = bump(connection, "history_bytes", -sum(length for (length,) in rows))
        excess = version - floor - WATCH_EVENTS_MAX


def past(connection: sqlite3.Connection, kind: Kind, at: int) -> dict[tuple[str, str], int | None]:
    """What was otherwise at a resourceVersion than it is now.

    Of each object changed since, by namespace and name, the row of the history that says what it was; None when it was
    not there. Raises ExpiredError when that is no longer kept, FutureVersionError for a version that is not there yet.
    """
    newest = counter(connection, "version")
    if at > newest:
        raise FutureVersionError(at, newest)
    if at == newest:
        return {}
    before: dict[tuple[str, str], int | None] = {}
    found: dict[tuple[str, str], int | None] = {}
    rows = connection.execute(
        "SELECT namespace, name, version, type, labels_before FROM history WHERE kind = ? ORDER BY version", (kind,)
    )
    for namespace, name, version, type_, labels_before in rows:
        key = (namespace, name)
        if version <= at:
            before[key] = None if type_ == "DELETED" else version
        elif key not in found:
            if labels_before is not None and before.get(key) is None:
                raise ExpiredError(f"too old resource version: {at} ({newest})", hint="list without resourceVersion")
            found[key] = before[key] if labels_before is not None else None
    if at < counter(connection, "history_floor"):
        raise ExpiredError(f"too old resource version: {at} ({newest})", hint="list without resourceVersion")
    return found


def read(
    connection: sqlite3.Connection, form: StoredForm, kind: Kind, since: int, namespace: str | None, name: str | None
) -> Changes:
    """Changes of a kind after `since`, at most `CHANGES_PER_READ`; None for any namespace or name.

    Raises ExpiredError when some are no longer kept, or `since` lies in the future (another store's number).
    """
    newest = counter(connection, "version")
    if since < counter(connection, "history_floor") or since > newest:
        raise ExpiredError(f"too old resource version: {since} ({newest})", hint="list again and watch from there")
    where, parameters = _of_kind(kind, namespace, name)
    rows = connection.execute(
        "SELECT namespace, name, type, version, labels, labels_before, body FROM history"
        f" WHERE {where} AND version > ? ORDER BY version LIMIT ?",
        (*parameters, since, CHANGES_PER_READ),
    ).fetchall()
    items = []
    for at, called, type_, version, labels, before, body in rows:
        key, labels_before = ObjectKey(kind, at, called), labels_of(before) if before is not None else None
        items.append(Change(key, type_, version, labels_of(labels), labels_before, form.json(key, body)))
    return Changes(tuple(items), items[-1].version if len(items) == CHANGES_PER_READ else newest)


def _of_kind(kind: Kind, namespace: str | None, name: str | None) -> tuple[str, list[object]]:
    """A condition and its parameters: objects of a kind, with a namespace and a name unless they are None."""
    where, parameters = "kind = ?", list[object]([kind])
    for column, value in (("namespace", namespace), ("name", name)):
        if value is not None:
            where += f" AND {column} = ?"
            parameters.append(value)
    return where, parameters


def written_since(connection: sqlite3.Connection, since: int, kind: Kind | None = None) -> frozenset[str] | None:
    """Namespaces in which something was written, of a kind or of any; None when it may be all of them."""
    if since < counter(connection, "history_floor"):
        return None
    question = "SELECT DISTINCT namespace FROM history WHERE version > ? AND kind = ifnull(?, kind)"
    return frozenset(namespace for (namespace,) in connection.execute(question, (since, kind)) if namespace)


Selector = Callable[[dict[str, str]], bool]
"""Whether labels are wanted."""
BodyTest = Callable[[str, bytes], bool]
"""Whether an object is wanted, by its name and its JSON; of a kind that is stored encrypted the JSON is empty."""
_LABELS: Final = msgspec.json.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as JSON."""

    key: ObjectKey
    body: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, by namespace and name; `version` is the newest resourceVersion when it was read."""

    items: tuple[Stored, ...]
    version: int
    more: bool


def labels_of(text: str) -> dict[str, str]:
    """Labels from the text that `history.labels_text` wrote."""
    return _LABELS.decode(text)


def read_page(
    connection: sqlite3.Connection,
    form: StoredForm,
    kind: Kind,
    namespace: str | None,
    name: str | None,
    selector: Selector | None,
    after: tuple[str, str] | None,
    limit: int | None,
    at: int | None,
    test: BodyTest | None,
) -> Page:
    """See `Store.page`; in the caller's transaction."""
    changed = past(connection, kind, at) if at is not None else {}
    is_sealed = kind in SEALED_KINDS
    where, parameters = _of_kind(kind, namespace, name)
    if after is not None:
        where += " AND (namespace, name) > (?, ?)"
        parameters.extend(after)
    rows = connection.execute(
        f"SELECT namespace, name, labels, body FROM objects WHERE {where} ORDER BY namespace, name", parameters
    )
    items: list[Stored] = []
    more = False
    then = (
        (*key, *connection.execute("SELECT labels, body FROM history WHERE version = ?", (version,)).fetchone())
        for key, version in sorted(changed.items())
        if version is not None
        and namespace in (None, key[0])
        and name in (None, key[1])
        and (after is None or key > after)
    )
    unchanged = (row for row in rows if row[:2] not in changed) if changed else rows
    for place, called, labels, body in heapq.merge(unchanged, then, key=lambda row: row[:2]):
        if selector is not None and not selector(labels_of(labels)):
            continue
        if test is not None and not test(called, b"" if is_sealed else body):
            continue
        if limit is not None and len(items) == limit:
            more = True
            break
        key = ObjectKey(kind, place, called)
        items.append(Stored(key, form.json(key, body)))
    return Page(tuple(items), counter(connection, "version"), more)
