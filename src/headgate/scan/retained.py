"""A log whose brokers keep their events for a time of their own: what is older is there for no scan any more.

The log's segments are shared by all brokers, so the bytes stay until the server's own retention gives the segment up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from headgate.scan.source import Query, ReadableLog, ScanCounters, ScanSource, StoredPage


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
        """Begins at the oldest event that the broker keeps."""
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
