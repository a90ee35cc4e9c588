"""Seeks: from a goal (a place of the log, or the first or last event of an expression) to where a subscription goes on.

An expression is searched for over the whole log, not only among the events that were matched for the subscription:
"where my database's transaction 4711 begins" need not be an event that the subscription wants. The subscription goes on
at that event, or behind it, and in every other partition at what was stored at the same time or later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

from headgate.scan.search import EventFinder, FilterSearch, OnProgress, offsets_at_event
from headgate.scan.source import EARLIEST, LATEST, NEXT, start_offsets
from headgate.subscriptions.messages import BrokerGoneError, PlaceNotFoundError, SeekCancelledError, SeekGoal
from headgate.subscriptions.sources import SubscriptionResources
from headgate_api.errors import InvalidInputError
from headgate_api.event import rfc3339
from headgate_api.event.names import path_of


@dataclass(frozen=True, slots=True)
class SeekDestination:
    """Where a subscription goes on.

    Attributes:
        position: Outbox position; rows below it are of events below `floor`.
        floor: Of the events of each partition, those below these offsets are not wanted.
        behind: Whether it is behind everything matched so far.
    """

    position: int
    floor: dict[int, int]
    behind: bool = False


class RunningSeek:
    """A seek under way, which has looked at `scanned` events of about `total`."""

    def __init__(self, goal: SeekGoal, on_progress: OnProgress) -> None:
        self.goal = goal
        self.scanned = 0
        self.total = 0
        self._on_progress = on_progress
        self._task: asyncio.Task[SeekDestination] | None = None
        self._cancelled = False

    def progress(self, scanned: int, total: int) -> None:
        self.scanned, self.total = scanned, total
        self._on_progress(scanned, total)

    async def run(self, search: Coroutine[None, None, SeekDestination]) -> SeekDestination:
        """Waits for the search; raises SeekCancelledError when somebody called `cancel`."""
        self._task = asyncio.ensure_future(search)
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._cancelled:
                raise SeekCancelledError("the seek was cancelled; the subscription stays where it was") from None
            raise

    def cancel(self) -> bool:
        """Cancels it; False when it is too late."""
        self._cancelled = self._task is not None and self._task.cancel()
        return self._cancelled


async def find_destination(
    resources: SubscriptionResources, broker: str, goal: SeekGoal, on_progress: OnProgress
) -> SeekDestination:
    """The destination of a goal, whose expression is searched for in the broker's events.

    Raises PositionError, PlaceNotFoundError, BrokerGoneError, CorruptChunkError, and InvalidInputError when the parts
    of the goal do not go together.
    """
    _check(goal)
    cel = goal.first or goal.last
    if goal.to == LATEST and not cel:
        return SeekDestination(resources.outbox.end, {}, behind=True)
    log = resources.log
    floor = await asyncio.to_thread(start_offsets, log, goal.to)
    since_us = rfc3339.micros(goal.to) or 0
    if cel:
        rule = await asyncio.to_thread(resources.rule_of, broker)
        if rule is None:
            raise BrokerGoneError(f"there is no broker {path_of(broker)!r}")
        end = await asyncio.to_thread(start_offsets, log, NEXT)
        finder = EventFinder(log, resources.scanner)
        found = await finder.find(FilterSearch(broker, rule, cel, bool(goal.last)), floor, end, on_progress)
        if found is None:
            raise PlaceNotFoundError("the expression is true of no event of the broker there")
        floor = await asyncio.to_thread(offsets_at_event, log, floor, found, after=goal.after)
        since_us = found.stored_us
    elif goal.to == EARLIEST:
        floor = {}
    position = await asyncio.to_thread(resources.outbox.places.before, floor, since_us)
    return SeekDestination(min(position, resources.outbox.end), floor)


def _check(goal: SeekGoal) -> None:
    if goal.first and goal.last:
        raise InvalidInputError("a seek has either first or last")
    if goal.after and not (goal.first or goal.last):
        raise InvalidInputError("after goes with first or last")
    if goal.to in (LATEST, NEXT) and (goal.first or goal.last):
        raise InvalidInputError("behind the latest event there is none that an expression could find")
    if goal.to == NEXT:
        raise InvalidInputError(
            "to=next is no place of a subscription", hint="latest: behind everything matched so far"
        )
