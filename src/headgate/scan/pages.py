"""Long scans in pages that know nothing of each other, so that a long scan delays nothing else.

Between two pages a caller may stop, restart or die: nothing is kept for it. So another process can scan the pages
(`server/peers/reader_client.py`), and on a server it does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

import msgspec

from headgate.filter.skipping.prune import FilterValueRule
from headgate.scan.counting import Counting, CountPage, CountRequest
from headgate.scan.scan import Piece, Scan
from headgate.scan.source import Query, ReadableLog
from headgate_api.limits import READ_EVENTS_PER_TURN, SCAN_REQUEST_TURN_S, SCAN_TURN_S

RuleOf = Callable[[str], FilterValueRule | None]
"""How the events of a broker (its identity) get their filter values; None when there is no such broker. May block."""

Step = Callable[[int], Awaitable[list[Piece]]]
"""`Scan.step` by another thread: one at a time."""


@asynccontextmanager
async def scanning(threads: Executor, make: Callable[[], Scan]) -> AsyncGenerator[tuple[Scan, Step], None]:
    """A scan that is made (a new filter takes a while) and stepped in threads, SCAN_TURN_S a step.

    It is closed when it is left. Whoever leaves in the middle of a step does not wait for it. The thread goes on until
    the step ends, and closes the files only then: a step beside a close would open them again, and leave them open.
    """
    making = threads.submit(make)
    running: Future[Any] = making

    async def step(events_max: int) -> list[Piece]:
        nonlocal running
        turn = threads.submit(lambda: scan.step(events_max, time.monotonic() + SCAN_TURN_S))
        running = turn
        return await asyncio.wrap_future(turn)

    def close(_: Future[Any]) -> None:
        if not making.cancelled() and making.exception() is None:
            making.result().close()

    try:
        scan = await asyncio.wrap_future(making)
        yield scan, step
    finally:
        running.add_done_callback(close)


class ScanRequest(msgspec.Struct, frozen=True):
    """What one page is to hold."""

    broker: str
    rule: FilterValueRule
    cel: str | None  # CEL text of a filter that must be true; None takes every event of the broker
    start: dict[int, int]  # first offset to look at, by partition
    end: dict[int, int]  # offset behind the last one, for each of them
    count_max: int  # stop when so many events are found
    user: str = ""  # whose turn a page takes; empty where nobody is known


class Located(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where an event stands, with when it was stored, microseconds since 1970 UTC; in the order of storing."""

    stored_us: int
    partition: int
    offset: int


class ScanPage(msgspec.Struct, frozen=True):
    """What a page found."""

    found: list[Located]  # events of which the filter is true, in the order of the log within each partition
    positions: dict[int, int]  # where the next page starts, by partition
    errors: int = 0  # events for which the filter is an error; they are not found


class Scanner(Protocol):
    """Scans and counts pages. Raises UnreadableEventsError (damage, or a record none of ours) and UnavailableError."""

    async def scan_page(self, request: ScanRequest) -> ScanPage:
        """Scans from `start` on until enough events are found, `end` is reached or SCAN_REQUEST_TURN_S is over."""

    async def count_page(self, request: CountRequest) -> CountPage:
        """Counts from `start` until `end`, until SCAN_REQUEST_TURN_S is over, or BACKTEST_WINDOWS_MAX are counted."""


class LogScanner:
    """Scans in threads of this process, shared with others: a turn holds one for SCAN_TURN_S at a time."""

    def __init__(self, log: ReadableLog, threads: Executor) -> None:
        self._log = log
        self._threads = threads

    async def scan_page(self, request: ScanRequest) -> ScanPage:
        query = Query(request.broker, request.rule, cel=request.cel)
        make = partial(Scan, self._log, query, request.start, request.end)
        async with scanning(self._threads, make) as (scan, step):
            found: list[Located] = []
            until = time.monotonic() + SCAN_REQUEST_TURN_S
            while len(found) < request.count_max:
                room = min(request.count_max - len(found), READ_EVENTS_PER_TURN)
                pieces = await step(room)
                for piece in pieces:
                    places = zip(piece.append_times_us, piece.offsets, strict=True)
                    found += [Located(stored_us, piece.partition, offset) for stored_us, offset in places]
                if time.monotonic() >= until or (not pieces and scan.at_end()):
                    break
            return ScanPage(found, scan.positions, scan.counters.filter_errors)

    async def count_page(self, request: CountRequest) -> CountPage:
        # New filters are compiled, which takes a while: not on the loop.
        counting = await asyncio.wrap_future(self._threads.submit(Counting, self._log, request))
        until = time.monotonic() + SCAN_REQUEST_TURN_S
        while await asyncio.wrap_future(self._threads.submit(counting.turn)) and time.monotonic() < until:
            pass
        return counting.page
