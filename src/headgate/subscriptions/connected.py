"""The consumers that are connected: a stream while it lasts, another one while a pull of it is under way."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from headgate.control.quota_rules import CONSUMERS
from headgate.control.shared_quotas import SharedQuotas
from headgate.event.identity import namespace_of
from headgate.subscriptions.errors import ConsumersQuotaError


class ConnectedConsumers:
    """Counts the consumers of a dispatcher, by namespace. A consumer of one name counts once, however it comes.

    Args:
        quotas: How many a namespace may have; None: any number.
    """

    def __init__(self, quotas: SharedQuotas | None = None) -> None:
        self._quotas = quotas
        self._ways = Counter[tuple[str, str]]()
        """Streams and pulls by subscription and consumer."""
        self._by_namespace = Counter[str]()
        if quotas is not None:
            quotas.count(CONSUMERS, self._by_namespace.__getitem__)

    @contextlib.contextmanager
    def connected(self, subscription: str, consumer: str) -> Iterator[None]:
        """A consumer is connected for as long as the block lasts.

        Raises:
            ConsumersQuotaError: The namespace has as many as it may.
        """
        key, namespace = (subscription, consumer), namespace_of(subscription)
        if not self._ways[key]:
            self._check(namespace)
            self._by_namespace[namespace] += 1
        self._ways[key] += 1
        try:
            yield
        finally:
            self._ways[key] -= 1
            if not self._ways[key]:
                del self._ways[key]
                self._by_namespace[namespace] -= 1
                if not self._by_namespace[namespace]:
                    del self._by_namespace[namespace]

    def _check(self, namespace: str) -> None:
        if self._quotas is not None and self._quotas.is_used_up(CONSUMERS, namespace):
            limit = self._quotas.limit(CONSUMERS, namespace)
            raise ConsumersQuotaError(
                f"the namespace {namespace!r} has exceeded its quota: {CONSUMERS} is limited to {limit}",
                hint="close a consumer, or ask for a larger quota: kubectl describe quota shows the limits",
            )
