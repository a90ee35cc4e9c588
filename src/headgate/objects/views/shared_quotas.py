"""Quotas of what processes hold and no object says: readers, consumers, dead letters, bytes of the log.

Where one process has all of a resource, its limit is exact. Several know what the others have as it was QUOTA_USAGE_S
ago, so that a namespace may exceed its limit by what it takes meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import structlog

from headgate.objects.kinds.quotas import CONSUMERS, DEAD_LETTERS, READERS, STORED_BYTES, lowest
from headgate.objects.store.quota_usage import QuotaBoard
from headgate.objects.store.rows import KnownObjects
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ObjectCopy
from headgate.observe import metrics
from headgate.observe.logs import Recurring
from headgate_api.errors import OverloadedError
from headgate_api.limits import QUOTA_USAGE_S
from headgate_api.objects.kinds import Kind, ResourceQuota

_GAUGES: Final = {
    CONSUMERS: metrics.QUOTA_CONSUMERS,
    DEAD_LETTERS: metrics.QUOTA_DEAD_LETTERS,
    READERS: metrics.QUOTA_READERS,
    STORED_BYTES: metrics.QUOTA_STORED_BYTES,
}
_log: Final = structlog.get_logger("headgate.objects")


class SharedQuotas(ObjectCopy):
    """The limits, and who uses how much of them; `board` has what the other processes use, None where there are none.

    `also` is what this process says beside that, by resource. `limits` says by namespace and resource the most that may
    be used, and is replaced as a whole.
    """

    def __init__(
        self,
        store: Store,
        board: QuotaBoard | None = None,
        also: Mapping[str, Callable[[], Mapping[str, int]]] = MappingProxyType({}),
    ) -> None:
        self._quotas: KnownObjects[ResourceQuota] = KnownObjects(Kind.RESOURCE_QUOTA)
        super().__init__(store, self._quotas)
        self.limits: Mapping[str, Mapping[str, int]] = {}
        self._board = board
        self._also = also
        self._counted: dict[str, Callable[[str], int]] = {}

    def _take(self) -> None:
        by_namespace: dict[str, list[ResourceQuota]] = {}
        for quota in self._quotas.by_path.values():
            by_namespace.setdefault(quota.metadata.namespace, []).append(quota)
        self.limits = {namespace: lowest(quotas) for namespace, quotas in by_namespace.items()}

    def count(self, resource: str, held: Callable[[str], int]) -> None:
        """This process has some of a resource: of a namespace what `held` says, which is called on the event loop."""
        self._counted[resource] = held

    def limit(self, resource: str, namespace: str) -> int | None:
        """How much a namespace may have; None for as much as it likes."""
        return self.limits[namespace].get(resource) if namespace in self.limits else None

    def is_used_up(self, resource: str, namespace: str) -> bool:
        limit = self.limit(resource, namespace)
        if limit is None:
            return False
        others = self._board.others(resource, namespace) if self._board is not None else 0
        return self._counted[resource](namespace) + others >= limit

    def show(self) -> dict[str, dict[str, int]]:
        """Sets the gauges, of namespaces that are limited; what they show, by resource and namespace."""
        limits, shown = self.limits, {}
        for resource, held in self._counted.items():
            used = {namespace: held(namespace) for namespace, most in limits.items() if resource in most}
            _GAUGES[resource].replace(used)
            if used:
                shown[resource] = used
        return shown

    async def share(self) -> None:
        """Tells the other processes now and then, and hears of them, until it is cancelled."""
        looks = Recurring(_log, "the usage of quotas cannot be told to other processes", OSError)
        while True:
            own = self.show() | {resource: dict(found) for resource, said in self._also.items() if (found := said())}
            if self._board is not None:
                with looks.attempt():
                    await asyncio.to_thread(self._board.exchange, own)
            await asyncio.sleep(QUOTA_USAGE_S)


class QuotaPlaces:
    """Places of one resource that this process gives, counted by namespace. Lives on one event loop.

    `error` is raised when a namespace has as many as it may; `one` names what its holder may close: `a reader`.
    """

    def __init__(self, quotas: SharedQuotas | None, resource: str, error: type[OverloadedError], one: str) -> None:
        self._quotas = quotas
        self._resource = resource
        self._error = error
        self._one = one
        self._held = Counter[str]()
        if quotas is not None:
            quotas.count(resource, self._held.__getitem__)

    def take(self, namespace: str) -> None:
        """One more place is held, until `give_back`."""
        if self._quotas is not None and self._quotas.is_used_up(self._resource, namespace):
            limit = self._quotas.limit(self._resource, namespace)
            raise self._error(
                f"the namespace {namespace!r} has exceeded its quota: {self._resource} is limited to {limit}",
                hint=f"close {self._one}, or ask for a larger quota: kubectl describe quota shows the limits",
            )
        self._held[namespace] += 1

    def give_back(self, namespace: str) -> None:
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]

    @contextlib.contextmanager
    def held(self, namespace: str) -> Iterator[None]:
        self.take(namespace)
        try:
            yield
        finally:
            self.give_back(namespace)
