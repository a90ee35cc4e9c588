"""What namespaces use of their quotas.

What objects use is counted in the tables: exact, for the transaction that asks. What several processes hold, each of
them writes to `run/usage/`, where it reads of the rest.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, cast

import msgspec

from headgate.objects.kinds.quotas import COUNTED_ELSEWHERE, COUNTS, FILTER_COST, check_room
from headgate.objects.store.database import Table
from headgate.objects.store.history import written_since
from headgate.storage.files import replace_whole
from headgate_api.objects.kinds import Kind, ObjectKey, ResourceQuota, ResourceQuotaStatus, decode_stored


def admit(connection: sqlite3.Connection, key: ObjectKey, requested: dict[str, int]) -> None:
    """Raises ExceededQuotaError when an object, written in this transaction, uses too much more of a resource."""
    limited = list(_quotas(connection, (key.namespace,)))
    if limited:
        names = {name for quota in limited for name in quota.spec.hard} & requested.keys()
        check_room(limited, key, requested, _used(connection, key.namespace, names))


class QuotaTable(Table):
    """Resource quotas, beside their writes."""

    def stale(self, since: int | None, usage: Usage | None = None, also: Collection[str] = ()) -> list[ResourceQuota]:
        """Quotas whose status is not what is used, with the status that is.

        All, or those of namespaces in which something was written after the resourceVersion `since`, and `also`.
        `usage` is of what no object says; None: no status says it.
        """
        with self._database.read() as connection:
            there = connection.execute("SELECT 1 FROM objects WHERE kind = ? LIMIT 1", (Kind.RESOURCE_QUOTA,))
            if there.fetchone() is None:
                return []
            written = None if since is None else written_since(connection, since)
            looked_at = None if written is None else {*written, *also}
            stale = []
            for quota in _quotas(connection, looked_at):
                status = self._status(connection, quota, usage)
                if status != quota.status:
                    stale.append(msgspec.structs.replace(quota, status=status))
            return stale

    def _status(self, connection: sqlite3.Connection, quota: ResourceQuota, usage: Usage | None) -> ResourceQuotaStatus:
        hard = {name: str(limit) for name, limit in quota.spec.hard.items()}
        used = _used(connection, quota.metadata.namespace, hard)
        if usage is not None:
            for name in hard.keys() & set(COUNTED_ELSEWHERE):
                used[name] = usage.get(name, {}).get(quota.metadata.namespace, 0)
        return ResourceQuotaStatus(hard=hard, used={name: str(count) for name, count in used.items()})


def _quotas(connection: sqlite3.Connection, namespaces: Iterable[str] | None) -> Iterator[ResourceQuota]:
    select = "SELECT body FROM objects WHERE kind = ?"
    if namespaces is None:
        found = connection.execute(select, (Kind.RESOURCE_QUOTA,)).fetchall()
    else:
        found = [
            row
            for namespace in namespaces
            for row in connection.execute(f"{select} AND namespace = ?", (Kind.RESOURCE_QUOTA, namespace))
        ]
    for (body,) in found:
        yield cast(ResourceQuota, decode_stored(Kind.RESOURCE_QUOTA, body))


def _used(connection: sqlite3.Connection, namespace: str, names: Iterable[str]) -> dict[str, int]:
    """What a namespace uses of the resources that objects use; others are left out."""
    used = {}
    for name in names:
        if name == FILTER_COST:
            question = "SELECT ifnull(sum(cost), 0) FROM targets WHERE kind IN (?, ?) AND namespace = ?"
            about: tuple[str, ...] = (Kind.TRIGGER, Kind.SUBSCRIPTION, namespace)
        elif name in COUNTS:
            question = "SELECT count(*) FROM objects WHERE kind = ? AND namespace = ?"
            about = (COUNTS[name], namespace)
        else:
            continue
        (used[name],) = connection.execute(question, about).fetchone()
    return used


Usage = Mapping[str, Mapping[str, int]]
"""By resource and namespace how much is used; by LACKING and broker, as "namespace/name", in how many partitions."""
LACKING: Final = "deduplication-lacking"
"""Where a broker may store an event twice, as its window has more events than are known."""
_decode: Final = msgspec.json.Decoder(dict[str, dict[str, int]]).decode


class QuotaBoard:
    """What one process of a server says of usage, and hears of the others. Its methods may block, but for `others`.

    A file that cannot be read or written leaves what was known: usage is then as old as the last that could.
    """

    def __init__(self, directory: Path, part: str) -> None:
        self._directory = directory
        self._path = directory / f"{part}.json"
        self._written: Usage | None = None
        self._others: dict[str, Counter[str]] = {}

    def exchange(self, own: Usage) -> None:
        """Says what this process has, and reads what the others have; what raises OSError is tried by the next call."""
        self._others = usage_in(self._directory, but=self._path)
        if own != self._written:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_whole(self._path, msgspec.json.encode(own))
            self._written = own

    def others(self, resource: str, namespace: str) -> int:
        found = self._others.get(resource)
        return found[namespace] if found is not None else 0


def usage_in(directory: Path, but: Path | None = None) -> dict[str, Counter[str]]:
    """What all processes `but` one have together; what cannot be read is left out."""
    found: dict[str, Counter[str]] = {}
    for path in directory.glob("*.json"):
        if path != but:
            try:
                said = _decode(path.read_bytes())
            except (OSError, msgspec.DecodeError):
                continue
            for resource, counts in said.items():
                found.setdefault(resource, Counter()).update(counts)
    return found
