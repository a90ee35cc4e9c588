"""The search for the first or the last event of which an expression is true, over the log, in the order of storing.

Each partition is searched by itself, forward; once one has an event, the others only where they hold events that were
stored before it (after it, for the last one). The last one is searched for in growing pieces from the end on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from headgate.filter.skipping.prune import FilterValueRule
from headgate.scan.pages import Located, Scanner, ScanRequest
from headgate.scan.source import ReadableLog
from headgate_api.limits import FIND_COUNT_MAX, FIND_EVENTS_MAX, FIND_EVENTS_MIN

OnProgress = Callable[[int, int], object]
"""Called with how many events have been scanned, and of about how many."""


@dataclass(frozen=True, slots=True)
class FilterSearch:
    """What is searched for."""

    broker: str
    rule: FilterValueRule
    cel: str | None  # CEL text that must be true; None for every event
    last: bool = False  # the last event instead of the first one
    count: int = 1  # with `last`, in each partition: the count-th last one, or the first of those that there are


class EventFinder:
    """Searches for one event; cancelling the task ends the search."""

    def __init__(self, log: ReadableLog, scanner: Scanner) -> None:
        self._log = log
        self._scanner = scanner

    async def find(
        self,
        search: FilterSearch,
        start: Mapping[int, int],
        end: Mapping[int, int],
        on_progress: OnProgress = lambda _, __: None,
    ) -> Located | None:
        """The event from `start` up to before `end`, or None. Raises as `Scanner.scan_page`."""
        progress = _Progress(sum(max(0, end[partition] - at) for partition, at in start.items()), on_progress)
        found: Located | None = None
        for partition in sorted(start):
            first, behind = start[partition], end[partition]
            if found is not None:
                since = await asyncio.to_thread(self._log.offsets_at_time, [partition], found.stored_us)
                at = since[partition]
                first, behind = (max(first, at), behind) if search.last else (first, min(behind, at))
            find = self._last if search.last else self._first
            there = await find(search, partition, first, behind, progress)
            if there is not None and (found is None or (there > found if search.last else there < found)):
                found = there
            progress.end_partition(end[partition] - start[partition])
        return found

    async def _first(
        self, search: FilterSearch, partition: int, first: int, end: int, progress: _Progress
    ) -> Located | None:
        async with aclosing(self._pages(search, partition, first, end, 1)) as pages:
            async for found, at in pages:
                progress.scanned(at - first)
                if found:
                    return found[0]
        return None

    async def _last(
        self, search: FilterSearch, partition: int, first: int, end: int, progress: _Progress
    ) -> Located | None:
        size, upto, last = FIND_EVENTS_MIN, end, list[Located]()
        while upto > first and len(last) < search.count:
            begin = max(first, upto - size)
            before: list[Located] = []
            async with aclosing(self._pages(search, partition, begin, upto, FIND_COUNT_MAX)) as pages:
                async for found, at in pages:
                    progress.scanned(end - upto + at - begin)
                    before = (before + found)[-search.count :]
            last = (before + last)[-search.count :]
            upto, size = begin, min(2 * size, FIND_EVENTS_MAX)
        return last[0] if last else None

    async def _pages(
        self, search: FilterSearch, partition: int, first: int, end: int, count_max: int
    ) -> AsyncGenerator[tuple[list[Located], int], None]:
        """Page after page: what was found, and the offset that was reached."""
        at = first
        while at < end:
            request = ScanRequest(search.broker, search.rule, search.cel, {partition: at}, {partition: end}, count_max)
            page = await self._scanner.scan_page(request)
            at = page.positions[partition]
            yield page.found, at


async def latest(
    finder: EventFinder, search: FilterSearch, start: Mapping[int, int], end: Mapping[int, int]
) -> dict[int, int]:
    """By partition the offset of the last event found (`search.last` is set), or of the count-th last; else the end."""
    offsets = dict(end)
    for partition, first in start.items():
        found = await finder.find(search, {partition: first}, end)
        if found is not None:
            offsets[partition] = found.offset
    return offsets


def offsets_at_event(log: ReadableLog, start: Mapping[int, int], found: Located, *, after: bool) -> dict[int, int]:
    """Where to go on, by partition: at the event, or behind it; blocking.

    The other partitions go on at what was stored at the same time or later, but not before `start`.
    """
    since = log.offsets_at_time(list(start), found.stored_us)
    later = {partition: max(at, since[partition]) for partition, at in start.items()}
    return later | {found.partition: found.offset + after}


class _Progress:
    """How far a search is, over all partitions."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self._total = total
        self._on_progress = on_progress
        self._ended = 0
        on_progress(0, total)

    def scanned(self, count: int) -> None:
        self._on_progress(min(self._ended + count, self._total), self._total)

    def end_partition(self, count: int) -> None:
        self._ended += max(0, count)
        self._on_progress(self._ended, self._total)
