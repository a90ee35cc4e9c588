"""Reading the log in short turns, so that many readers share few threads; at the end of the log a reader waits.

Its growth is watched once for all readers that wait there.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from headgate.objects.kinds.quotas import READERS
from headgate.objects.kinds.specs import ServedBroker
from headgate.objects.views.shared_quotas import QuotaPlaces, SharedQuotas
from headgate.rpc.service import Credits
from headgate.scan.counting import CountPage, CountRequest
from headgate.scan.pages import LogScanner, ScanPage, ScanRequest, scanning
from headgate.scan.scan import Piece, Scan
from headgate.scan.search import EventFinder, FilterSearch, latest, offsets_at_event
from headgate.scan.source import EARLIEST, LATEST, NEXT, ReadableLog, ScanCounters, start_offsets
from headgate.shares import FairPlaces, FairThreads
from headgate.stream.request import ReadRequest
from headgate_api.errors import OverloadedError, UnavailableError
from headgate_api.event.model import Event
from headgate_api.event.names import namespace_of, path_of
from headgate_api.limits import READ_EVENTS_PER_TURN, READ_POLL_S, READ_PROGRESS_S, READ_THREADS, READERS_MAX
from headgate_api.objects.errors import UnknownBrokerError


class LogGrowth:
    """Wakes readers when the log has grown: one task looks at its ends for as long as anybody waits."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._ends: dict[int, int] = {}
        """As they were at the last look; empty while nobody looks."""
        self._waiting = 0
        self._looked = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def beyond(self, positions: Mapping[int, int], timeout_s: float) -> None:
        """Wait until a partition has a record at or behind its position, or the time is over."""
        self._waiting += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while all(self._ends.get(partition, 0) <= at for partition, at in positions.items()):
                        await self._looked.wait()
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Stop watching; no reader waits any more."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        try:
            while self._waiting:
                ends = self._ends
                with contextlib.suppress(UnavailableError):  # a reader that reads on says so
                    ends = await self._log.current_ends()
                if ends != self._ends:
                    self._ends = ends
                    looked, self._looked = self._looked, asyncio.Event()
                    looked.set()
                await asyncio.sleep(READ_POLL_S)
        finally:
            # Also after an error that nobody expects: the next reader that waits starts the watch again.
            self._ends = {}
            self._watching = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What a reader has after a turn, which has brought it from `before` to `positions`."""

    pieces: list[Piece]  # without any it only says where the reader is
    before: dict[int, int]
    positions: dict[int, int]
    counters: ScanCounters  # of the whole read so far
    at_end: bool  # whether everything durable has been looked at

    @property
    def size_bytes(self) -> int:
        """Of the events, as they are stored."""
        return sum(piece.size_bytes for piece in self.pieces)

    def placed(self) -> Iterator[tuple[int, int, Event, dict[int, int]]]:
        """Partition and offset of each event, the event, and where the reader stands behind it."""
        at, left = self.before, sum(len(piece.offsets) for piece in self.pieces)
        for piece in self.pieces:
            for offset, event in zip(piece.offsets, piece.events(), strict=True):
                at, left = {**at, piece.partition: offset + 1}, left - 1
                yield piece.partition, offset, event, at if left else self.positions


async def turns(
    log: ReadableLog, request: ReadRequest, threads: Executor, growth: LogGrowth, credits: Credits | None = None
) -> AsyncGenerator[Turn, None]:
    """Reads on until the request is satisfied: a turn with events at once, one without every READ_PROGRESS_S.

    A reader that follows gives its first progress behind its first step. Any other ends with a turn of progress.
    Closing the iterator closes the files. All readers share the `threads`: a turn holds one for SCAN_TURN_S.

    With `credits` the first turn has no events and says where the reader begins; None: any number may be given. Raises
    PositionError, UnavailableError, and UnreadableEventsError for a damaged chunk or a record that is none of ours.
    """
    start = await _start(log, request, threads)
    end: Mapping[int, int] = {}
    if request.end is not None:
        end = await asyncio.get_running_loop().run_in_executor(threads, start_offsets, log, request.end)
    left = request.limit
    deadline = time.monotonic() + request.wait_s
    progress_at = -math.inf if request.follow and credits is None else time.monotonic()
    async with scanning(threads, partial(Scan, log, request.query, start, end)) as (scan, step):
        if credits is not None:
            yield _progress_turn(scan, request)
        while True:
            most = READ_EVENTS_PER_TURN if left is None else min(left, READ_EVENTS_PER_TURN)
            if credits is not None:
                most = min(most, await credits.left())
                if not most:
                    break
            before = scan.positions
            pieces = await step(most)
            at_end = not pieces and scan.at_end()
            now = time.monotonic()
            if pieces:
                count = sum(len(piece.offsets) for piece in pieces)
                if left is not None:
                    left -= count
                if credits is not None:
                    credits.take(count)
                deadline = now  # what waits for a first event has it
                yield Turn(pieces, before, scan.positions, _told(scan, request), at_end)
            if left == 0 or (at_end and not request.follow and now >= deadline):
                break
            if now - progress_at >= READ_PROGRESS_S:  # also among events, which do not say where other partitions are
                progress_at = now
                yield _progress_turn(scan, request)
            if at_end:
                until = progress_at + READ_PROGRESS_S
                until = until if request.follow else min(deadline, until)
                await growth.beyond(scan.positions, max(0.0, until - time.monotonic()))
        yield _progress_turn(scan, request)


def _progress_turn(scan: Scan, request: ReadRequest) -> Turn:
    return Turn([], scan.positions, scan.positions, _told(scan, request), scan.at_end())


def _told(scan: Scan, request: ReadRequest) -> ScanCounters:
    """The counters that a reader is shown: below a ceiling only what he got, for the others count what he must not."""
    counters = scan.counters
    return ScanCounters(events_matched=counters.events_matched) if request.ceiling else replace(counters)


async def _start(log: ReadableLog, request: ReadRequest, threads: Executor) -> dict[int, int]:
    """Where to begin, by partition.

    `latest` is the broker's last event of each partition, whatever others have stored behind it; with `last`, so many
    of those that the filter takes. With `first` it is the first event from the start on of which the expression is
    true; without such an event, the end.
    """
    run, query = asyncio.get_running_loop().run_in_executor, request.query
    finder = EventFinder(log, LogScanner(log, threads))
    if request.start == LATEST or request.last is not None:
        earliest, ends = [await run(threads, start_offsets, log, name) for name in (EARLIEST, NEXT)]
        search = FilterSearch(query.broker, query.rule, request.ceiling or None, last=True)
        if request.last is not None:
            search = replace(search, cel=query.cel, count=request.last)
        start = await latest(finder, search, earliest, ends)
    else:
        start, ends = [await run(threads, start_offsets, log, name) for name in (request.start, NEXT)]
    if request.first is None:
        return start
    found = await finder.find(FilterSearch(query.broker, query.rule, request.first), start, ends)
    return ends if found is None else await run(threads, partial(offsets_at_event, log, start, found, after=False))


# --- readers --------------------------------------------------------------------------------------


class ReadersQuotaError(OverloadedError):
    """As many readers of a namespace's brokers are at work as its quota allows."""

    code = "readers-quota"


