"""The topic `events` as scans see it, with the consumers that they share, and as `why` and `trace` read it."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from operator import le
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import Came, KafkaAdmin, TopicConsumer, library, offset_of
from headgate.backend.kafka.events import headers_of
from headgate.backend.kafka.records import RecordError, decode_stored
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, from_batch, to_batch
from headgate.inspect.find import EventSearch, FoundEvent, LogPage, SearchedPiece
from headgate.inspect.log_follower import LogFollower
from headgate.log.directory import OnCorrupt
from headgate.observe import metrics
from headgate.scan.source import NO_END, Query, ScanCounters, StoredPage, newest_of_all, read_pages
from headgate_api.errors import HeadgateError, OverloadedError, UnavailableError
from headgate_api.limits import (
    COMMIT_BATCH_BYTES_MAX,
    DAMAGES_KEPT,
    KAFKA_FETCH_BYTES_MAX,
    KAFKA_READ_EVENTS,
    KAFKA_READ_S_MAX,
    KAFKA_SCAN_CONSUMERS_MAX,
    KAFKA_SCAN_WAIT_S,
    KAFKA_WINDOW_EVENTS,
    KAFKA_WINDOW_EVENTS_MAX,
    KAFKA_WINDOWS_BYTES_MAX,
)

if TYPE_CHECKING:
    from confluent_kafka import Message, TopicPartition


# --- scan consumers -------------------------------------------------------------------------------

DOING: Final = "events cannot be read"
_FETCH_WAIT_MS: Final = 5
"""A scan that has reached the end gives its consumer back: none waits at a broker for what is to come."""


class ScanConsumers:
    """At most KAFKA_SCAN_CONSUMERS_MAX consumers, for any thread; a scan keeps one until another scan needs it."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._idle: list[TopicConsumer] = []
        self._kept: OrderedDict[object, TopicConsumer] = OrderedDict()
        """By scan, between its turns; the one whose turn was longest ago first."""
        self._count = 0

    def take(self, scan: object) -> tuple[TopicConsumer, bool]:
        """A consumer for a turn of this scan, and whether it is as the scan left it; OverloadedError at the bound."""
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
            return TopicConsumer.committed(self._config, DOING, fetch_wait_ms=_FETCH_WAIT_MS), False
        except BaseException:
            with self._lock:
                self._count -= 1
            raise

    def give(self, scan: object, consumer: TopicConsumer, *, keep: bool) -> None:
        """A turn is over: the scan goes on and keeps the consumer, or another one gets it."""
        if not keep:
            consumer.raw.unassign()
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


