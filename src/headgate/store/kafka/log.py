"""The topic `events` as scans see it: its partitions, their bounds, and where a time begins."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from headgate.limits import DAMAGES_KEPT, KAFKA_READ_S_MAX
from headgate.log.directory import OnCorrupt
from headgate.observe import metrics
from headgate.scan.source import Query
from headgate.store.config import KafkaConfig
from headgate.store.kafka.consumers import once_elected
from headgate.store.kafka.library import Faults, admin_client, library
from headgate.store.kafka.records import RecordError
from headgate.store.kafka.scan_consumers import ScanConsumers
from headgate.store.kafka.topic_scan import DOING, TopicScan

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, OffsetSpec

_log = structlog.get_logger(__name__)
_NO_RECORD: Final = -1
"""Kafka's answer where no record is as new as a time."""


class KafkaLog:
    """See `headgate.scan.source.ReadableLog`.

    Args:
        config: Of the deployment.
        on_corrupt: What readers do at records that Headgate has not stored so: stop there, or pass over and log them.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig, on_corrupt: OnCorrupt) -> None:
        self._config = config
        self._topic = config.topic("events")
        self._skips = on_corrupt == "skip"
        self._reported: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._consumers = ScanConsumers(config)
        self._faults = Faults()
        self._lock = threading.Lock()
        self._admin: AdminClient = admin_client(config, self._faults)

    def partitions(self) -> list[int]:
        """See `ReadableLog`."""
        return list(range(self._config.topics.events.partitions))

    def source(self, _query: Query, start: Mapping[int, int], end: Mapping[int, int]) -> TopicScan:
        """See `ReadableLog`: nothing of Kafka can be passed over unread."""
        return TopicScan(self._config, self._consumers, self._pass_over if self._skips else None, start, end)

    def _pass_over(self, partition: int, offset: int, error: RecordError) -> None:
        """Tells of a record once, whoever meets it."""
        with self._lock:
            is_new = (partition, offset) not in self._reported
            self._reported[partition, offset] = None
            while len(self._reported) > DAMAGES_KEPT:
                self._reported.popitem(last=False)
        if is_new:
            metrics.LOG_DAMAGES.inc()
            _log.error("record passed over", topic=self._topic, partition=partition, offset=offset, why=error.message)

    def first_offsets(self) -> dict[int, int]:
        """See `ReadableLog`."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(self.partitions(), OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def end_offsets(self) -> dict[int, int]:
        """See `ReadableLog`: behind the last committed record."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(self.partitions(), OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def offsets_at_time(self, partitions: Sequence[int], time_us: int) -> dict[int, int]:
        """See `ReadableLog`: the first record stored at or after the millisecond."""
        from confluent_kafka.admin import OffsetSpec

        since_ms = max(0, -(-time_us // 1_000))
        found = self._offsets(partitions, OffsetSpec.for_timestamp(since_ms))
        if _NO_RECORD not in found.values():
            return found
        ends = self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {partition: ends[partition] if at == _NO_RECORD else at for partition, at in found.items()}

    async def current_ends(self) -> dict[int, int]:
        """See `ReadableLog`."""
        return await asyncio.to_thread(self.end_offsets)

    def close(self) -> None:
        """See `ReadableLog`; scans have ended."""
        self._consumers.close()

    def _offsets(self, partitions: Iterable[int], spec: OffsetSpec) -> dict[int, int]:
        """What one specification says of these partitions. Asks again while a leader is elected."""
        from confluent_kafka import IsolationLevel

        asked = {library().TopicPartition(self._topic, partition): spec for partition in partitions}

        def ask() -> dict[int, int]:
            answers = self._admin.list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=KAFKA_READ_S_MAX
            )
            return {place.partition: answer.result().offset for place, answer in answers.items()}

        return once_elected(ask, self._config, self._faults, DOING)