class Readers:
    """All readers of a log, which is closed with them; `served` gives the broker "namespace/name", and may block."""

    def __init__(
        self, log: ReadableLog, served: Callable[[str], ServedBroker | None], quotas: SharedQuotas | None = None
    ) -> None:
        self._quota = QuotaPlaces(quotas, READERS, ReadersQuotaError, "a reader")
        self._log = log
        self._served = served
        self._threads = FairThreads(READ_THREADS, "read")
        self._growth = LogGrowth(log)
        self._followed: dict[str, tuple[float, str]] = {}
        """By path of a broker that is followed: when it was last looked up, and its identity then."""
        self._places = FairPlaces("readers", "READERS_MAX", READERS_MAX)

    async def close(self) -> None:
        """Wait for the threads, and close the log; readers have been closed."""
        await self._growth.close()
        self._threads.shutdown()
        self._log.close()

    async def broker(self, path: str) -> ServedBroker:
        """The broker "namespace/name" as it is in the store now, so that a deletion or creation is seen at once."""
        broker = await asyncio.to_thread(self._served, path)
        if broker is None:
            raise UnknownBrokerError(f"there is no broker {path!r}", hint="headgate get brokers -A lists them")
        return broker

    async def scan_page(self, request: ScanRequest) -> ScanPage:
        threads = self._threads.of(namespace_of(request.broker), request.user)
        return await LogScanner(self._log, threads).scan_page(request)

    async def count_page(self, request: CountRequest) -> CountPage:
        threads = self._threads.of(namespace_of(request.broker), request.user)
        return await LogScanner(self._log, threads).count_page(request)

    async def reading(
        self, wanted: ReadRequest, credits: Credits | None = None, user: str = ""
    ) -> AsyncGenerator[Turn, None]:
        """One reader's turns, see `turns`; UnknownBrokerError once the broker has been deleted."""
        namespace = namespace_of(wanted.query.broker)
        with self._quota.held(namespace), self._places.held(namespace, user):
            pages = turns(self._log, wanted, self._threads.of(namespace, user), self._growth, credits)
            async with aclosing(pages) as reading:
                async for turn in reading:
                    if not turn.pieces and wanted.follow:
                        await self._check_broker(wanted.query.broker)
                    yield turn

    async def _check_broker(self, identity: str) -> None:
        path, now_s = path_of(identity), time.monotonic()
        seen_s, found = self._followed.get(path, (0.0, ""))
        if not seen_s or now_s - seen_s >= READ_PROGRESS_S:  # one look-up for all that follow it
            found = (await self.broker(path)).identity
            self._followed[path] = now_s, found
        if found != identity:
            raise UnknownBrokerError(f"the broker {path!r} has been made anew", hint="read again, from earliest")
