"""What the sources of a server may admit: EventPolicies judge each event, and publish quotas how many there are.

A source sends as a service account of the namespace whose broker gets its events, `source-NAME`. Who runs the
deployment names its topics, so it needs no role. Its share of a publish quota is that of a front.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from headgate.auth.service_accounts import source_sender
from headgate.control.event_policy_copy import EventPolicyCopy
from headgate.control.store import Store
from headgate.event.identity import namespace_of
from headgate.event.model import Event
from headgate.ingress.event_gate import EventGate
from headgate.ingress.publish_quota import PublishQuotas
from headgate.store.config import SourceConfig


class SourceGate(Protocol):
    """What one source may admit. Called by its thread."""

    def wait_s(self) -> float:
        """Seconds until its namespace may store more, at least about; 0 for at once."""

    def check(self, event: Event) -> None:
        """Lets an event pass.

        Raises:
            HeadgateError: The source may not send it.
        """

    def stored(self, events: int, size_bytes: int) -> None:
        """So much is stored now."""


class OpenGate:
    """A source may admit everything."""

    def wait_s(self) -> float:
        """See `SourceGate`."""
        return 0.0

    def check(self, event: Event) -> None:
        """See `SourceGate`."""

    def stored(self, events: int, size_bytes: int) -> None:
        """See `SourceGate`."""


class SourceGates:
    """The gates of all sources of a server, as new as its copy of the objects.

    Args:
        store: The objects.
        policies: Who may send which events; None: everybody everything.
        sharers: How many fronts and sources share the quotas.
        clock_s: Monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        policies: EventPolicyCopy | None,
        sharers: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._policies = policies
        self._clock_s = clock_s
        self._quotas = PublishQuotas(store, sharers, clock_s)
        self._events = EventGate(policies.authority) if policies is not None else None
        self._version: int | None = None
        self._using = threading.Lock()
        """Held while quotas are read or used: they belong to one thread at a time."""

    def of(self, source: SourceConfig) -> SourceGate:
        """The gate of one source."""
        return _Gate(self, source)

    def wait_s(self, broker: str) -> float:
        """See `SourceGate.wait_s`; of a broker `namespace/name`. Reads what has changed of the objects.

        Raises:
            StoreUnavailableError: They cannot be read.
        """
        with self._using:
            version = self._store.data_version()
            if version != self._version:
                self._quotas.refresh()
                if self._policies is not None:
                    self._policies.refresh()
                self._version = version
            quota = self._quotas.get(broker)
            return quota.wait_s(self._clock_s()) if quota is not None else 0.0

    def stored(self, broker: str, events: int, size_bytes: int) -> None:
        """See `SourceGate.stored`."""
        with self._using:
            quota = self._quotas.get(broker)
            if quota is not None:
                quota.take(events, size_bytes)
                quota.stored(events, size_bytes)

    def check_of(self, source: SourceConfig) -> Callable[[Event], None]:
        """See `SourceGate.check`."""
        if self._events is None:
            return lambda _: None
        sender = source_sender(namespace_of(source.broker), source.name)
        return partial(self._events.check, sender, source.broker)


class _Gate:
    def __init__(self, gates: SourceGates, source: SourceConfig) -> None:
        self._gates = gates
        self._broker = source.broker
        self.check = gates.check_of(source)

    def wait_s(self) -> float:
        return self._gates.wait_s(self._broker)

    def stored(self, events: int, size_bytes: int) -> None:
        self._gates.stored(self._broker, events, size_bytes)
