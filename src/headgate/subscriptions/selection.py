"""The events that a pull hands out now: what is due again, then what is left of history, then unread rows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headgate import limits
from headgate.delivery.events import SharedEvent, load_or_none
from headgate.delivery.lifecycle import Delivery
from headgate.log.errors import CorruptChunkError
from headgate.outbox.reader import OutboxRow
from headgate.subscriptions import backfill, dead_letter_policy
from headgate.subscriptions.registry import SubscriptionState
from headgate.subscriptions.sources import SubscriptionResources
from headgate.subscriptions.store import UnackedEvent


@dataclass(slots=True)
class _Chosen:
    """What one turn has so far."""

    count_max: int
    events: list[tuple[UnackedEvent, SharedEvent]] = field(default_factory=list)
    size_bytes: int = 0
    rejected: int = 0

    @property
    def room(self) -> int:
        """How many more it may have."""
        full = self.size_bytes > limits.PULL_BYTES_MAX or self.rejected >= limits.PULL_REJECTED_MAX
        return 0 if full else self.count_max - len(self.events)

    def add(self, unacked: UnackedEvent, event: SharedEvent) -> None:
        self.events.append((unacked, event))
        self.size_bytes += event.size_bytes


async def choose(
    resources: SubscriptionResources, state: SubscriptionState, count_max: int
) -> list[tuple[UnackedEvent, SharedEvent]]:
    """Events to hand out, all of them unacknowledged; PULL_BYTES_MAX bounds them as well. `state.reading` is taken.

    A turn that met PULL_REJECTED_MAX events that are not wanted ends with what it has; the cursor has moved then.

    Raises:
        CorruptChunkError: The first one is damaged. What comes before a damaged one is handed out; the next pull
            raises it.
    """
    chosen = _Chosen(count_max)
    try:
        await _due(resources, state, chosen)
        if chosen.room > 0:
            for unacked, event in await backfill.next_events(resources, state, chosen.room):
                chosen.add(unacked, event)
        await _unread(resources, state, chosen)
    except CorruptChunkError:
        if not chosen.events:
            raise
    # What was acknowledged meanwhile is not handed out.
    return [(unacked, event) for unacked, event in chosen.events if unacked in state.cursor.leases]


async def _due(resources: SubscriptionResources, state: SubscriptionState, chosen: _Chosen) -> None:
    """What was handed out before and is to be handed out again."""
    leases = state.cursor.leases
    for unacked in leases.due(resources.clock_us(), state.rules):
        if chosen.room <= 0:
            break
        event = await load_or_none(resources.events, unacked.partition, unacked.offset)
        if event is not None and event.broker != state.target.broker:
            event = None  # of the broker before the one that has been made anew
        if event is None and unacked in leases:
            leases.lose(unacked)
        elif event is not None and unacked in leases and dead_letter_policy.is_too_old(resources, state, event):
            leases.give_up(unacked)
            dead_letter_policy.tell_too_old(resources, state)
        elif event is not None:
            chosen.add(unacked, event)


async def _unread(resources: SubscriptionResources, state: SubscriptionState, chosen: _Chosen) -> None:
    """Rows of the outbox from the cursor on; what is left of history comes before them."""
    cursor = state.cursor
    while cursor.next_history() is None:
        room = min(chosen.room, limits.SUBSCRIPTION_UNACKED_MAX - len(cursor.leases))
        if room <= 0 or cursor.next >= resources.outbox.end:
            return
        page = await resources.outbox.page(state.target.id, cursor.next, room)
        for row in page.rows:
            if chosen.room <= 0:
                return
            if not cursor.wants(row.partition, row.offset):
                cursor.read_to(row.position + 1)
                continue
            event = await load_or_none(resources.events, row.partition, row.offset)
            unacked = _accepted(resources, state, row, event)
            if unacked is not None and event is not None:
                chosen.add(unacked, event)
            else:
                chosen.rejected += 1
                await asyncio.sleep(0)  # it was evaluated: others have their turn
        cursor.read_to(page.reached)


def _accepted(
    resources: SubscriptionResources, state: SubscriptionState, row: OutboxRow, event: SharedEvent | None
) -> UnackedEvent | None:
    """A row was read: unacknowledged when it is for consumers, else it has ended."""
    cursor = state.cursor
    cursor.read_to(row.position + 1)
    cursor.counters.processed += 1
    if event is None:
        cursor.counters.lost += 1
        return None
    if dead_letter_policy.is_too_old(resources, state, event):
        cursor.counters.expired += 1
        dead_letter_policy.tell_too_old(resources, state)
        return None
    result = resources.look(state.target, Delivery(*row), event)
    if result:
        cursor.counters.errors += result == "error"
        cursor.counters.rejected += result != "error"
        return None
    unacked = UnackedEvent(row.position, row.partition, row.offset, event.append_time_us)
    cursor.leases.add(unacked)
    return unacked
