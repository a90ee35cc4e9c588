"""What a scan reads: the interface of a log that is gone through, page by page.

The embedded log (`scan/chunks.py`) and Kafka (`backend/kafka/scan.py`) have it; suites of tests hold both to what is
said here (`tests/backend/scan_contract.py`, `tests/backend/test_followed_log.py`).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from headgate.filter.skipping.prune import DEFAULT, FilterValueRule, filter_value_rule
from headgate.log.errors import UnreadableEventsError
from headgate_api import positions
from headgate_api.event import rfc3339
from headgate_api.limits import SCAN_TURN_S
from headgate_api.positions import PositionError

NO_END: Final = 1 << 63
"""Above every offset: an end that is not known, or that there is none."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a reader wants of a broker's events."""

    broker: str
    rule: FilterValueRule  # how the broker's events get their filter values
    values: frozenset[str] | None = None  # filter values; None: any event
    match_unfiltered: bool = False  # beside `values`, events without a filter value too
    cel: str | None = None  # CEL text of a filter that must be true; None for none


@dataclass(slots=True)
class ScanCounters:
    """What reading took so far."""

    chunks_read: int = 0  # whose bodies were read; of Kafka pages of records
    chunks_skipped: int = 0  # passed over by their headers; never of Kafka
    events_scanned: int = 0  # in the chunks read
    events_matched: int = 0  # handed out
    false_positive_chunks: int = 0  # read by their Bloom filter's word, and no event had a wanted value
    filter_errors: int = 0  # events on which the filter is an error; they do not match
    events_missed: int = 0  # removed by retention before the reader came to them; of Kafka the offsets
    events_corrupt: int = 0  # in damaged chunks that were passed over; of Kafka records that Headgate has not stored so


class StoredPage(Protocol):
    """Events of one partition that are read together: a chunk, or some records of Kafka."""

    @property
    def offsets(self) -> Sequence[int]:
        """One an event; ascending. In Kafka numbers are left out."""

    @property
    def append_times_us(self) -> Sequence[int]:
        """When each was stored: microseconds since 1970 UTC."""

    @property
    def batch(self) -> pa.RecordBatch:
        """The events, a row each, of `EVENT_SCHEMA`; decoded at the first use; may raise UnreadableEventsError."""

    @property
    def size_bytes(self) -> int:
        """What was read for it: of a chunk the stored bytes, of records the decoded events."""

    @property
    def message(self) -> bytes | None:
        """Bytes in which every text of the events stands as it is, cheaper than `batch`; None where there are none."""


class ScanSource(Protocol):
    """Reads partitions forward for one scan. Blocking, in one thread at a time, but for what is said to be at hand."""

    def begin(self, until: float) -> None:
        """A turn begins, which is over at this time of `time.monotonic()`."""

    def read(self, partition: int) -> StoredPage | None:
        """The next page that may hold wanted events; None when there is none at hand, or some were passed over.

        The position stays where it raises UnreadableEventsError (what stands there is not what was stored) or
        UnavailableError (the store does not answer, or is another one than before).
        """

    def seek(self, partition: int, offset: int) -> None:
        """Goes on inside the page that was read last."""

    def end(self, counters: ScanCounters) -> None:
        """The turn is over: adds to these what was passed over in it."""

    def position(self, partition: int) -> int:
        """Offset of the next event to be read; at hand."""

    def end_offset(self, partition: int) -> int:
        """Every event that could be read when the source last looked is below it; at hand. `NO_END` when unknown."""

    def close(self) -> None:
        """Gives everything back; idempotent."""


class ReadableLog(Protocol):
    """A log as scans see it. Blocking, for any thread, but for `current_ends`."""

    def partitions(self) -> list[int]: ...

    def source(self, query: Query, start: Mapping[int, int], end: Mapping[int, int]) -> ScanSource:
        """Reads for a query from `start` on, up to before `end`; it may pass over what cannot be wanted."""

    def first_offsets(self) -> dict[int, int]:
        """The first offset that retention has kept, by partition; raises UnavailableError."""

    def end_offsets(self) -> dict[int, int]:
        """The offset behind the last event that can be read now, by partition; raises as `first_offsets`."""

    def offsets_at_time(self, partitions: Sequence[int], time_us: int) -> dict[int, int]:
        """Where each partition has what was stored at or after a time, its end where nothing was.

        Kafka knows milliseconds. Raises UnreadableEventsError where the way there is damaged, and UnavailableError.
        """

    async def current_ends(self) -> dict[int, int]:
        """`end_offsets` for the event loop, often."""

    def close(self) -> None:
        """Gives back what is kept open for `current_ends`; idempotent."""


class SearchableLog(ReadableLog, Protocol):
    """A log that is read backward, too, and at places that somebody knows."""

    def newest(self, before: Mapping[int, int], not_before_us: int = 0) -> Iterator[tuple[int, StoredPage]]:
        """What is stored below offsets of partitions, with its partition: the page with the newest event first.

        In the embedded log an offset of `before` is a chunk's first, or the end. A page of which everything was stored
        before `not_before_us` is not read. Raises UnreadableEventsError and UnavailableError.
        """

    def holding(self, partition: int, offsets: Iterable[int]) -> Iterator[StoredPage]:
        """The pages that hold offsets, each once where they ascend; what is gone is left out. Raises as `newest`."""


# --- whole pages ----------------------------------------------------------------------------------
# A log that is gone through without a query.