# --- topic scan -----------------------------------------------------------------------------------
# Scans read pages as chunks of the embedded log; `tests/backend/contract.py` holds both stores to the same. All
# partitions of a scan come by one consumer, fetched beside each other. What it fetched waits here until the scan reads
# its partition; a bound of bytes ends the fetching, never the reading of what is there.


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events of one partition that were read together, a `StoredPage`.

    Kafka knows milliseconds of `append_times_us`. Reading goes on at `next_offset`, above the last of `offsets`.
    """

    offsets: Sequence[int]
    append_times_us: Sequence[int]
    batch: pa.RecordBatch
    next_offset: int

    @property
    def size_bytes(self) -> int:
        return int(self.batch.nbytes)

    @property
    def message(self) -> bytes | None:
        return None  # there are no such bytes

    def behind(self, offset: int) -> EventPage:
        """The part from this one of its offsets on."""
        row = bisect_left(self.offsets, offset)
        return EventPage(self.offsets[row:], self.append_times_us[row:], self.batch.slice(row), self.next_offset)


PassedOver = Callable[[int, int, RecordError], object]
"""Called with partition, offset and what is wrong."""


class TopicScan:
    """The `ScanSource` of the topic (`scan/source.py`).

    `passed_over` is told of records that Headgate has not stored so, with their place; without it scans stop at them.
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
        self._consumer: TopicConsumer | None = None  # in a turn
        self._has_waited = False
        self._silent_s = 0.0
        """How long turns have waited for Kafka since it last answered."""
        self._failed: HeadgateError | None = None
        self._missed = self._corrupt = 0

    # --- turns -----------------------------------------------------------------------------------------

    def begin(self, until: float) -> None:
        """A turn waits KAFKA_SCAN_WAIT_S for Kafka at most, where nothing is at hand."""
        self._consumer, is_kept = self._consumers.take(self)
        self._has_waited = False
        if not is_kept:
            self._assign()

    def end(self, counters: ScanCounters) -> None:
        """At the end the consumer goes to other scans."""
        counters.events_missed += self._missed
        counters.events_corrupt += self._corrupt
        self._missed = self._corrupt = 0
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._consumers.give(self, consumer, keep=not self._is_fetched() and self._failed is None)

    def close(self) -> None:
        self._consumers.drop(self)
        self._buffers = {partition: deque() for partition in self._buffers}

    # --- where it stands -------------------------------------------------------------------------------

    def position(self, partition: int) -> int:
        position = self._positions[partition]
        if self._buffers[partition] or partition in self._again:
            return position
        return max(position, self._ends.get(partition, 0))

    def end_offset(self, partition: int) -> int:
        return self._ends.get(partition, NO_END)

    def _is_fetched(self) -> bool:
        """Whether everything that there was has come."""
        return len(self._ends) == len(self._positions)

    # --- pages -----------------------------------------------------------------------------------------

    def read(self, partition: int) -> EventPage | None:
        """At most KAFKA_READ_EVENTS events."""
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
        self._again[partition] = self._last.pop(partition).behind(offset)
        self._positions[partition] = offset

    def _page(self, partition: int, buffer: deque[Message]) -> EventPage | None:
        """What is at hand; None where all of it was passed over. RecordError: it begins with what is none of ours."""
        offsets, times_us, events, numbers = list[int](), list[int](), list[StoredEvent](), list[str | None]()
        size_bytes = 0
        while buffer:
            message = buffer[0]
            offset, size_bytes = offset_of(message), size_bytes + len(message)
            if offsets and (len(offsets) == KAFKA_READ_EVENTS or size_bytes > COMMIT_BATCH_BYTES_MAX):
                break
            try:
                stored, produced = decode_stored(headers_of(message), message.value())
            except RecordError as error:
                if self._passed_over is not None:
                    self._corrupt += 1
                    self._passed_over(partition, offset, error)
                elif offsets:
                    break
                else:
                    raise RecordError(f"{self._topic}/{partition} at offset {offset}: {error.message}") from error
            else:
                offsets.append(offset)
                times_us.append(message.timestamp()[1] * 1_000)
                events.append(stored)
                numbers.append(produced)
            buffer.popleft()
            self._buffered_bytes -= _size_of(message)
            self._positions[partition] = offset + 1
        return EventPage(offsets, times_us, to_batch(events, numbers), self._positions[partition]) if events else None

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
            for message in self._consumer.raw.consume(KAFKA_READ_EVENTS, 0):
                self._take(self._consumer, message)
        except HeadgateError as error:
            self._failed = error
            raise

    def _wait(self, consumer: TopicConsumer) -> None:
        self._has_waited = True
        since = time.monotonic()
        while not self._is_fetched() and not any(self._buffers.values()):
            left = since + KAFKA_SCAN_WAIT_S - time.monotonic()
            message = consumer.raw.poll(left) if left > 0 else None
            if message is not None:
                self._take(consumer, message)
            elif left <= 0:
                self._silent_s += KAFKA_SCAN_WAIT_S
                break
        if self._silent_s > KAFKA_READ_S_MAX:
            raise UnavailableError(f"{DOING}: {self._topic} does not answer", hint="try again later")

    def _take(self, consumer: TopicConsumer, message: Message) -> None:
        partition, what = message.partition(), consumer.came(message)
        if partition is None or partition not in self._positions or what is Came.NOTHING:
            return
        if what is Came.REMOVED:
            self._go_on_behind_removed(consumer, partition)
            return
        offset = offset_of(message)
        if what is Came.END:
            self._silent_s = 0.0
            self._fetched[partition] = self._ends[partition] = max(self._fetched[partition], offset)
            return
        if offset < self._fetched[partition] or self._fetched[partition] >= self._end[partition]:
            return  # fetched again behind a new assignment, or before the end was noticed
        self._silent_s = 0.0
        if offset >= self._end[partition]:
            self._ends[partition] = self._fetched[partition] = offset
            consumer.raw.incremental_unassign([self._place(partition)])  # a pause would outlast this scan
            return
        self._ends.pop(partition, None)
        self._fetched[partition] = offset + 1
        self._buffers[partition].append(message)
        self._buffered_bytes += _size_of(message)

    def _go_on_behind_removed(self, consumer: TopicConsumer, partition: int) -> None:
        """Retention has removed what was to come next, or there never was such an offset."""
        at = self._fetched[partition]
        first, end = consumer.bounds(self._topic, partition)
        if at > end:
            raise consumer.ends_before(self._topic, partition, at)
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
        self._consumer.raw.assign(wanted)

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


