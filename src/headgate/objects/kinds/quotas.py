"""Resource quotas: which resources there are, what a quota means, and what namespaces use of theirs.

A resource has Kubernetes' name (`count/triggers.eventing.knative.dev`) where Kubernetes has one, else a name of our
own domain, as Kubernetes names what it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Final

import msgspec

from headgate_api.limits import QUOTA_QUANTITY_CHARS_MAX
from headgate_api.objects.errors import Cause, ExceededQuotaError, QuotaExcess, forbidden, invalid, not_one_of, required
from headgate_api.objects.kinds import Kind, ObjectKey, ResourceQuota

FILTER_COST: Final = "headgate.dev/filter-cost"
"""What the compiled filters of all triggers and subscriptions cost, see `filter.compile.cost`."""
PUBLISH_EVENTS: Final = "headgate.dev/publish-events-per-second"
PUBLISH_BYTES: Final = "headgate.dev/publish-bytes-per-second"
READERS: Final = "headgate.dev/readers"
CONSUMERS: Final = "headgate.dev/consumers"
"""Consumers of subscriptions that are connected."""
DEAD_LETTERS: Final = "headgate.dev/dead-letters"
STORED_BYTES: Final = "headgate.dev/stored-bytes"
"""Of events in the log, until retention frees their segment."""
RATES: Final = (PUBLISH_BYTES, PUBLISH_EVENTS)
"""What is used anew all the time; no status says it."""
COUNTED_ELSEWHERE: Final = (CONSUMERS, DEAD_LETTERS, READERS, STORED_BYTES)
"""What no object uses: it is counted in the processes that hold it, see `control.shared_quotas`."""
NOT_ON_KAFKA: Final = (CONSUMERS, DEAD_LETTERS, STORED_BYTES)
"""What a deployment on Kafka does not limit: its servers do not know what the others have."""


def without_counts(quota: ResourceQuota, names: Collection[str]) -> ResourceQuota:
    """A quota whose status says nothing of some resources."""
    hard, used = (
        {name: text for name, text in of.items() if name not in names} for of in (quota.status.hard, quota.status.used)
    )
    return msgspec.structs.replace(quota, status=msgspec.structs.replace(quota.status, hard=hard, used=used))


def count_of(kind: Kind) -> str:
    """The resource that counts the objects of a kind."""
    return f"count/{kind.resource}"


COUNTS: Final[Mapping[str, Kind]] = {count_of(kind): kind for kind in Kind if kind.is_namespaced}
RESOURCES: Final = (*COUNTS, FILTER_COST, *RATES, *COUNTED_ELSEWHERE)

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


def not_counted_causes(quota: ResourceQuota) -> Iterator[Cause]:
    """A cause for every resource that a deployment on Kafka does not count: nobody would hold its limit."""
    for name in quota.spec.hard:
        if name in NOT_ON_KAFKA:
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