_ANY: Final = Query("", filter_value_rule(DEFAULT))
"""What nothing is passed over for."""


def read_pages(
    log: ReadableLog,
    start: Mapping[int, int],
    end: Mapping[int, int],
    on_unreadable: Callable[[int, UnreadableEventsError], None] | None = None,
) -> Generator[tuple[int, StoredPage], None, None]:
    """Everything between these offsets, with its partition; of a partition in order. Blocking; raises UnavailableError.

    A partition that cannot be read on is told to `on_unreadable`, and the others go on; without it
    UnreadableEventsError is raised.
    """
    left = [partition for partition, offset in start.items() if offset < end[partition]]
    if not left:
        return
    source = log.source(_ANY, {one: start[one] for one in left}, {one: end[one] for one in left})
    counters = ScanCounters()
    try:
        while left:
            pages = []
            source.begin(time.monotonic() + SCAN_TURN_S)
            try:
                for partition in list(left):
                    try:
                        page = source.read(partition)
                    except UnreadableEventsError as error:
                        if on_unreadable is None:
                            raise
                        on_unreadable(partition, error)
                        left.remove(partition)
                    else:
                        if page is not None:
                            pages.append((partition, page))
            finally:
                source.end(counters)
            yield from pages
            left = [one for one in left if source.position(one) < min(end[one], source.end_offset(one))]
    finally:
        source.close()


def newest_of_all(pages: Mapping[int, Iterable[StoredPage]]) -> Iterator[tuple[int, StoredPage]]:
    """Pages of partitions, of each the newest first, as `SearchableLog.newest` has them."""

    def keyed(partition: int) -> Iterator[tuple[int, int, StoredPage]]:
        return ((-page.append_times_us[-1], partition, page) for page in pages[partition])

    for _, partition, page in heapq.merge(*map(keyed, pages), key=lambda found: found[:2]):
        yield partition, page


# --- starts ---------------------------------------------------------------------------------------
# Every way to name a start, and the offsets at which reading starts then.

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NEXT: Final = "next"


def start_offsets(log: ReadableLog, start: str) -> dict[int, int]:
    """The first offset to read, by partition; blocking.

    `start` is `earliest` (the first event kept), `next` (what is stored from now on), a time in RFC 3339 (the first
    chunk, of Kafka the first event, stored at or after it), or a position; `latest` depends on the broker, see
    `search.latest`. Raises PositionError for anything else, and for a position of another log or behind the end of this
    one; and UnavailableError.
    """
    if start == EARLIEST:
        return log.first_offsets()
    if start == NEXT:
        return log.end_offsets()
    time_us = rfc3339.micros(start)
    if time_us is not None:
        return log.offsets_at_time(log.partitions(), time_us)
    if start[:1].isdigit():
        return positions.read(start, log.end_offsets())
    raise PositionError(
        f"{start[:64]!r} is no place in the log",
        hint=f"{EARLIEST}, {LATEST}, {NEXT}, a time such as 2026-03-04T05:06:07Z, or a position such as 0:123,1:456",
    )


# --- retained -------------------------------------------------------------------------------------
# A log whose brokers keep their events for a time of their own: what is older is there for no scan any more.
#
# The log's segments are shared by all brokers, so the bytes stay until the server's own retention gives the segment up.


class RetainedLog:
    """A `ReadableLog` of what brokers keep of another one, which is closed with it.

    `retention_us` says how long a broker (its identity) keeps events, None: as long as the log; it is asked for every
    turn. `clock_us` gives microseconds since 1970 UTC.
    """

    def __init__(
        self,
        log: ReadableLog,
        retention_us: Callable[[str], int | None],
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._log = log
        self._retention_us = retention_us
        self._clock_us = clock_us
        self.partitions = log.partitions
        self.first_offsets = log.first_offsets
        self.end_offsets = log.end_offsets
        self.current_ends = log.current_ends
        self.close = log.close

    def oldest_us(self, broker: str) -> int:
        """What a broker stored before it is there no more; microseconds since 1970 UTC, 0 for everything."""
        retention_us = self._retention_us(broker)
        return 0 if retention_us is None else self._clock_us() - retention_us

    def offsets_at_time(self, partitions: Sequence[int], time_us: int) -> dict[int, int]:
        return self._log.offsets_at_time(partitions, time_us)

    def source(self, query: Query, start: Mapping[int, int], end: Mapping[int, int]) -> ScanSource:
        oldest_us = self.oldest_us(query.broker)
        if oldest_us:
            kept = self._log.offsets_at_time(list(start), oldest_us)
            start = {partition: max(offset, kept[partition]) for partition, offset in start.items()}
        return _RetainedSource(self._log.source(query, start, end), lambda: self.oldest_us(query.broker))


class _RetainedSource:
    """A `ScanSource` that passes over pages which have become too old since the scan began."""

    def __init__(self, source: ScanSource, oldest_us: Callable[[], int]) -> None:
        self._source = source
        self._find_oldest_us = oldest_us
        self._oldest_us = 0
        self.seek = source.seek
        self.position = source.position
        self.end_offset = source.end_offset
        self.close = source.close

    def begin(self, until: float) -> None:
        self._oldest_us = self._find_oldest_us()
        self._source.begin(until)

    def read(self, partition: int) -> StoredPage | None:
        page = self._source.read(partition)
        if page is not None and self._oldest_us and page.append_times_us[-1] < self._oldest_us:
            return None
        return page

    def end(self, counters: ScanCounters) -> None:
        self._source.end(counters)
