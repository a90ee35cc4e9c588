"""Counts of the stored events that a filter takes, in pages that know nothing of each other; of all events or a sample.

A sample is spread evenly: each partition is cut into strides, and of each stride one window of
BACKTEST_WINDOW_EVENTS is looked at, somewhere in it, at the same place every time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import xxhash

from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.skipping.prune import FilterValueRule
from headgate.scan.scan import Piece, Scan
from headgate.scan.source import Query, ReadableLog
from headgate_api import positions
from headgate_api.backtest import SeenEvent, WindowCount
from headgate_api.event import rfc3339
from headgate_api.event.model import Event
from headgate_api.limits import (
    BACKTEST_EVALUATIONS_MAX,
    BACKTEST_EXAMPLES_MAX,
    BACKTEST_WINDOW_EVENTS,
    BACKTEST_WINDOWS_MAX,
    READ_EVENTS_PER_TURN,
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
    only_examples: bool = False  # `beside` is asked only until enough events are named, and not counted


class CountPage(msgspec.Struct):
    """What a page counted, so far."""

    positions: dict[int, int]  # where the next page begins, by partition
    scanned: int = 0  # of all brokers: looked at, or passed over because the filter rules them out
    taken: int = 0  # of these, events of the broker of which the filter is true
    errors: int = 0  # those for which it is an error
    hours: dict[int, int] = {}  # events taken, by hours since 1970 UTC in which they were stored
    both: int = 0  # events taken that `beside` takes too
    compared: int = 0  # events taken of which `others` were asked
    others: list[float] = []  # for each the events taken that it takes too; estimated where not all were asked
    chunks_read: int = 0
    chunks_skipped: int = 0
    examples: list[SeenEvent] = []  # some of the events taken that `beside` does not take
    windows: list[WindowCount] = []  # of a sample, in order; the first and the last may be parts


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


class Counting:
    """The counting of one page. `turn` is called by one thread at a time."""

    def __init__(self, log: ReadableLog, request: CountRequest) -> None:
        self._log = log
        self._request = request
        self._query = Query(request.broker, request.rule, cel=request.cel)
        self._beside = None if request.beside is None else program(request.beside)
        self._others = [program(cel) for cel in request.others]
        self._hours: Counter[int] = Counter()
        self.page = CountPage(dict(request.start), hours=self._hours, others=[0.0] * len(self._others))

    def turn(self) -> bool:
        """Counts for SCAN_TURN_S; False at the end, or when the page is full."""
        until = time.monotonic() + SCAN_TURN_S
        request, page = self._request, self.page
        for partition, end in sorted(request.end.items()):
            first = request.first[partition]
            for begin, behind in windows(first, page.positions[partition], end, request.share, partition):
                before = page.scanned, page.taken, page.errors, page.both
                self._count_window(partition, begin, behind, until)
                if request.share < 1:
                    now = page.scanned, page.taken, page.errors, page.both
                    counts = (one - other for one, other in zip(now, before, strict=True))
                    page.windows.append(WindowCount(partition, (begin - first) // _stride(request.share), *counts))
                if len(page.windows) >= BACKTEST_WINDOWS_MAX:
                    return False
                if time.monotonic() >= until:
                    return True
            page.positions[partition] = max(page.positions[partition], end)
        return False

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
        page, counters = self.page, scan.counters
        page.errors += counters.filter_errors
        page.chunks_read += counters.chunks_read
        page.chunks_skipped += counters.chunks_skipped
        page.scanned += at - begin
        page.positions[partition] = at

    def _add(self, pieces: Sequence[Piece]) -> None:
        taken = 0
        for piece in pieces:
            taken += len(piece.offsets)
            self._hours.update(stored_us // HOUR_US for stored_us in piece.append_times_us)
        self.page.taken += taken
        beside = None if self._request.only_examples and self._has_examples else self._beside
        if not taken or (beside is None and not self._others):
            return
        whole = [one for piece in pieces for one in zip(piece.events(), piece.append_times_us, strict=True)]
        if beside is not None:
            places = ((piece.partition, offset) for piece in pieces for offset in piece.offsets)
            for (partition, offset), (event, stored_us) in zip(places, whole, strict=True):
                if beside.evaluate(event, stored_us).kind is OutcomeKind.TRUE:
                    self.page.both += not self._request.only_examples
                elif not self._has_examples:
                    stored, position = rfc3339.text(stored_us, "milliseconds"), positions.write({partition: offset})
                    self.page.examples.append(SeenEvent(event.id, event.source, event.type, stored, position))
        if self._others:
            self._compare(whole)

    @property
    def _has_examples(self) -> bool:
        return len(self.page.examples) >= BACKTEST_EXAMPLES_MAX

    def _compare(self, taken: Sequence[tuple[Event, int]]) -> None:
        """Asks the other filters of as many of these events as there is time for, evenly spread."""
        count = min(len(taken), max(1, BACKTEST_EVALUATIONS_MAX // len(self._others)))
        weight = len(taken) / count
        for number in range(count):
            view = EventView(*taken[number * len(taken) // count])
            for index, other in enumerate(self._others):
                if other.evaluate_view(view).kind is OutcomeKind.TRUE:
                    self.page.others[index] += weight
        self.page.compared += count
