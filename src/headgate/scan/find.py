"""Where is the first event, or the last one, of which an expression is true? Over the log, in the order of storing.

Every partition is looked through by itself, forward. Once one has an event, the others are looked at only where they
hold events that were stored before it (after it, for the last one). The last one is looked for in pieces from the end
on, each larger than the one behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from headgate.filter.skipping.filter_value import FilterValueRule
from headgate.limits import FIND_COUNT_MAX, FIND_EVENTS_MAX, FIND_EVENTS_MIN
from headgate.scan.starts import offsets_at_time
from headgate.scan.turns import Located, Scanner, Wish

Tell = Callable[[int, int], object]
"""Told how many events have been looked at, and of about how many."""


@dataclass(frozen=True, slots=True)
class Sought:
    """What is looked for.

    Attributes:
        broker: The broker's identity.
        rule: How the broker's events get their filter values.
        cel: CEL text that must be true; None for every event.
        last: The last event instead of the first one.
    """

    broker: str
    rule: FilterValueRule
    cel: str | None
    last: bool = False


class Finder:
    """Looks for one event; broken off by cancelling the task.

    Args:
        directory: Directory of the log's partitions.
        scanner: Does the turns.
    """

    def __init__(self, directory: Path, scanner: Scanner) -> None:
        self._directory = directory
        self._scanner = scanner

    async def find(
        self, sought: Sought, start: Mapping[int, int], end: Mapping[int, int], tell: Tell = lambda _, __: None
    ) -> Located | None:
        """The event, None when there is none.

        Args:
            sought: What.
            start: First offset to look at, by partition.
            end: Offset behind the last one, by partition.
            tell: Told about the progress.

        Raises:
            CorruptChunkError: A chunk is damaged.
        """
        way = _Way(sum(max(0, end[partition] - at) for partition, at in start.items()), tell)
        found: Located | None = None
        for partition in sorted(start):
            first, behind = start[partition], end[partition]
            if found is not None:
                since = await asyncio.to_thread(offsets_at_time, self._directory, [partition], found.stored_us)
                at = since[partition]
                first, behind = (max(first, at), behind) if sought.last else (first, min(behind, at))
            look = self._last if sought.last else self._first
            there = await look(sought, partition, first, behind, way)
            if there is not None and (found is None or (there > found if sought.last else there < found)):
                found = there
            way.reached(end[partition] - start[partition])
        return found

    async def _first(self, sought: Sought, partition: int, first: int, end: int, way: _Way) -> Located | None:
        async with aclosing(self._through(sought, partition, first, end, 1)) as turns:
            async for found, at in turns:
                way.at(at - first)
                if found:
                    return found[0]
        return None

    async def _last(self, sought: Sought, partition: int, first: int, end: int, way: _Way) -> Located | None:
        count, upto, last = FIND_EVENTS_MIN, end, None
        while upto > first and last is None:
            begin = max(first, upto - count)
            async with aclosing(self._through(sought, partition, begin, upto, FIND_COUNT_MAX)) as turns:
                async for found, at in turns:
                    way.at(end - upto + at - begin)
                    last = found[-1] if found else last
            upto, count = begin, min(2 * count, FIND_EVENTS_MAX)
        return last

    async def _through(
        self, sought: Sought, partition: int, first: int, end: int, count_max: int
    ) -> AsyncGenerator[tuple[list[Located], int], None]:
        """Turn after turn: what was found, and the offset that was reached."""
        at = first
        while at < end:
            wish = Wish(sought.broker, sought.rule, sought.cel, {partition: at}, {partition: end}, count_max)
            sifted = await self._scanner.sift(wish)
            at = sifted.positions[partition]
            yield sifted.found, at


async def latest(finder: Finder, sought: Sought, start: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
    """Where the last of what is sought stands in each partition; its end where there is none.

    Args:
        finder: Looks for it.
        sought: What; `last` is set.
        start: First offset to look at, by partition.
        end: Offset behind the last one, by partition.

    Raises:
        CorruptChunkError: A chunk is damaged.
    """
    places = dict(end)
    for partition, first in start.items():
        found = await finder.find(sought, {partition: first}, end)
        if found is not None:
            places[partition] = found.offset
    return places


def landing(directory: Path, start: Mapping[int, int], found: Located, *, after: bool) -> dict[int, int]:
    """Where to go on, by partition: at the event, or behind it.

    The other partitions go on at what was stored at the same time or later, but not before `start`.
    """
    since = offsets_at_time(directory, list(start), found.stored_us)
    later = {partition: max(at, since[partition]) for partition, at in start.items()}
    return later | {found.partition: found.offset + after}


class _Way:
    """How far a search is, over all partitions."""

    def __init__(self, total: int, tell: Tell) -> None:
        self._total = total
        self._tell = tell
        self._done = 0
        tell(0, total)

    def at(self, count: int) -> None:
        """So many events of this partition have been passed."""
        self._tell(min(self._done + count, self._total), self._total)

    def reached(self, count: int) -> None:
        """This partition is done: it had so many events."""
        self._done += max(0, count)
        self._tell(self._done, self._total)
