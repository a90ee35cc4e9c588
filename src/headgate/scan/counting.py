"""Counts of the stored events that a filter takes, in pages that know nothing of each other; of all events or a sample.

A sample is spread evenly: each partition is cut into strides, and of each stride one window of
BACKTEST_WINDOW_EVENTS is looked at, somewhere in it, at the same place every time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol

import msgspec
import xxhash

from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.skipping.prune import FilterValueRule
from headgate.scan.scan import Piece, Scan
from headgate.scan.source import Query, ReadableLog
from headgate_api.backtest import WindowCount
from headgate_api.event.model import Event
from headgate_api.limits import (
    BACKTEST_EVALUATIONS_MAX,
    BACKTEST_WINDOW_EVENTS,
    BACKTEST_WINDOWS_MAX,
    READ_EVENTS_PER_TURN,
    SCAN_REQUEST_TURN_S,
    SCAN_TURN_S,
)

HOUR_US: Final = 3_600_000_000


class CountRequest(msgspec.Struct, frozen=True):
    """What one page counts."""

    broker: str
    rule: FilterValueRule
    cel: str
    beside: str | None  # CEL text of a second filter, asked of every event that the first one takes
    others: tuple[str, ...]  # CEL texts of filters asked of as many of these events as there is time for
    first: dict[int, int]  # where the whole count begins, by partition: windows are laid out from here
    start: dict[int, int]  # where this page begins
    end: dict[int, int]  # where the whole count ends
    share: float = 1.0  # of the events that are looked at; 1 for all
    user: str = ""  # whose turn a page takes; empty where nobody is known


class CountPage(msgspec.Struct, frozen=True):
    """What a page counted."""

    positions: dict[int, int]  # where the next page begins, by partition
    scanned: int  # of all brokers: looked at, or passed over because the filter rules them out
    taken: int  # of these, events of the broker of which the filter is true
    errors: int  # those for which it is an error
    hours: dict[int, int]  # events taken, by hours since 1970 UTC in which they were stored
    both: int  # events taken that `beside` takes too
    compared: int  # events taken of which `others` were asked
    others: list[float]  # for each the events taken that it takes too: counted where all were asked, else estimated
    chunks_read: int
    chunks_skipped: int
    windows: list[WindowCount] = []  # of a sample, in order; the first and the last may be parts


class EventCounter(Protocol):
    """Counts pages."""

    async def count_page(self, request: CountRequest) -> CountPage:
        """Counts from `start` until `end` is reached, SCAN_REQUEST_TURN_S is over, or BACKTEST_WINDOWS_MAX are counted.

        Raises UnreadableEventsError where a chunk is damaged or a record is none of ours, and UnavailableError.
        """


class LogCounter:
    """Counts in threads of this process, shared with others: a turn holds one for SCAN_TURN_S at a time."""

    def __init__(self, log: ReadableLog, threads: Executor) -> None:
        self._log = log
        self._threads = threads

    async def count_page(self, request: CountRequest) -> CountPage:
        # New filters are compiled, which takes a while: not on the loop.
        counting = await asyncio.wrap_future(self._threads.submit(_Counting, self._log, request))
        until = time.monotonic() + SCAN_REQUEST_TURN_S
        while await asyncio.wrap_future(self._threads.submit(counting.turn)) and time.monotonic() < until:
            pass
        return counting.page()


def windows(first: int, start: int, end: int, share: float, partition: int) -> Iterator[tuple[int, int]]:
    """The stretches of a partition that are looked at: first offset, and the one behind the last; ascending.

    They are laid out from `first`, where the whole count begins, and cut off before `start`. Two partitions are not
    looked at in step.
    """
    if share >= 1:
        if start < end:
            yield start, end
        return
    stride = _stride(share)
    number = (start - first) // stride
    while (begin := first + number * stride) < end:
        room = stride - BACKTEST_WINDOW_EVENTS + 1
        begin += xxhash.xxh64_intdigest(f"{partition}:{number}".encode()) % room
        behind = min(begin + BACKTEST_WINDOW_EVENTS, end)
        if max(begin, start) < behind:
            yield max(begin, start), behind
        number += 1


def _stride(share: float) -> int:
    """Events of which one window is looked at."""
    return max(BACKTEST_WINDOW_EVENTS, round(BACKTEST_WINDOW_EVENTS / share))


class _Counting:
    """One page. `turn` is called by one thread at a time."""

    def __init__(self, log: ReadableLog, request: CountRequest) -> None:
        self._log = log
        self._request = request
        self._query = Query(request.broker, request.rule, cel=request.cel)
        self._beside = None if request.beside is None else program(request.beside)
        self._others = [program(cel) for cel in request.others]
        self._positions = dict(request.start)
        self._scanned = self._taken = self._both = self._compared = 0
        self._errors = self._chunks_read = self._chunks_skipped = 0
        self._hours: Counter[int] = Counter()
        self._found = [0.0] * len(self._others)
        self._windows: list[WindowCount] = []

    def turn(self) -> bool:
        """Counts for SCAN_TURN_S; False at the end, or when the page is full."""
        until = time.monotonic() + SCAN_TURN_S
        request = self._request
        for partition, end in sorted(request.end.items()):
            for begin, behind in windows(
                request.first[partition], self._positions[partition], end, request.share, partition
            ):
                before = self._scanned, self._taken, self._errors, self._both
                self._count_window(partition, begin, behind, until)
                if request.share < 1:
                    now = self._scanned, self._taken, self._errors, self._both
                    counts = (one - other for one, other in zip(now, before, strict=True))
                    number = (begin - request.first[partition]) // _stride(request.share)
                    self._windows.append(WindowCount(partition, number, *counts))
                if len(self._windows) >= BACKTEST_WINDOWS_MAX:
                    return False
                if time.monotonic() >= until:
                    return True
            self._positions[partition] = max(self._positions[partition], end)
        return False

    def page(self) -> CountPage:
        return CountPage(
            positions=self._positions,
            scanned=self._scanned,
            taken=self._taken,
            errors=self._errors,
            hours=dict(self._hours),
            both=self._both,
            compared=self._compared,
            others=self._found,
            chunks_read=self._chunks_read,
            chunks_skipped=self._chunks_skipped,
            windows=self._windows,
        )

    def _count_window(self, partition: int, begin: int, behind: int, until: float) -> None:
        at = begin
        scan = Scan(self._log, self._query, {partition: begin}, {partition: behind})
        try:
            while at < behind:
                pieces = scan.step(READ_EVENTS_PER_TURN, until)
                self._add(pieces)
                at = scan.positions[partition]
                if not pieces and scan.at_end():
                    at = behind
                if time.monotonic() >= until:
                    break
        finally:
            scan.close()
        counters = scan.counters
        self._errors += counters.filter_errors
        self._chunks_read += counters.chunks_read
        self._chunks_skipped += counters.chunks_skipped
        self._scanned += at - begin
        self._positions[partition] = at

    def _add(self, pieces: Sequence[Piece]) -> None:
        taken = 0
        for piece in pieces:
            taken += len(piece.offsets)
            self._hours.update(stored_us // HOUR_US for stored_us in piece.append_times_us)
        self._taken += taken
        if not taken or (self._beside is None and not self._others):
            return
        whole = [one for piece in pieces for one in zip(piece.events(), piece.append_times_us, strict=True)]
        if self._beside is not None:
            self._both += sum(self._beside.evaluate(*one).kind is OutcomeKind.TRUE for one in whole)
        if self._others:
            self._compare(whole)

    def _compare(self, taken: Sequence[tuple[Event, int]]) -> None:
        """Asks the other filters of as many of these events as there is time for, evenly spread."""
        count = min(len(taken), max(1, BACKTEST_EVALUATIONS_MAX // len(self._others)))
        weight = len(taken) / count
        for number in range(count):
            view = EventView(*taken[number * len(taken) // count])
            for index, other in enumerate(self._others):
                if other.evaluate_view(view).kind is OutcomeKind.TRUE:
                    self._found[index] += weight
        self._compared += count
