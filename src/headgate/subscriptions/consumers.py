"""The consumers of a subscription: who is connected, who has the lease, and which events each one has."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from headgate.objects.kinds.quotas import CONSUMERS
from headgate.objects.kinds.routing import PullRules
from headgate.objects.views.shared_quotas import QuotaPlaces, SharedQuotas
from headgate.subscriptions.leases import Leases
from headgate.subscriptions.messages import ConsumersQuotaError
from headgate.subscriptions.store import UnackedEvent
from headgate_api.event import rfc3339
from headgate_api.event.names import namespace_of
from headgate_api.limits import CONSUMERS_SHOWN_MAX

# --- consumers ------------------------------------------------------------------------------------


class ConsumerLease(msgspec.Struct, frozen=True):
    """Who alone may take events, and until when (RFC 3339) if it says nothing more."""

    consumer: str
    until: str


class ConsumerView(msgspec.Struct, frozen=True):
    """What a consumer was handed out and has not acknowledged. Times are RFC 3339.

    Attributes:
        oldest: When the oldest of them was stored.
        due: When the first of them is handed out again.
        redelivered: Of them, those that were handed out more than once.
    """

    consumer: str
    events: int
    oldest: str
    due: str
    redelivered: int


class ConsumerList(msgspec.Struct, frozen=True, omit_defaults=True):
    """The consumers of a subscription, by name: at most CONSUMERS_SHOWN_MAX; `more` says whether some are left out.

    `waiting` counts events that were read and that nobody has now. `lease` is absent when nobody has it, and of a
    shared subscription.
    """

    type: str
    items: list[ConsumerView]
    waiting: int
    more: bool = False
    lease: ConsumerLease | None = None


def consumers_of(leases: Leases, rules: PullRules, now_us: int) -> ConsumerList:
    """Who has what at a time, microseconds since 1970 UTC."""
    held: dict[str, list[UnackedEvent]] = {}
    waiting = 0
    for event in leases:
        if event.deliveries and event.due_us > now_us:
            held.setdefault(event.consumer, []).append(event)
        else:
            waiting += 1
    lease = None
    if rules.type != "shared" and leases.consumer is not None and leases.lease_us > now_us:
        lease = ConsumerLease(leases.consumer, rfc3339.text(leases.lease_us, "milliseconds"))
    items = [_view(name, events) for name, events in sorted(held.items())[:CONSUMERS_SHOWN_MAX]]
    return ConsumerList(rules.type, items, waiting, len(held) > CONSUMERS_SHOWN_MAX, lease)


def _view(name: str, events: Sequence[UnackedEvent]) -> ConsumerView:
    return ConsumerView(
        name,
        len(events),
        rfc3339.text(min(one.stored_us for one in events), "milliseconds"),
        rfc3339.text(min(one.due_us for one in events), "milliseconds"),
        sum(one.deliveries > 1 for one in events),
    )


# --- connected ------------------------------------------------------------------------------------


class ConnectedConsumers:
    """Counts the consumers of a dispatcher, by namespace. A consumer of one name counts once, however it comes."""

    def __init__(self, quotas: SharedQuotas | None = None) -> None:
        self._quota = QuotaPlaces(quotas, CONSUMERS, ConsumersQuotaError, "a consumer")
        self._ways = Counter[tuple[str, str]]()
        """Streams and pulls by subscription and consumer."""

    @contextlib.contextmanager
    def connected(self, subscription: str, consumer: str) -> Iterator[None]:
        """A consumer is connected while the block lasts; raises ConsumersQuotaError at the limit of its namespace."""
        key, namespace = (subscription, consumer), namespace_of(subscription)
        if not self._ways[key]:
            self._quota.take(namespace)
        self._ways[key] += 1
        try:
            yield
        finally:
            self._ways[key] -= 1
            if not self._ways[key]:
                del self._ways[key]
                self._quota.give_back(namespace)
