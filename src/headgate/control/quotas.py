"""Resource quotas: which resources there are, what a quota means, and what namespaces use of theirs.

A resource has Kubernetes' name (`count/triggers.eventing.knative.dev`) where Kubernetes has one, else a name of our
own domain, as Kubernetes names what it does not know.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final, cast

import msgspec

from headgate.control.database import Database
from headgate.control.rows import counter
from headgate.storage.files import replace_whole
from headgate_api.control.errors import Cause, ExceededQuotaError, QuotaExcess, forbidden, invalid, not_one_of, required
from headgate_api.control.objects import Kind, ObjectKey, ResourceQuota, ResourceQuotaStatus, decode_stored
from headgate_api.limits import QUOTA_QUANTITY_CHARS_MAX

FILTER_COST: Final = "headgate.dev/filter-cost"
"""What the compiled filters of all triggers and subscriptions cost, see `filter.compile.cost`."""
PUBLISH_EVENTS: Final = "headgate.dev/publish-events-per-second"
PUBLISH_BYTES: Final = "headgate.dev/publish-bytes-per-second"
READERS: Final = "headgate.dev/readers"
CONSUMERS: Final = "headgate.dev/consumers"
"""Consumers of subscriptions that are connected."""
DEAD_LETTERS: Final = "headgate.dev/dead-letters"
"""Dead letters in the store."""
STORED_BYTES: Final = "headgate.dev/stored-bytes"
"""Of events in the log, until retention frees their segment."""
RATES: Final = (PUBLISH_BYTES, PUBLISH_EVENTS)
"""What is used anew all the time; no status says it."""
COUNTED_ELSEWHERE: Final = (CONSUMERS, DEAD_LETTERS, READERS, STORED_BYTES)
"""What no object uses: it is counted in the processes that hold it, see `control.shared_quotas`."""
NOT_ON_KAFKA: Final = (CONSUMERS, DEAD_LETTERS, STORED_BYTES)
"""What a deployment on Kafka does not limit: its servers do not know what the others have."""


def count_of(kind: Kind) -> str:
    """The resource that counts the objects of a kind."""
    return f"count/{kind.resource}"


COUNTS: Final[Mapping[str, Kind]] = {count_of(kind): kind for kind in Kind if kind.is_namespaced}
RESOURCES: Final = (*COUNTS, FILTER_COST, *RATES, *COUNTED_ELSEWHERE)
"""What a quota can limit."""

_QUANTITY: Final = re.compile(
    r"([0-9]+\.?[0-9]*|\.[0-9]+)(?:(Ki|Mi|Gi|Ti|Pi|Ei|m|k|M|G|T|P|E)|[eE]([+-]?[0-9]{1,2}))?", re.ASCII
)
_SCALES: Final = {"m": Decimal("0.001")} | {
    name: Decimal(base**power)
    for base, names in ((1_000, ("k", "M", "G", "T", "P", "E")), (1_024, ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")))
    for power, name in enumerate(names, 1)
}
_MOST: Final = (1 << 63) - 1


def quantity(written: int | str) -> int:
    """A quantity of Kubernetes as a number: `10`, `5k`, `64Mi`, `1e6`; ValueError for others, and above 2^63-1."""
    text = str(written)
    found = _QUANTITY.fullmatch(text) if len(text) <= QUOTA_QUANTITY_CHARS_MAX else None
    if found is None:
        raise ValueError("must be a quantity such as 10, 5k or 64Mi")
    number, suffix, exponent = found.groups()
    value = Decimal(number) * (_SCALES[suffix] if suffix else Decimal(10) ** int(exponent or 0))
    if value != value.to_integral_value() or value > _MOST:
        raise ValueError("must be a whole number from 0 to 2^63-1")
    return int(value)


def quota_with_defaults(quota: ResourceQuota) -> ResourceQuota:
    """The quota with its quantities as text."""
    hard: dict[str, int | str] = {name: str(value) for name, value in quota.spec.hard.items()}
    return msgspec.structs.replace(quota, spec=msgspec.structs.replace(quota.spec, hard=hard))


def quota_causes(quota: ResourceQuota) -> Iterator[Cause]:
    """Every rule that a quota breaks. A limit that nobody would hold is refused."""
    if not quota.spec.hard:
        yield required("spec.hard", "a quota limits at least one resource")
    for name, written in quota.spec.hard.items():
        yield from not_one_of(f"spec.hard[{name}]", name, RESOURCES)
        try:
            quantity(written)
        except ValueError as error:
            yield invalid(f"spec.hard[{name}]", written, str(error))


def not_counted_causes(quota: ResourceQuota, not_counted: Collection[str]) -> Iterator[Cause]:
    """A cause for every resource that the deployment does not count: nobody would hold its limit."""
    for name in quota.spec.hard:
        if name in not_counted:
            yield forbidden(f"spec.hard[{name}]", "no server of a deployment on Kafka knows what the others have of it")


def limits_of(quota: ResourceQuota) -> dict[str, int]:
    """The limits of a valid quota."""
    return {name: quantity(written) for name, written in quota.spec.hard.items()}


def lowest(quotas: Iterable[ResourceQuota]) -> dict[str, int]:
    """The limits of a namespace: every one of its quotas counts."""
    found: dict[str, int] = {}
    for quota in quotas:
        for name, limit in limits_of(quota).items():
            found[name] = min(limit, found.get(name, limit))
    return found


def check_room(
    quotas: Iterable[ResourceQuota], key: ObjectKey, requested: Mapping[str, int], used: Mapping[str, int]
) -> None:
    """Lets an object be written that uses `requested` more of each resource than its namespace uses now.

    As in Kubernetes, what does not grow is never refused. Raises ExceededQuotaError.
    """
    for quota in quotas:
        hard = limits_of(quota)
        over = tuple(
            QuotaExcess(name, more, used[name], str(quota.spec.hard[name]))
            for name, more in sorted(requested.items())
            if more > 0 and name in hard and used[name] + more > hard[name]
        )
        if over:
            raise ExceededQuotaError(key.kind, key.name, quota.metadata.name, over)


# --- usage ----------------------------------------------------------------------------------------
# What objects use is counted in the tables: exact, for the transaction that asks. What several processes hold, each of
# them writes to `run/usage/`, where it reads of the rest.


def admit(connection: sqlite3.Connection, key: ObjectKey, requested: dict[str, int]) -> None:
    """Raises ExceededQuotaError when an object, written in this transaction, uses too much more of a resource."""
    limited = list(_quotas(connection, (key.namespace,)))
    if limited:
        names = {name for quota in limited for name in quota.spec.hard} & requested.keys()
        check_room(limited, key, requested, _used(connection, key.namespace, names))


class QuotaTable:
    """Resource quotas, beside their writes. Its methods may block: call them in a thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def stale(self, since: int | None, usage: Usage | None = None, also: Collection[str] = ()) -> list[ResourceQuota]:
        """Quotas whose status is not what is used, with the status that is.

        All, or those of namespaces in which something was written after the resourceVersion `since`, and `also`.
        `usage` is of what no object says; None: no status says it.
        """
        with self._database.read() as connection:
            there = connection.execute("SELECT 1 FROM objects WHERE kind = ? LIMIT 1", (Kind.RESOURCE_QUOTA,))
            if there.fetchone() is None:
                return []
            written = None if since is None else _written_since(connection, since)
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


def _written_since(connection: sqlite3.Connection, since: int) -> list[str] | None:
    """Namespaces in which something was written; None when that is not known any more: it may be any."""
    if since < counter(connection, "history_floor"):
        return None
    rows = connection.execute("SELECT DISTINCT namespace FROM history WHERE version > ?", (since,))
    return [namespace for (namespace,) in rows if namespace]


# --- processes ------------------------------------------------------------------------------------


Usage = Mapping[str, Mapping[str, int]]
"""By resource and namespace how much is used."""
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
