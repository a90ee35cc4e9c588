"""Pages of stored objects, as JSON."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.control.objects import Kind, ObjectKey
from headgate.control.rows import SEALED_KINDS, counter

Selector = Callable[[dict[str, str]], bool]
"""Whether labels are wanted."""
BodyTest = Callable[[str, bytes], bool]
"""Whether an object is wanted, by its name and its JSON; of a kind that is stored encrypted the JSON is empty."""
_LABELS: Final = msgspec.json.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it lies in the store.

    Attributes:
        key: What names it.
        body: Its JSON.
    """

    key: ObjectKey
    body: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list.

    Attributes:
        items: Ordered by namespace and name.
        version: The newest resourceVersion when it was read.
        more: Whether there is more behind the last item.
    """

    items: tuple[Stored, ...]
    version: int
    more: bool


def labels_of(text: str) -> dict[str, str]:
    """Labels from the text that `history.labels_text` wrote."""
    return _LABELS.decode(text)


def read_page(
    connection: sqlite3.Connection,
    kind: Kind,
    namespace: str | None,
    name: str | None,
    selector: Selector | None,
    after: tuple[str, str] | None,
    limit: int | None,
    past: dict[tuple[str, str], int | None],
    test: BodyTest | None = None,
) -> Page:
    """See `Store.page`; in the caller's transaction. `past` is what `history.past` says."""
    is_sealed = kind in SEALED_KINDS
    where, parameters = "kind = ?", [str(kind)]
    for column, value in (("namespace", namespace), ("name", name)):
        if value is not None:
            where += f" AND {column} = ?"
            parameters.append(value)
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
        for key, version in sorted(past.items())
        if version is not None
        and namespace in (None, key[0])
        and name in (None, key[1])
        and (after is None or key > after)
    )
    unchanged = (row for row in rows if row[:2] not in past) if past else rows
    for at, called, labels, body in heapq.merge(unchanged, then, key=lambda row: row[:2]):
        if selector is not None and not selector(labels_of(labels)):
            continue
        if test is not None and not test(called, b"" if is_sealed else body):
            continue
        if limit is not None and len(items) == limit:
            more = True
            break
        items.append(Stored(ObjectKey(kind, at, called), body))
    return Page(tuple(items), counter(connection, "version"), more)
