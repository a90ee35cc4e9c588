"""What a subscription gives up: events that nobody took for too long, and those that were handed out too often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate import limits
from headgate.control.routing import Target
from headgate.delivery.dead_letter import DeadLetter, DeadLetterQueue, dead_letter_of
from headgate.delivery.events import Events, SharedEvent, load_or_none
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Outcome
from headgate.delivery.verdicts import FilterErrors
from headgate.filter.compile.plan import Verdict
from headgate.observe import metrics
from headgate.outbox.reader import Backlog
from headgate.subscriptions.cursor import Held
from headgate.subscriptions.state import State


class Abandoning:
    """Gives up, for all subscriptions; each method says whether the cursor has changed.

    Args:
        backlog: Reads the outbox.
        events: The log.
        dead_letters: Takes what was handed out too often; None: it is dropped.
        errors: Where people are told.
        handed: The outbox position below which every row is durable and known.
        clock_us: Microseconds since 1970 UTC.
    """

    def __init__(
        self,
        backlog: Backlog,
        events: Events,
        dead_letters: DeadLetterQueue | None,
        errors: FilterErrors,
        handed: Callable[[], int],
        clock_us: Callable[[], int],
    ) -> None:
        self._backlog = backlog
        self._events = events
        self._dead_letters = dead_letters
        self._errors = errors
        self._handed = handed
        self._clock_us = clock_us

    async def expire(self, state: State, limit: int, before_us: int) -> bool:
        """Give up what was matched before a place of the outbox, and before a time. `state.reading` is taken."""
        cursor = state.cursor
        expired, stood = cursor.counters.expired, cursor.stands
        cursor.expire(limit)
        cursor.expire_history(before_us)
        while cursor.next < limit:
            page = await self._backlog.read(state.target.id, cursor.next, limit, limits.BACKLOG_READ_ROWS)
            cursor.counters.expired += len(page.rows)
            cursor.read_to(page.reached)
        gone = cursor.counters.expired - expired
        if gone:
            metrics.DELIVERIES.labels("expired").inc(gone)
            self._errors.dropped(state.target.id, "nobody took them within the bounds of a backlog", gone)
        return bool(gone) or cursor.stands != stood

    async def pass_others(self, state: State) -> bool:
        """A cursor that nobody moves must not keep what is not its own. `state.reading` is taken."""
        cursor = state.cursor
        start, upto = cursor.next, self._handed()
        page = await self._backlog.read(state.target.id, start, upto, 1)
        cursor.read_to(page.rows[0].position if page.rows else page.reached)
        return cursor.next > start

    async def exhaust(self, state: State) -> bool:
        """End what was handed out `maxDeliveries` times: a dead letter where there is a sink, else dropped and told."""
        exhausted = state.cursor.exhausted(self._clock_us(), state.rules)
        return any(await asyncio.gather(*(self._give_up(state, held) for held in exhausted)))

    async def _give_up(self, state: State, held: Held) -> bool:
        cursor, target = state.cursor, state.target
        event = await load_or_none(self._events, held.partition, held.offset)
        dead_letters = self._dead_letters if target.delivery.has_sink else None
        if event is not None and dead_letters is not None:
            if not dead_letters.has_room():
                return False  # it stays as it is until there is room
            await dead_letters.put(_letter(target, held, event, self._clock_us()))
        if not cursor.is_held(held):  # acknowledged meanwhile, or sought
            return False
        if event is None:
            cursor.lose(held)
            return True
        cursor.give_up(held)
        if dead_letters is None:
            place = f"partition {held.partition}, offset {held.offset}"
            self._errors.dropped(target.id, f"{place}: handed out {held.deliveries} times, not acknowledged")
        return True


def _letter(target: Target, held: Held, event: SharedEvent, now_us: int) -> DeadLetter:
    delivery = Delivery(held.position, held.partition, held.offset, Verdict.MATCH)
    delivery.failures = held.deliveries
    outcome = Outcome(0, "max-deliveries", f"handed out {held.deliveries} times, not acknowledged")
    return dead_letter_of(target, delivery, event, outcome, reason="max-deliveries", now_us=now_us)
