"""The consumers that scans of Kafka share: a scan keeps one between its turns, until another scan needs it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from headgate.errors import OverloadedError
from headgate.limits import KAFKA_SCAN_CONSUMERS_MAX
from headgate.store.config import KafkaConfig
from headgate.store.kafka.consumers import committed_reader
from headgate.store.kafka.library import Faults

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_FETCH_WAIT_MS: Final = 5
"""A scan that has reached the end gives its consumer back: none waits at a broker for what is to come."""


class ScanConsumers:
    """At most KAFKA_SCAN_CONSUMERS_MAX consumers. For any thread.

    Args:
        config: Of the deployment.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._idle: list[Consumer] = []
        self._kept: OrderedDict[object, Consumer] = OrderedDict()
        """By scan, between its turns; the one whose turn was longest ago first."""
        self._count = 0
        self.faults: Final = Faults()
        """What the connections report."""

    def take(self, scan: object) -> tuple[Consumer, bool]:
        """A consumer for a turn of this scan, and whether it is as the scan left it.

        Raises:
            OverloadedError: All are in turns of other scans.
            InvalidInputError: The library is missing, or an option is none of its own.
        """
        with self._lock:
            if (own := self._kept.pop(scan, None)) is not None:
                return own, True
            if self._idle:
                return self._idle.pop(), False
            if self._count >= KAFKA_SCAN_CONSUMERS_MAX:
                if not self._kept:
                    raise OverloadedError(f"{self._count} scans of Kafka are at work", hint="try again later")
                return self._kept.popitem(last=False)[1], False
            self._count += 1
        try:
            return committed_reader(self._config, self.faults, fetch_wait_ms=_FETCH_WAIT_MS), False
        except BaseException:
            with self._lock:
                self._count -= 1
            raise

    def give(self, scan: object, consumer: Consumer, *, keep: bool) -> None:
        """A turn is over.

        Args:
            scan: Whose.
            consumer: That it took.
            keep: The scan goes on; otherwise another one gets the consumer.
        """
        if not keep:
            consumer.unassign()
        with self._lock:
            if keep:
                self._kept[scan] = consumer
            else:
                self._idle.append(consumer)

    def drop(self, scan: object) -> None:
        """A scan that is in no turn has ended."""
        with self._lock:
            consumer = self._kept.pop(scan, None)
        if consumer is not None:
            self.give(scan, consumer, keep=False)

    def close(self) -> None:
        """Closes every consumer; all scans have ended."""
        with self._lock:
            consumers = [*self._idle, *self._kept.values()]
            self._idle.clear()
            self._kept.clear()
            self._count -= len(consumers)
        for consumer in consumers:
            consumer.close()
