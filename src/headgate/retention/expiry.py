"""The bounds of a backlog: what is not taken is given up, by age and by bytes, and does not keep the log for ever.

A target is told to be near its bound at BACKLOG_NEAR of it, and loses its oldest events only when a later sweep finds
it over the bound. What is given up is a dead letter where the trigger has a sink and the store has room, else dropped,
counted and told (`EventsKept`). Age is that of the match; the bound in bytes is one of age, too: as old as the first of
the newest bytes of a partition.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

import structlog

from headgate.delivery.events import Events, load_or_none
from headgate.delivery.given_up import DeadLetterQueue, give_up
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Outcome
from headgate.delivery.scheduler import Scheduler
from headgate.delivery.targets import TargetState
from headgate.delivery.verdicts import FinalCheck
from headgate.filter.compile.plan import Verdict
from headgate.log.directory import LogDirectory, Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.retention import time_of_newest
from headgate.observe import metrics
from headgate.observe.logs import Recurring
from headgate.outbox.reader import position_at_time
from headgate.subscriptions.service import Subscriptions
from headgate_api import limits
from headgate_api.errors import HeadgateError

_US: Final = 1_000_000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BacklogBounds:
    """How much a backlog may keep: `seconds` of age, and `bytes` of each partition of the log and of the outbox."""

    seconds: float = limits.BACKLOG_S_MAX
    bytes: int = limits.BACKLOG_BYTES_MAX

    @property
    def text(self) -> str:
        return f"{self.seconds / 3_600:g} hours or {self.bytes >> 20} MiB of the log"


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in the outbox: rows below `position` were matched before `time_us`, microseconds since 1970 UTC."""

    time_us: int
    position: int


def cut(log: LogDirectory, outbox: Partition, bounds: BacklogBounds, now_us: int, part: float) -> Cut:
    """Where a backlog reaches a part of its bounds; blocking."""
    times = [now_us - int(bounds.seconds * part * _US)]
    for partition in (*map(log.partition, log.partitions()), outbox):
        found = time_of_newest(partition, int(bounds.bytes * part))
        if found is not None:
            times.append(found)
    return Cut(max(times), position_at_time(outbox, max(times)))


@dataclass(eq=False)
class Expiry:
    """Looks after the backlogs of all targets, on the dispatcher's event loop.

    `final_check` decides what the matcher left open: an event that the filter does not want is not dropped.
    """

    log: LogDirectory
    outbox: Partition
    bounds: BacklogBounds
    _: KW_ONLY
    scheduler: Scheduler
    subscriptions: Subscriptions
    events: Events
    final_check: FinalCheck
    dead_letters: DeadLetterQueue
    on_change: Callable[[], None]
    clock_us: Callable[[], int]
    _near: set[int] = field(init=False, default_factory=set)

    async def run(self) -> None:
        """Sweeps every BACKLOG_SWEEP_S, until it is cancelled."""
        metrics.BACKLOGS_NEAR_LIMIT.set(0)
        turns = Recurring(_log, "backlogs cannot be looked after", HeadgateError, OSError)
        swept = time.monotonic()
        while True:
            await asyncio.sleep(limits.BACKLOG_SWEEP_S - (time.monotonic() - swept) % limits.BACKLOG_SWEEP_S)
            swept = time.monotonic()
            with turns.attempt():
                await self.sweep()

    async def sweep(self) -> None:
        """Tells who is near the bounds, and gives up what is over them of those who were told before."""
        now_us, handed = self.clock_us(), self.scheduler.handed
        find = partial(cut, self.log, self.outbox, self.bounds, now_us)
        near = await asyncio.to_thread(find, limits.BACKLOG_NEAR)
        over = await asyncio.to_thread(find, 1.0)
        told, position = self._near, min(over.position, handed)
        found: set[int] = set()
        for state in list(self.scheduler.behind):
            if state.target.id in told:
                await self._expire(state, position)
            if _oldest(state) < min(near.position, handed):
                found.add(state.target.id)
        found |= await self.subscriptions.sweep(told, near.time_us, near.position, over.time_us, position)
        text = f"BacklogNearLimit: the oldest events are given up at {self.bounds.text}"
        for id_ in found ^ told:
            self.final_check.errors.backlog(id_, text if id_ in found else "")
        self._near = found
        if self.final_check.errors:
            self.on_change()
        metrics.BACKLOGS_NEAR_LIMIT.set(len(found))

    async def _expire(self, state: TargetState, position: int) -> None:
        """Ends whatever of a trigger stands below an outbox position and is not under way."""
        while expired := state.deliveries.expire(position):
            for delivery in expired:  # the end of one may bring the next one of its key into the queue
                result = await self._result(state, delivery)
                self.scheduler.end(state, delivery, "gone" if state.gone else result)
        await self.scheduler.end_lag(state, position, self._result)

    async def _result(self, state: TargetState, delivery: Delivery) -> str:
        target = state.target
        place = f"partition {delivery.partition}, offset {delivery.offset}"
        is_kept = target.delivery.has_sink and self.dead_letters.has_room(target.namespace)
        if is_kept or delivery.verdict != Verdict.MATCH:
            try:
                event = await load_or_none(self.events, delivery.partition, delivery.offset)
            except CorruptChunkError:
                event = None
            if event is None:
                return "lost"
            outgoing = self.final_check(target, delivery, event)
            if outgoing == "expired" and target.delivery.expired_kept:
                outgoing = event
            if isinstance(outgoing, str):
                return outgoing
            if is_kept and self.dead_letters.has_room(target.namespace):  # others may have taken it meanwhile
                outcome = Outcome(0, "expired", f"not delivered within {self.bounds.text}")
                return await give_up(self.dead_letters, target, delivery, outgoing, outcome, now_us=self.clock_us())
        self.final_check.errors.dropped(target.id, f"{place}: not delivered within {self.bounds.text}")
        return "expired"


def _oldest(state: TargetState) -> int:
    """The first outbox position that a trigger has not ended; behind everything when there is none."""
    oldest = state.oldest
    first = [1 << 62 if oldest is None else oldest.position]
    if state.lag is not None:
        first += [state.lag.next, *state.lag.unread]
    return min(first)
