"""Publish quotas: how many events and bytes a second a namespace's producers may store, and how many bytes in all.

Rates are held by token buckets, of which each front of a deployment has an equal part. A bucket lets a request in while
it is not in debt, whatever the request's size: over a longer time that comes to what the quota says.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from headgate.objects.kinds.quotas import PUBLISH_BYTES, PUBLISH_EVENTS, RATES, STORED_BYTES
from headgate.objects.store.quota_usage import LACKING, QuotaBoard
from headgate.objects.store.store import Store
from headgate.objects.views.shared_quotas import SharedQuotas
from headgate.observe.metrics import QUOTA_BYTES, QUOTA_EVENTS, QUOTA_REFUSED
from headgate_api.errors import OverloadedError
from headgate_api.event.names import namespace_of
from headgate_api.limits import QUOTA_BURST_S, QUOTA_REFUSAL_S, QUOTA_RETRY_AFTER_S_MAX


class PublishQuotaError(OverloadedError):
    """The namespace's producers have stored as much as its quota allows for now."""

    code = "publish-quota"
    advice = "send more slowly"

    def __init__(self, namespace: str, resource: str, limit: int, wait_s: float) -> None:
        super().__init__(
            f"the namespace {namespace!r} has exceeded its quota: {resource} is limited to {limit}",
            hint=f"{self.advice}, or ask for a larger quota: kubectl describe quota shows the limits",
        )
        self.retry_after_s = max(1, math.ceil(min(wait_s, QUOTA_RETRY_AFTER_S_MAX)))


class StoredBytesQuotaError(PublishQuotaError):
    """The namespace has as many bytes in the log as its quota allows."""

    code = "stored-bytes-quota"
    advice = "wait until retention frees old events"


async def delay_refusal() -> None:
    """Waits before a refusal is answered, about QUOTA_REFUSAL_S.

    The time is random: the connections of one producer would come back together otherwise, and what they cost in one
    go delays the requests of others.
    """
    await asyncio.sleep(QUOTA_REFUSAL_S * random.uniform(0.5, 1.5))


class TokenBucket:
    """So many a second, and after a pause as many at once as QUOTA_BURST_S brings. May go into debt.

    It is full at `now_s`, monotonic seconds.
    """

    __slots__ = ("_at_s", "_rate", "_size", "_tokens")

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._size = rate * QUOTA_BURST_S
        self._tokens = self._size
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until there is one in it; 0 while it is not empty. Infinite of a rate of 0."""
        self._tokens = min(self._size, self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if self._tokens > 0:
            return 0.0
        return (1 - self._tokens) / self._rate if self._rate else math.inf

    def take(self, count: float) -> None:
        """So many are gone; a negative number comes back."""
        self._tokens -= count

    def inherit(self, other: TokenBucket) -> None:
        """Begins with what another one has left: a quota that is written anew fills no bucket."""
        self._tokens = min(self._size, other._tokens)
        self._at_s = other._at_s


class PublishQuota:
    """The quota of one namespace in one of the `fronts` that share its limits. Lives on the front's event loop."""

    def __init__(
        self, namespace: str, limits: Mapping[str, int], fronts: int, now_s: float, before: PublishQuota | None
    ) -> None:
        self.limits = limits
        self.namespace = namespace
        self._buckets = {name: TokenBucket(limits[name] / fronts, now_s) for name in RATES if name in limits}
        for name, bucket in self._buckets.items():
            if before is not None and name in before._buckets:
                bucket.inherit(before._buckets[name])
        self._events = self._buckets.get(PUBLISH_EVENTS)
        self._bytes = self._buckets.get(PUBLISH_BYTES)
        self._counted = QUOTA_EVENTS.labels(namespace), QUOTA_BYTES.labels(namespace)

    def check(self, now_s: float) -> None:
        """Lets a request in, before its events are decoded. Raises PublishQuotaError when the namespace is in debt."""
        for name, bucket in self._buckets.items():
            wait_s = bucket.wait_s(now_s)
            if wait_s:
                raise PublishQuotaError(self.namespace, name, self.limits[name], wait_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until something is let in; 0 for at once."""
        return max((bucket.wait_s(now_s) for bucket in self._buckets.values()), default=0.0)

    def take(self, events: int, size_bytes: int) -> None:
        """Counts a request that was let in; negative numbers take back one that was not stored."""
        if self._events is not None:
            self._events.take(events)
        if self._bytes is not None:
            self._bytes.take(size_bytes)

    def stored(self, events: int, size_bytes: int) -> None:
        self._counted[0].inc(events)
        self._counted[1].inc(size_bytes)


_LIMITED: Final = (*RATES, STORED_BYTES)


class PublishQuotas(SharedQuotas):
    """The quotas of all namespaces in one front. `board` has what the other fronts of this server store.

    `stored` gives the bytes of a namespace in the partitions of this front, None where nobody counts them; `lacking`
    which brokers may store an event twice that they are to store once.
    """

    def __init__(
        self,
        store: Store,
        fronts: int,
        clock_s: Callable[[], float] = time.monotonic,
        board: QuotaBoard | None = None,
        stored: Callable[[str], int] | None = None,
        lacking: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        super().__init__(store, board, also={LACKING: lacking})
        self.count(STORED_BYTES, stored or (lambda _: 0))
        self._fronts = fronts
        self._clock_s = clock_s
        self._limited: dict[str, PublishQuota] = {}

    def get(self, identity: str) -> PublishQuota | None:
        """The quota of a broker's namespace, by the broker's identity; None for none. Asked for every request."""
        return self._limited.get(namespace_of(identity)) if self._limited else None

    def check(self, quota: PublishQuota) -> None:
        """Lets a request in, before its events are decoded; PublishQuotaError: enough is stored, for now or in all."""
        namespace = quota.namespace
        try:
            quota.check(self._clock_s())
            if self.is_used_up(STORED_BYTES, namespace):
                raise StoredBytesQuotaError(namespace, STORED_BYTES, quota.limits[STORED_BYTES], math.inf)
        except PublishQuotaError:
            QUOTA_REFUSED.labels(namespace).inc()
            raise

    def _take(self) -> None:
        super()._take()
        before, now_s, limited = self._limited, self._clock_s(), {}
        for namespace, every in self.limits.items():
            limits = {name: every[name] for name in _LIMITED if name in every}
            old = before.get(namespace)
            if old is not None and old.limits == limits:
                limited[namespace] = old  # a status was written, nothing else
            elif limits:
                limited[namespace] = PublishQuota(namespace, limits, self._fronts, now_s, old)
        self._limited = limited
