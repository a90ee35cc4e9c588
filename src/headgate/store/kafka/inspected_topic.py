"""The topic `events` as `why` and `trace` read it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from heapq import merge
from typing import Final

import pyarrow.compute as pc

from headgate.event.arrow import EVENT_SCHEMA, from_batch
from headgate.filter.skipping.filter_value import DEFAULT, filter_value_rule
from headgate.inspect.find import EventSearch, FoundEvent, LogPage, SearchedPiece
from headgate.limits import SCAN_TURN_S, WHY_WINDOW_EVENTS, WHY_WINDOW_EVENTS_MAX, WHY_WINDOW_FOUND_MAX
from headgate.scan.source import Query, ReadableLog, ScanCounters, StoredPage

_ID, _SOURCE = (EVENT_SCHEMA.get_field_index(name) for name in ("id", "source"))
_ANY: Final = Query("", filter_value_rule(DEFAULT))
"""What nothing is passed over for."""


class InspectedTopic:
    """See `InspectedLog`: Kafka reads forward only, so a piece is a window of a partition, the next one twice as wide.

    Args:
        log: The topic.
    """

    def __init__(self, log: ReadableLog) -> None:
        self._log = log

    def newest(self, search: EventSearch) -> Iterator[SearchedPiece]:
        """See `InspectedLog`."""
        first, ends = self._log.first_offsets(), self._log.end_offsets()
        if search.since_us:
            since = self._log.offsets_at_time(list(first), search.since_us)
            first = {partition: max(offset, since[partition]) for partition, offset in first.items()}
        windows = [
            self._windows(
                partition, offset, min(ends[partition], search.before.get(partition, ends[partition])), search
            )
            for partition, offset in first.items()
        ]
        for _, piece in merge(*windows, key=lambda one: one[0]):
            yield piece

    def at(self, partition: int, offset: int) -> FoundEvent | None:
        """See `InspectedLog`."""
        if not self._log.first_offsets().get(partition, offset + 1) <= offset < self._log.end_offsets()[partition]:
            return None
        for _, page in self._pages({partition: offset}, {partition: offset + 1}):
            return _event(partition, page, 0)
        return None

    def descendants(self, root: str, time_us: int) -> Iterator[LogPage]:
        """See `InspectedLog`: everything, as nothing here says what descends from what."""
        del root
        start = self._log.offsets_at_time(self._log.partitions(), time_us)
        for partition, page in self._pages(start, self._log.end_offsets()):
            yield LogPage(page.batch, page.batch.nbytes, partial(_event, partition, page))

    def _windows(
        self, partition: int, first: int, end: int, search: EventSearch
    ) -> Iterator[tuple[int, SearchedPiece]]:
        """The windows of a partition, the last one first, each with what it is ordered by."""
        width, time_us = WHY_WINDOW_EVENTS, time.time_ns() // 1_000
        while end > first:
            begin = max(first, end - width)
            found = deque[FoundEvent](maxlen=WHY_WINDOW_FOUND_MAX)
            newest_us, oldest_us, size, is_full = 0, 0, 0, False
            for _, page in self._pages({partition: begin}, {partition: end}):
                newest_us, oldest_us = page.append_times_us[-1], oldest_us or page.append_times_us[0]
                size += page.batch.nbytes
                for event in _found(partition, page, search):
                    is_full = is_full or len(found) == found.maxlen
                    found.append(event)
            end = found[0].offset if is_full else begin  # what has no room is searched again
            yield -(newest_us or time_us), SearchedPiece(partition, end, oldest_us or time_us, size, reversed(found))
            time_us = oldest_us or time_us
            width = min(2 * width, WHY_WINDOW_EVENTS_MAX)

    def _pages(self, start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[tuple[int, StoredPage]]:
        """Everything between these offsets, with its partition; of a partition in order."""
        left = [partition for partition, offset in start.items() if offset < end[partition]]
        source = self._log.source(_ANY, {one: start[one] for one in left}, {one: end[one] for one in left})
        counters = ScanCounters()
        try:
            while left:
                source.begin(time.monotonic() + SCAN_TURN_S)
                try:
                    pages = [(one, page) for one in left if (page := source.read(one)) is not None]
                finally:
                    source.end(counters)
                yield from pages
                left = [one for one in left if source.position(one) < min(end[one], source.end_offset(one))]
        finally:
            source.close()


def _found(partition: int, page: StoredPage, search: EventSearch) -> Iterator[FoundEvent]:
    for row in pc.indices_nonzero(pc.equal(page.batch.column(_ID), search.id)).to_pylist():
        if search.source in ("", page.batch.column(_SOURCE)[row].as_py()):
            yield _event(partition, page, row)


def _event(partition: int, page: StoredPage, row: int) -> FoundEvent:
    """The event of a row: of Kafka a record of its own."""
    offset = page.offsets[row]
    return FoundEvent(partition, offset, page.append_times_us[row], from_batch(page.batch, row), offset, 1)
