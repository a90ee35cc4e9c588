"""Which events may a pull hand out now? What is due again, then what is left of history, then what nobody has read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headgate import limits
from headgate.delivery.events import Events, SharedEvent, load_or_none
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.verdicts import LastLook
from headgate.log.errors import CorruptChunkError
from headgate.outbox.reader import Backlog, OutboxRow
from headgate.subscriptions.backfill import Histories
from headgate.subscriptions.cursor import Held
from headgate.subscriptions.state import State


@dataclass(slots=True)
class _Choice:
    """What one turn has so far."""

    count_max: int
    events: list[tuple[Held, SharedEvent]] = field(default_factory=list)
    size_bytes: int = 0
    rejected: int = 0

    @property
    def room(self) -> int:
        """How many more it may have."""
        full = self.size_bytes > limits.PULL_BYTES_MAX or self.rejected >= limits.PULL_REJECTED_MAX
        return 0 if full else self.count_max - len(self.events)

    def add(self, held: Held, event: SharedEvent) -> None:
        self.events.append((held, event))
        self.size_bytes += event.size_bytes


class Choosing:
    """Chooses for all subscriptions, in turns; `state.reading` is taken, so nobody seeks meanwhile.

    Args:
        backlog: Reads the outbox.
        events: The log.
        histories: Reads the log where a filter counts from an earlier place on.
        look: Decides what the matcher left open.
        handed: The outbox position below which every row is durable and known.
        clock_us: Microseconds since 1970 UTC.
    """

    def __init__(
        self,
        backlog: Backlog,
        events: Events,
        histories: Histories,
        look: LastLook,
        handed: Callable[[], int],
        clock_us: Callable[[], int],
    ) -> None:
        self._backlog = backlog
        self._events = events
        self._histories = histories
        self._look = look
        self._handed = handed
        self._clock_us = clock_us

    async def choose(self, state: State, count_max: int) -> list[tuple[Held, SharedEvent]]:
        """Events to hand out, all of them held; PULL_BYTES_MAX bounds them as well.

        A turn that met PULL_REJECTED_MAX events that are not wanted ends with what it has; the cursor has moved then.

        Raises:
            CorruptChunkError: The first one is damaged. What comes before a damaged one is handed out; the next pull
                says so.
        """
        choice = _Choice(count_max)
        try:
            await self._due(state, choice)
            if choice.room > 0:
                for held, event in await self._histories.turn(state, choice.room):
                    choice.add(held, event)
            await self._unread(state, choice)
        except CorruptChunkError:
            if not choice.events:
                raise
        # What was acknowledged meanwhile is nobody's any more.
        return [(held, event) for held, event in choice.events if state.cursor.is_held(held)]

    async def _due(self, state: State, choice: _Choice) -> None:
        """What was handed out before and is to be handed out again."""
        cursor = state.cursor
        for held in cursor.due(self._clock_us(), state.rules):
            if choice.room <= 0:
                break
            event = await load_or_none(self._events, held.partition, held.offset)
            if event is not None and event.broker != state.target.broker:
                event = None  # of the broker before the one that has been made anew
            if event is None and cursor.is_held(held):
                cursor.lose(held)
            elif event is not None:
                choice.add(held, event)

    async def _unread(self, state: State, choice: _Choice) -> None:
        """Rows of the outbox from the cursor on; what is left of history comes before them."""
        cursor = state.cursor
        while cursor.next_history() is None:
            room = min(choice.room, limits.SUBSCRIPTION_UNACKED_MAX - cursor.held_count)
            start, upto = cursor.next, self._handed()
            if room <= 0 or start >= upto:
                return
            page = await self._backlog.read(state.target.id, start, upto, room)
            for row in page.rows:
                if choice.room <= 0:
                    return
                if not cursor.wants(row.partition, row.offset):
                    cursor.read_to(row.position + 1)
                    continue
                event = await load_or_none(self._events, row.partition, row.offset)
                held = self._taken(state, row, event)
                if held is not None and event is not None:
                    choice.add(held, event)
                else:
                    choice.rejected += 1
                    await asyncio.sleep(0)  # it was evaluated: others have their turn
            cursor.read_to(page.reached)

    def _taken(self, state: State, row: OutboxRow, event: SharedEvent | None) -> Held | None:
        """A row was read: held when it is for consumers, else it has ended."""
        cursor = state.cursor
        cursor.read_to(row.position + 1)
        cursor.counters.processed += 1
        if event is None:
            cursor.counters.lost += 1
            return None
        result = self._look(state.target, Delivery(*row), event)
        if result:
            cursor.counters.errors += result == "error"
            cursor.counters.rejected += result != "error"
            return None
        held = Held(row.position, row.partition, row.offset, event.append_time_us)
        cursor.take(held)
        return held
