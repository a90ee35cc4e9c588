"""How is a long scan done without holding anybody up? In turns that know nothing of each other: places in, places out.

Who wants something of the log's past asks for a turn, gets what it found and where it stands, and asks for the next
one from there. Between two turns it may stop, start anew or die: nothing is kept for it. So the turns can be done by
another process (`server/asking.py`), which is where they are done on a server.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from headgate.filter.value import FilterValueRule
from headgate.limits import READ_EVENTS_PER_TURN, SIFT_S
from headgate.scan.scan import Query, Scan


class Wish(msgspec.Struct, frozen=True):
    """What one turn is to look for.

    Attributes:
        broker: "namespace/name".
        rule: How the broker's events get their filter values.
        cel: CEL text of a filter that must be true; None takes every event of the broker.
        start: First offset to look at, by partition.
        end: Offset behind the last one, for each of them.
        count_max: Stop when so many events are found.
    """

    broker: str
    rule: FilterValueRule
    cel: str | None
    start: dict[int, int]
    end: dict[int, int]
    count_max: int


class Located(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where an event stands; in the order of storing.

    Attributes:
        stored_us: When it was stored, microseconds since 1970 UTC.
        partition: Of the log.
        offset: In it.
    """

    stored_us: int
    partition: int
    offset: int


class Sifted(msgspec.Struct, frozen=True):
    """What a turn found.

    Attributes:
        found: Events of which the filter is true, in the order of the log within each partition.
        positions: Where the next turn starts, by partition.
        errors: Events for which the filter is an error; they are not found.
    """

    found: list[Located]
    positions: dict[int, int]
    errors: int = 0


class Scanner(Protocol):
    """Does turns."""

    async def sift(self, wish: Wish) -> Sifted:
        """Looks at events from `start` on until enough are found, `end` is reached or SIFT_S is over.

        Raises:
            CorruptChunkError: A chunk is damaged.
        """


class LogScanner:
    """Does turns in threads of this process.

    Args:
        directory: Directory of the log's partitions.
        threads: Shared with others: a turn holds one for some 40 ms at a time.
    """

    def __init__(self, directory: Path, threads: Executor) -> None:
        self._directory = directory
        self._threads = threads

    async def sift(self, wish: Wish) -> Sifted:
        """See `Scanner`."""
        loop = asyncio.get_running_loop()
        query = Query(wish.broker, wish.rule, cel=wish.cel)
        make = partial(Scan, self._directory, query, wish.start, wish.end)
        with closing(await loop.run_in_executor(self._threads, make)) as scan:
            found: list[Located] = []
            until = time.monotonic() + SIFT_S
            while len(found) < wish.count_max:
                room = min(wish.count_max - len(found), READ_EVENTS_PER_TURN)
                pieces = await loop.run_in_executor(self._threads, scan.step, room)
                for piece in pieces:
                    found += [Located(piece.append_time_us, piece.partition, offset) for offset in piece.offsets]
                if time.monotonic() >= until or (not pieces and scan.at_end()):
                    break
            return Sifted(found, scan.positions, scan.counters.filter_errors)
