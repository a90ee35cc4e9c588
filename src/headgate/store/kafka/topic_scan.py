"""A scan's view of the topic `events`: all its partitions come by one consumer, fetched beside each other.

What a consumer fetched waits here until the scan reads its partition; a bound of bytes ends the fetching, never the
reading of what is there. Batches are read once their transaction is committed, and offsets are left out, as in
`reader.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headgate.errors import HeadgateError, UnavailableError
from headgate.limits import KAFKA_FETCH_BYTES_MAX, KAFKA_READ_EVENTS, KAFKA_READ_S_MAX, KAFKA_SCAN_WAIT_S
from headgate.scan.source import NO_END, ScanCounters
from headgate.store.config import KafkaConfig
from headgate.store.events import EventPage
from headgate.store.kafka.consumers import watermarks
from headgate.store.kafka.library import library, translated
from headgate.store.kafka.lost_topics import ends_before
from headgate.store.kafka.pages import PageBuilder, Passes, headers_of, offset_of
from headgate.store.kafka.records import RecordError
from headgate.store.kafka.scan_consumers import ScanConsumers

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

DOING: Final = "events cannot be read"
PassedOver = Callable[[int, int, RecordError], object]
"""Called with partition, offset and what is wrong."""


class TopicScan:
    """See `headgate.scan.source.ScanSource`.

    Args:
        config: Of the deployment.
        consumers: Shared with other scans.
        passed_over: Told of records that Headgate has not stored so, with their place; None: scans stop at them.
        start: First offset by partition.
        end: Offset behind the last one, by partition.
    """

    def __init__(
        self,
        config: KafkaConfig,
        consumers: ScanConsumers,
        passed_over: PassedOver | None,
        start: Mapping[int, int],
        end: Mapping[int, int],
    ) -> None:
        self._config = config
        self._topic = config.topic("events")
        self._consumers = consumers
        self._passed_over = passed_over
        self._end = dict(end)
        self._positions = dict(start)
        self._fetched = dict(start)
        """Offset of the next record that is to come, by partition."""
        self._ends: dict[int, int] = {}
        """Where a partition ended when it was last fetched from, or where the scan ends; absent while it goes on."""
        self._buffers: dict[int, deque[Message]] = {partition: deque() for partition in start}
        self._buffered_bytes = 0
        self._last: dict[int, EventPage] = {}
        """The page that was read last, by partition."""
        self._again: dict[int, EventPage] = {}
        """What of it is to be read again."""
        self._consumer: Consumer | None = None  # in a turn
        self._has_waited = False
        self._silent_s = 0.0
        """How long turns have waited for Kafka since it last answered."""
        self._failed: HeadgateError | None = None
        self._missed = self._corrupt = 0

    # --- turns -----------------------------------------------------------------------------------------

    def begin(self, until: float) -> None:
        """See `ScanSource`: a turn waits KAFKA_SCAN_WAIT_S for Kafka at most, where nothing is at hand."""
        self._consumer, is_kept = self._consumers.take(self)
        self._has_waited = False
        if not is_kept:
            self._assign()

    def end(self, counters: ScanCounters) -> None:
        """See `ScanSource`: at the end the consumer goes to other scans."""
        counters.events_missed += self._missed
        counters.events_corrupt += self._corrupt
        self._missed = self._corrupt = 0
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._consumers.give(self, consumer, keep=not self._is_fetched() and self._failed is None)

    def close(self) -> None:
        """See `ScanSource`."""
        self._consumers.drop(self)
        self._buffers = {partition: deque() for partition in self._buffers}

    # --- where it stands -------------------------------------------------------------------------------

    def position(self, partition: int) -> int:
        """See `ScanSource`."""
        position = self._positions[partition]
        if self._buffers[partition] or partition in self._again:
            return position
        return max(position, self._ends.get(partition, 0))

    def end_offset(self, partition: int) -> int:
        """See `ScanSource`."""
        return self._ends.get(partition, NO_END)

    def _is_fetched(self) -> bool:
        """Whether everything that there was has come."""
        return len(self._ends) == len(self._positions)

    # --- pages -----------------------------------------------------------------------------------------

    def read(self, partition: int) -> EventPage | None:
        """See `ScanSource`; at most KAFKA_READ_EVENTS events.

        Raises:
            RecordError: The record at the position is none of ours, and readers stop there.
            UnavailableError: Kafka does not answer, or the topic is another one than before.
        """
        page = self._again.pop(partition, None)
        if page is None:
            buffer = self._buffers[partition]
            if not buffer:
                self._fetch()
            page = self._page(partition, buffer)
        if page is not None:
            self._last[partition] = page
            self._positions[partition] = page.next_offset
        return page

    def seek(self, partition: int, offset: int) -> None:
        """See `ScanSource`."""
        self._again[partition] = self._last.pop(partition).behind(offset)
        self._positions[partition] = offset

    def _page(self, partition: int, buffer: deque[Message]) -> EventPage | None:
        builder = PageBuilder(f"{self._topic}/{partition}", self._passes(partition))
        while buffer and builder.add(buffer[0]):
            message = buffer.popleft()
            self._buffered_bytes -= _size_of(message)
            self._positions[partition] = offset_of(message) + 1
        return builder.page()

    def _passes(self, partition: int) -> Passes | None:
        tell = self._passed_over
        if tell is None:
            return None

        def passes(offset: int, error: RecordError) -> None:
            self._corrupt += 1
            tell(partition, offset, error)

        return passes

    # --- records ---------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Takes what has come; the first time in a turn it waits, where nothing is at hand."""
        if self._failed is not None:
            raise self._failed
        if self._consumer is None or self._is_fetched() or self._buffered_bytes >= KAFKA_FETCH_BYTES_MAX:
            return
        try:
            if not self._has_waited:
                self._wait(self._consumer)
            for message in self._consumer.consume(KAFKA_READ_EVENTS, 0):
                self._take(self._consumer, message)
        except HeadgateError as error:
            self._failed = error
            raise

    def _wait(self, consumer: Consumer) -> None:
        self._has_waited = True
        since = time.monotonic()
        while not self._is_fetched() and not any(self._buffers.values()):
            left = since + KAFKA_SCAN_WAIT_S - time.monotonic()
            message = consumer.poll(left) if left > 0 else None
            if message is not None:
                self._take(consumer, message)
            elif left <= 0:
                self._silent_s += KAFKA_SCAN_WAIT_S
                break
        if self._silent_s > KAFKA_READ_S_MAX:
            raise UnavailableError(f"{DOING}: {self._topic} does not answer", hint="try again later")

    def _take(self, consumer: Consumer, message: Message) -> None:
        partition, error = message.partition(), message.error()
        if error is not None:
            self._take_error(consumer, message)
            return
        if partition is None or partition not in self._positions:
            return
        offset = offset_of(message)
        if offset < self._fetched[partition] or self._fetched[partition] >= self._end[partition]:
            return  # fetched again behind a new assignment, or before the end was noticed
        self._silent_s = 0.0
        if offset >= self._end[partition]:
            self._ends[partition] = self._fetched[partition] = offset
            consumer.incremental_unassign([self._place(partition)])  # a pause would outlast this scan
            return
        self._ends.pop(partition, None)
        self._fetched[partition] = offset + 1
        self._buffers[partition].append(message)
        self._buffered_bytes += _size_of(message)

    def _take_error(self, consumer: Consumer, message: Message) -> None:
        kafka = library().KafkaError
        error, partition = message.error(), message.partition()
        assert error is not None
        if partition in self._positions and error.code() == kafka._PARTITION_EOF:
            self._silent_s = 0.0
            self._fetched[partition] = max(self._fetched[partition], offset_of(message))
            self._ends[partition] = self._fetched[partition]
        elif partition in self._positions and error.code() in (kafka.OFFSET_OUT_OF_RANGE, kafka._AUTO_OFFSET_RESET):
            self._go_on_behind_removed(consumer, partition)
        elif not error.retriable():
            raise translated(self._consumers.faults.cause(error), DOING, self._config)

    def _go_on_behind_removed(self, consumer: Consumer, partition: int) -> None:
        """Retention has removed what was to come next, or there never was such an offset."""
        at = self._fetched[partition]
        first, end = watermarks(consumer, self._place(partition), self._config, self._consumers.faults, DOING)
        if at > end:
            raise ends_before(DOING, self._topic, partition, at)
        if at < first:
            self._missed += first - at
            self._fetched[partition] = first
            if not self._buffers[partition] and partition not in self._again:
                self._positions[partition] = first
        self._assign()

    def _assign(self) -> None:
        """Fetching begins anew, behind what has come."""
        assert self._consumer is not None
        self._ends = {
            partition: at for partition, at in self._fetched.items() if at >= self._end[partition]
        }  # there the scan ends, whatever is behind
        wanted = [self._place(partition, at) for partition, at in self._fetched.items() if partition not in self._ends]
        self._consumer.assign(wanted)

    def _place(self, partition: int, *offset: int) -> TopicPartition:
        place: TopicPartition = library().TopicPartition(self._topic, partition, *offset)
        return place


def _size_of(message: Message) -> int:
    """Bytes of a record's value and headers."""
    try:
        headers = headers_of(message)
    except RecordError:  # told where the record is decoded
        return len(message)
    return len(message) + sum(len(value or b"") for _, value in headers)
