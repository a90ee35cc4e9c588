"""How do many readers share few threads? Each goes one short turn at a time and waits at the end of the log."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from headgate.event.model import Event
from headgate.limits import READ_EVENTS_PER_TURN, READ_PROGRESS_S
from headgate.log.errors import PositionError
from headgate.rpc.credits import Credits
from headgate.scan.find import Finder, Sought, landing, latest
from headgate.scan.scan import Counters, Piece, Scan
from headgate.scan.starts import EARLIEST, LATEST, NEXT, start_offsets
from headgate.scan.turns import LogScanner, scanning
from headgate.stream.growth import LogGrowth
from headgate.stream.request import ReadRequest


@dataclass(frozen=True, slots=True)
class Turn:
    """What a reader has after a turn.

    Attributes:
        pieces: Events; empty in a turn that only says where the reader is.
        before: Where it stood before them.
        positions: Where it stands behind them.
        counters: Of the whole read so far.
        at_end: Whether everything durable has been looked at.
    """

    pieces: list[Piece]
    before: dict[int, int]
    positions: dict[int, int]
    counters: Counters
    at_end: bool

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
    directory: Path,
    request: ReadRequest,
    threads: Executor,
    growth: LogGrowth,
    credits: Credits | None = None,
) -> AsyncGenerator[Turn, None]:
    """Reads on until the request is satisfied; a turn with events at once, one without every READ_PROGRESS_S.

    One that follows begins to say where it is behind its first step, and has no last turn, which others end with.
    Closing the iterator closes the files.

    Args:
        directory: Directory of the partitions.
        request: What is wanted.
        threads: Where the log is read; shared by all readers, a turn holds one for SCAN_TURN_S.
        growth: Wakes the reader at the end of the log.
        credits: How many events may be given; then the first turn has none and says where the reader begins. None: any
            number.

    Raises:
        PositionError: The request names no place of this log, or one behind its end.
        CorruptChunkError: A chunk is damaged.
    """
    if request.start == LATEST:
        places = await _latest(directory, request, threads)
    else:
        places = await asyncio.get_running_loop().run_in_executor(threads, _begin, directory, request.start)
    if request.first is not None:
        places = await _seek(directory, request, places, threads)
    left = request.limit
    deadline = time.monotonic() + request.wait_s
    told_at = -math.inf if request.follow and credits is None else time.monotonic()
    async with scanning(threads, partial(Scan, directory, request.query, places)) as (scan, step):
        if credits is not None:
            yield _told(scan)
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
            if pieces:
                yield Turn(pieces, before, scan.positions, replace(scan.counters), at_end)
            if left == 0 or (at_end and not request.follow and now >= deadline):
                break
            if now - told_at >= READ_PROGRESS_S:  # also while there are events, which do not say where the others are
                told_at = now
                yield _told(scan)
            if at_end:
                until = told_at + READ_PROGRESS_S if request.follow else min(deadline, told_at + READ_PROGRESS_S)
                await growth.beyond(scan.positions, max(0.0, until - time.monotonic()))
        yield _told(scan)


def _told(scan: Scan) -> Turn:
    """A turn that says where a reader is."""
    return Turn([], scan.positions, scan.positions, replace(scan.counters), scan.at_end())


def _begin(directory: Path, start: str) -> dict[int, int]:
    """Where to begin; not behind the end, where a reader would wait for what may be long past, and miss it."""
    places = start_offsets(directory, start)
    for partition, end in start_offsets(directory, NEXT).items():
        if places[partition] > end:
            raise PositionError(
                f"position {partition}:{places[partition]} is behind the end of this log, {partition}:{end}",
                hint="no such position was given for what is in it now: begin with earliest, or next",
            )
    return places


async def _latest(directory: Path, request: ReadRequest, threads: Executor) -> dict[int, int]:
    """Where the broker's last event of each partition stands, whatever others have stored behind it."""
    run, query = asyncio.get_running_loop().run_in_executor, request.query
    first, ends = [await run(threads, start_offsets, directory, start) for start in (EARLIEST, NEXT)]
    finder = Finder(directory, LogScanner(directory, threads))
    return await latest(finder, Sought(query.broker, query.rule, None, last=True), first, ends)


async def _seek(directory: Path, request: ReadRequest, places: dict[int, int], threads: Executor) -> dict[int, int]:
    """Where the first event stands of which the request's expression is true; without one all begin at their end."""
    assert request.first is not None
    run, query = asyncio.get_running_loop().run_in_executor, request.query
    ends = await run(threads, start_offsets, directory, NEXT)
    finder = Finder(directory, LogScanner(directory, threads))
    found = await finder.find(Sought(query.broker, query.rule, request.first), places, ends)
    return ends if found is None else await run(threads, partial(landing, directory, places, found, after=False))
