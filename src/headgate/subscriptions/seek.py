"""Where does a seek lead? To a place of the log, or to the first or last event of which an expression is true.

An expression is looked for over the whole log, not only among the events that were matched for the subscription: "where
my database's transaction 4711 begins" need not be an event that the subscription wants. The subscription goes on at
that event, or behind it, and in every other partition at what was stored at the same time or later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.errors import InvalidInputError, NotFoundError
from headgate.event import rfc3339
from headgate.event.identity import path_of
from headgate.limits import SEEK_SLACK_S
from headgate.outbox.reader import position_at_time
from headgate.scan.pages import RuleOf, Scanner
from headgate.scan.search import EventFinder, FilterSearch, OnProgress, offsets_at_event
from headgate.scan.starts import EARLIEST, LATEST, NEXT, start_offsets
from headgate.subscriptions.messages import Place, PlaceNotFoundError, SeekCancelledError

_SLACK_US: Final = int(SEEK_SLACK_S * 1_000_000)


class BrokerGoneError(NotFoundError):
    """The broker whose events are looked through is not there."""

    code = "broker-gone"


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a subscription goes on.

    Attributes:
        position: Outbox position; rows below it are of events below `floor`.
        floor: Of the events of each partition, those below these offsets are not wanted.
        behind: Whether it is behind everything matched so far.
    """

    position: int
    floor: dict[int, int]
    behind: bool = False


class Seeking:
    """One seek under way.

    Attributes:
        place: Where it is to lead.
        scanned: Events looked at so far.
        total: Of about so many.
    """

    def __init__(self, place: Place, tell: OnProgress) -> None:
        self.place = place
        self.scanned = 0
        self.total = 0
        self._tell = tell
        self._task: asyncio.Task[Landing] | None = None
        self._cancelled = False

    def tell(self, scanned: int, total: int) -> None:
        """Note the progress."""
        self.scanned, self.total = scanned, total
        self._tell(scanned, total)

    async def run(self, search: Coroutine[None, None, Landing]) -> Landing:
        """Waits for the search.

        Raises:
            SeekCancelledError: Somebody called `cancel`.
        """
        self._task = asyncio.ensure_future(search)
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._cancelled:
                raise SeekCancelledError("the seek was cancelled; the subscription stays where it was") from None
            raise

    def cancel(self) -> bool:
        """Break it off; False when it is too late."""
        self._cancelled = self._task is not None and self._task.cancel()
        return self._cancelled


class Seeks:
    """Finds places.

    Args:
        log: Directory of the log's partitions.
        outbox: Directory of the outbox partition.
        scanner: Looks through the log.
        rule_of: How events get their filter values.
        handed: The outbox position below which every row is durable and known.
    """

    def __init__(self, log: Path, outbox: Path, scanner: Scanner, rule_of: RuleOf, handed: Callable[[], int]) -> None:
        self._log = log
        self._outbox = outbox
        self._finder = EventFinder(log, scanner)
        self._rule_of = rule_of
        self._handed = handed

    async def landing(self, broker: str, place: Place, tell: OnProgress) -> Landing:
        """Where a place is.

        Raises:
            PositionError: `to` is no place.
            InvalidInputError: The parts of the place do not go together.
            PlaceNotFoundError: The expression is true of no event there.
            CorruptChunkError: A chunk that had to be read is damaged.
        """
        _check(place)
        cel = place.first or place.last
        if place.to == LATEST and not cel:
            return Landing(self._handed(), {}, behind=True)
        floor = await asyncio.to_thread(start_offsets, self._log, place.to)
        since_us = rfc3339.micros(place.to) or 0
        if cel:
            rule = await asyncio.to_thread(self._rule_of, broker)
            if rule is None:
                raise BrokerGoneError(f"there is no broker {path_of(broker)!r}")
            end = await asyncio.to_thread(start_offsets, self._log, NEXT)
            found = await self._finder.find(FilterSearch(broker, rule, cel, bool(place.last)), floor, end, tell)
            if found is None:
                raise PlaceNotFoundError("the expression is true of no event of the broker there")
            floor = await asyncio.to_thread(offsets_at_event, self._log, floor, found, after=place.after)
            since_us = found.stored_us
        elif place.to == EARLIEST:
            floor = {}
        position = await asyncio.to_thread(position_at_time, self._outbox, since_us - _SLACK_US) if since_us else 0
        return Landing(min(position, self._handed()), floor)


def _check(place: Place) -> None:
    if place.first and place.last:
        raise InvalidInputError("a seek has either first or last")
    if place.after and not (place.first or place.last):
        raise InvalidInputError("after goes with first or last")
    if place.to in (LATEST, NEXT) and (place.first or place.last):
        raise InvalidInputError("behind the latest event there is none that an expression could find")
    if place.to == NEXT:
        raise InvalidInputError(
            "to=next is no place of a subscription", hint="latest: behind everything matched so far"
        )