# --- log ------------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)
_NO_RECORD: Final = -1
"""Kafka's answer where no record is as new as a time."""


class KafkaLog:
    """The `SearchableLog` of the topic (`scan/source.py`).

    By `on_corrupt` readers stop at records that Headgate has not stored so, or pass over and log them.
    """

    def __init__(self, config: KafkaConfig, on_corrupt: OnCorrupt) -> None:
        self._config = config
        self._topic = config.topic("events")
        self._skips = on_corrupt == "skip"
        self._reported: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._consumers = ScanConsumers(config)
        self._lock = threading.Lock()
        self._admin = KafkaAdmin(config, DOING)

    def partitions(self) -> list[int]:
        return list(range(self._config.topics.events.partitions))

    def source(self, _query: Query, start: Mapping[int, int], end: Mapping[int, int]) -> TopicScan:
        """Nothing of Kafka can be passed over unread."""
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
        return self._admin.offsets(self._topic, self.partitions(), "earliest")

    def end_offsets(self) -> dict[int, int]:
        """Behind the last committed record."""
        return self._admin.offsets(self._topic, self.partitions(), "latest")

    def offsets_at_time(self, partitions: Sequence[int], time_us: int) -> dict[int, int]:
        """The first record stored at or after the millisecond."""
        found = self._admin.offsets(self._topic, partitions, max(0, -(-time_us // 1_000)))
        if _NO_RECORD not in found.values():
            return found
        ends = self._admin.offsets(self._topic, partitions, "latest")
        return {partition: ends[partition] if at == _NO_RECORD else at for partition, at in found.items()}

    def newest(self, before: Mapping[int, int], not_before_us: int = 0) -> Iterator[tuple[int, StoredPage]]:
        first = self.kept_since(list(before), not_before_us)
        yield from newest_of_all({number: self.windows(number, first[number], end) for number, end in before.items()})

    def kept_since(self, partitions: Sequence[int], time_us: int) -> dict[int, int]:
        """Where partitions have what is kept of what was stored at or after a time, 0 for any."""
        first = self._admin.offsets(self._topic, partitions, "earliest")
        since = self.offsets_at_time(partitions, time_us) if time_us else first
        return {partition: max(offset, since[partition]) for partition, offset in first.items()}

    def windows(self, partition: int, first: int, end: int) -> Iterator[StoredPage]:
        """A piece of a partition, the newest page first: a window at its end is read, then one before it.

        Kafka reads forward only. A window of too many bytes is read again as two.
        """
        width, bytes_max = KAFKA_WINDOW_EVENTS, KAFKA_WINDOWS_BYTES_MAX // len(self.partitions())
        while end > first:
            begin, kept, kept_bytes = max(first, end - width), list[StoredPage](), 0
            with closing(read_pages(self, {partition: begin}, {partition: end})) as pages:
                for _, page in pages:
                    kept.append(page)
                    kept_bytes += page.size_bytes
                    if kept_bytes > bytes_max:
                        break
            if kept_bytes > bytes_max and end - begin > 1:
                width = (end - begin) // 2
                continue
            width, end = min(2 * (end - begin), KAFKA_WINDOW_EVENTS_MAX), begin
            yield from reversed(kept)

    def holding(self, partition: int, offsets: Iterable[int]) -> Iterator[StoredPage]:
        """Each is read alone."""
        for offset in offsets:
            for _, page in read_pages(self, {partition: offset}, {partition: offset + 1}):
                yield page

    async def current_ends(self) -> dict[int, int]:
        return await asyncio.to_thread(self.end_offsets)

    def close(self) -> None:
        self._consumers.close()


# --- inspected topic ------------------------------------------------------------------------------

_ID, _SOURCE = (EVENT_SCHEMA.get_field_index(name) for name in ("id", "source"))


class InspectedTopic:
    """The `InspectedLog` of the topic (`inspect/find.py`): a piece is a page of records.

    Where a follower has read the topic, its index names the events; the others are read one after the other.
    """

    def __init__(self, log: KafkaLog, follower: LogFollower | None = None) -> None:
        self._log = log
        self._follower = follower

    def newest(self, search: EventSearch) -> Iterator[SearchedPiece]:
        before = {number: min(end, search.before.get(number, end)) for number, end in self._log.end_offsets().items()}
        first = self._log.kept_since(list(before), search.since_us)
        pages = {number: self._newest(number, first[number], end, search.id) for number, end in before.items()}
        for number, page in newest_of_all(pages):
            found = reversed(list(_found(number, page, search)))
            yield SearchedPiece(number, page.offsets[0], page.append_times_us[0], page.size_bytes, found)

    def _newest(self, number: int, first: int, end: int, id_: str) -> Iterator[StoredPage]:
        """What of a piece of a partition may hold an event, the newest page first."""
        low, high = self._covered(number)
        low, high = max(low, first), min(high, end)
        if self._follower is None or low >= high:
            yield from self._log.windows(number, first, end)
            return
        yield from self._log.windows(number, high, end)
        index, width, edge = self._follower.index, 1, high
        named = index.with_id(number, id_, low, high)
        low = min(max(low, index.low(number)), high)  # some of them may have been given up just now
        for offset in takewhile(partial(le, low), named):
            if offset < edge:  # where many have the id, they are read together
                edge = max(low, offset + 1 - width)
                width = min(2 * width, KAFKA_WINDOW_EVENTS_MAX)
                yield from self._log.windows(number, edge, offset + 1)
        oldest = read_pages(self._log, {number: low}, {number: min(low + KAFKA_WINDOW_EVENTS, edge)})
        with closing(oldest):
            yield from (page for _, page in islice(oldest, 1))  # says how far back the search has come
        yield from self._log.windows(number, first, low)

    def _covered(self, number: int) -> tuple[int, int]:
        return (0, 0) if self._follower is None else self._follower.covered(number)

    def at(self, partition: int, offset: int) -> FoundEvent | None:
        if not self._log.first_offsets().get(partition, offset + 1) <= offset < self._log.end_offsets()[partition]:
            return None
        page = next(self._log.holding(partition, [offset]), None)
        return None if page is None else _event(partition, page, 0)

    def descendants(self, root: str, time_us: int) -> Iterator[LogPage]:
        """What the index does not know is read whole, as nothing else says what descends."""
        start = self._log.offsets_at_time(self._log.partitions(), time_us)
        for number, begin in start.items():
            low, high = self._covered(number)
            if self._follower is not None and low <= begin < high:
                named = self._follower.index.with_root(number, root, begin, high)
                if self._follower.index.low(number) <= begin:  # else some of them were given up just now
                    yield from (_log_page(number, page) for page in self._log.holding(number, named))
                    start[number] = high
        for number, page in read_pages(self._log, start, self._log.end_offsets()):
            yield _log_page(number, page)


def _log_page(number: int, page: StoredPage) -> LogPage:
    return LogPage(page.batch, page.size_bytes, partial(_event, number, page))


def _found(partition: int, page: StoredPage, search: EventSearch) -> Iterator[FoundEvent]:
    for row in pc.indices_nonzero(pc.equal(page.batch.column(_ID), search.id)).to_pylist():
        if search.source in ("", page.batch.column(_SOURCE)[row].as_py()):
            yield _event(partition, page, row)


def _event(partition: int, page: StoredPage, row: int) -> FoundEvent:
    """The event of a row: of Kafka a record of its own."""
    offset = page.offsets[row]
    return FoundEvent(partition, offset, page.append_times_us[row], from_batch(page.batch, row), offset, 1)
