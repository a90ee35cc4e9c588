"""The events that a pull hands out now: what is due again, then what is left of history, then unread rows.

Nothing is copied: a pull reads on in the log, by the scan, as far as it needs, and what a restart must know is one
offset a partition. What was not taken for too long, or handed out too often, is given up.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from headgate.delivery.events import SharedEvent, load_or_none
from headgate.delivery.given_up import give_up
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Outcome
from headgate.delivery.verdicts import sent_from_us
from headgate.filter.compile.plan import Verdict
from headgate.log.errors import CorruptChunkError
from headgate.observe import metrics
from headgate.outbox.reader import OutboxRow
from headgate.scan.pages import ScanRequest
from headgate.scan.source import EARLIEST, start_offsets
from headgate.subscriptions.consumers import Turn, key_hash
from headgate.subscriptions.registry import SubscriptionState
from headgate.subscriptions.store import UnackedEvent, history_position
from headgate_api import limits
from headgate_api.positions import PositionError

_BEGINNING = "beginning"
_log = structlog.get_logger(__name__)


def has_history_begun(state: SubscriptionState) -> bool:
    """Whether its filter has no history, or that has begun."""
    return state.cursor.filter_id == state.rules.filter_id


async def begin_history(state: SubscriptionState) -> bool:
    """Begins the history if that is possible now; `state.reading` is taken. Whether it has begun.

    It begins when a generation of filters that has this filter is in force in every partition: the span of each ends at
    what has been matched there by then. Rows of events in the span do not count, whichever generation they are of, and
    every later row is of this filter. So no event is missed and none comes twice, wherever the generations changed.
    """
    if has_history_begun(state):
        return True
    target, rules = state.target, state.rules
    if not rules.history:
        state.cursor.without_history(rules.filter_id)
        return True
    to = EARLIEST if rules.history == _BEGINNING else rules.history
    try:
        starts = await asyncio.to_thread(start_offsets, state.resources.log, to)
    except PositionError as error:
        state.resources.final_check.errors.backlog(target.id, f"HistoryRefused: spec.filterFrom: {error.message}")
        state.cursor.without_history(rules.filter_id)
        return True
    ends: dict[int, int] = {}
    for partition, (matched, generation) in state.resources.in_force().items():
        if generation >= target.needs:
            ends[partition] = matched
    if starts.keys() - ends.keys() or state.target is not target:
        return False
    span = {partition: (min(at, ends[partition]), ends[partition]) for partition, at in starts.items()}
    state.cursor.begin_history(rules.filter_id, span, state.resources.clock_us())
    _log.info("a history begins", subscription=target.name, events=state.cursor.history_left)
    return True


async def _read_history(state: SubscriptionState, count_max: int) -> list[UnackedEvent]:
    """Reads on in the history, a page of the log: the events found, unacknowledged. `state.reading` is taken."""
    cursor = state.cursor
    room = min(count_max, limits.SUBSCRIPTION_UNACKED_MAX - len(cursor.leases))
    where = cursor.next_history()
    if where is None or room <= 0:
        return []
    partition, at, end = where
    broker, cel = state.target.broker, state.target.filter.cel
    rule = await asyncio.to_thread(state.resources.rule_of, broker)
    if rule is None:
        return []
    request = ScanRequest(broker, rule, cel, {partition: at}, {partition: end}, room)
    page = await state.resources.scanner.scan_page(request)
    found = [
        UnackedEvent(history_position(partition, one.offset), partition, one.offset, one.stored_us)
        for one in page.found
    ]
    if state.rules.shares_keys:
        for unacked in found:
            event = await load_or_none(state.resources.events, unacked.partition, unacked.offset)
            unacked.key = key_hash(event.key) if event is not None else 0
    for unacked in found:
        cursor.leases.add(unacked)
    # The page is over as a whole, with its errors: what a pull has no room for is due at the next one.
    cursor.counters.processed += len(found)
    if not state.target.filter.ceiling:  # else some are of events that its writer must not learn of
        cursor.counters.errors += page.errors
    cursor.history_to(partition, page.positions[partition])
    return found


@dataclass(slots=True)
class _Chosen:
    """What one turn has so far."""

    count_max: int
    events: list[tuple[UnackedEvent, SharedEvent]] = field(default_factory=list)
    size_bytes: int = 0
    rejected: int = 0

    @property
    def room(self) -> int:
        full = self.size_bytes > limits.PULL_BYTES_MAX or self.rejected >= limits.PULL_REJECTED_MAX
        return 0 if full else self.count_max - len(self.events)

    def add(self, unacked: UnackedEvent, event: SharedEvent) -> None:
        self.events.append((unacked, event))
        self.size_bytes += event.size_bytes


async def choose(state: SubscriptionState, consumer: str, count_max: int) -> list[tuple[UnackedEvent, SharedEvent]]:
    """Events for a consumer, all of them unacknowledged; PULL_BYTES_MAX bounds them as well. `state.reading` is taken.

    A turn that met PULL_REJECTED_MAX events that are not wanted, or are another consumer's, ends with what it has; the
    cursor has moved then. What comes before a damaged event is handed out; the next pull raises CorruptChunkError.
    """
    chosen = _Chosen(count_max)
    turn = state.cursor.leases.turn_of(consumer, state.resources.clock_us(), state.rules)
    try:
        await _due(state, chosen, turn.due)
        if chosen.room > 0:
            await _due(state, chosen, [one for one in await _read_history(state, chosen.room) if turn.takes(one)])
        await _unread(state, chosen, turn)
    except CorruptChunkError:
        if not chosen.events:
            raise
    # What was acknowledged meanwhile is not handed out.
    return [(unacked, event) for unacked, event in chosen.events if unacked in state.cursor.leases]


async def _due(state: SubscriptionState, chosen: _Chosen, due: list[UnackedEvent]) -> None:
    """What is unacknowledged and due: that of history for the first time, the rest again."""
    leases = state.cursor.leases
    for unacked in due:
        if chosen.room <= 0:
            break
        event = await load_or_none(state.resources.events, unacked.partition, unacked.offset)
        if event is not None and event.broker != state.target.broker:
            event = None  # of the broker before the one that has been made anew
        elif event is not None and not state.resources.final_check.is_below_ceiling(state.target, event):
            event = None  # the right gives it no more
        if event is None and unacked in leases:
            leases.lose(unacked)
        elif event is not None and unacked in leases and _is_too_old(state, event):
            leases.give_up(unacked)
            _tell_too_old(state)
        elif event is not None and unacked in leases and (due_us := _too_early(state, event)):
            leases.put_off(unacked, due_us)
        elif event is not None and unacked in leases and state.resources.final_check.lateness(state.target, event):
            leases.give_up(unacked)
            metrics.DELIVERIES.labels("expired").inc()
        elif event is not None:
            outgoing = state.resources.final_check.outgoing(state.target, event)
            if outgoing is not None:
                chosen.add(unacked, outgoing)
            elif unacked in leases:
                leases.refuse(unacked)


async def _unread(state: SubscriptionState, chosen: _Chosen, turn: Turn) -> None:
    """Rows of the outbox from the cursor on; what is left of history comes before them."""
    cursor = state.cursor
    while cursor.next_history() is None:
        room = min(chosen.room, limits.SUBSCRIPTION_UNACKED_MAX - len(cursor.leases))
        if room <= 0 or cursor.next >= state.resources.outbox.end:
            return
        page = await state.resources.outbox.page(state.target.id, cursor.next, room)
        for row in page.rows:
            if chosen.room <= 0:
                return
            if not cursor.wants(row.partition, row.offset):
                cursor.read_to(row.position + 1)
                continue
            event = await load_or_none(state.resources.events, row.partition, row.offset)
            accepted = _accepted(state, row, event)
            if accepted is not None and turn.takes(accepted[0]):
                chosen.add(*accepted)
            else:
                chosen.rejected += 1
                await asyncio.sleep(0)  # it was evaluated: others have their turn
        cursor.read_to(page.reached)


def _accepted(
    state: SubscriptionState, row: OutboxRow, event: SharedEvent | None
) -> tuple[UnackedEvent, SharedEvent] | None:
    """A row was read: unacknowledged, with what consumers get, when it is for them; else it has ended."""
    cursor = state.cursor
    cursor.read_to(row.position + 1)
    if event is None:
        cursor.counters.processed += 1
        cursor.counters.lost += 1
        return None
    if _is_too_old(state, event):
        cursor.counters.processed += 1
        cursor.counters.expired += 1
        _tell_too_old(state)
        return None
    result = state.resources.final_check(state.target, Delivery(*row), event)
    if result == "foreign":  # who sees the counters may not know of it
        return None
    cursor.counters.processed += 1
    if result == "expired":
        cursor.counters.expired += 1
        metrics.DELIVERIES.labels("expired").inc()
        return None
    if isinstance(result, str):
        cursor.counters.errors += result == "error"
        cursor.counters.rejected += result != "error"
        return None
    unacked = UnackedEvent(row.position, row.partition, row.offset, event.append_time_us)
    if state.rules.shares_keys:
        unacked.key = key_hash(event.key)
    cursor.leases.add(unacked)
    if due_us := _too_early(state, event):
        cursor.leases.put_off(unacked, due_us)
        return None
    return unacked, result


def _too_early(state: SubscriptionState, event: SharedEvent) -> int:
    """Until when nobody gets an event, microseconds since 1970 UTC; 0 when it is time."""
    due_us = sent_from_us(state.target, event)
    return due_us if due_us > state.resources.clock_us() else 0


# --- giving up: each returns whether the cursor has changed ------------------------------------------


async def expire(state: SubscriptionState, upto: int, before_us: int) -> bool:
    """Give up what was matched below an outbox position, and before a time. `state.reading` is taken."""
    cursor = state.cursor
    expired, progress = cursor.counters.expired, cursor.progress
    cursor.expire(upto)
    cursor.expire_history(before_us)
    while cursor.next < upto:
        page = await state.resources.outbox.page(state.target.id, cursor.next, limits.BACKLOG_READ_ROWS, upto=upto)
        cursor.counters.expired += len(page.rows)
        cursor.read_to(page.reached)
    gone = cursor.counters.expired - expired
    if gone:
        metrics.DELIVERIES.labels("expired").inc(gone)
        state.resources.final_check.errors.dropped(
            state.target.id, "nobody took them within the bounds of a backlog", gone
        )
    return bool(gone) or cursor.progress != progress


def _is_too_old(state: SubscriptionState, event: SharedEvent) -> bool:
    """Whether the broker shows an event to nobody any more."""
    retention_us = state.target.delivery.retention_us
    return retention_us is not None and event.append_time_us < state.resources.clock_us() - retention_us


def _tell_too_old(state: SubscriptionState) -> None:
    metrics.DELIVERIES.labels("expired").inc()
    state.resources.final_check.errors.dropped(state.target.id, "older than the broker's spec.log.retention")


async def pass_others(state: SubscriptionState) -> bool:
    """Move the cursor past rows of other targets: it must not keep them. `state.reading` is taken."""
    cursor = state.cursor
    start = cursor.next
    page = await state.resources.outbox.page(state.target.id, start, 1)
    cursor.read_to(page.rows[0].position if page.rows else page.reached)
    return cursor.next > start


async def exhaust(state: SubscriptionState) -> bool:
    """End what was handed out `maxDeliveries` times: a dead letter with a sink, else dropped and reported."""
    exhausted = state.cursor.leases.exhausted(state.resources.clock_us(), state.rules)
    return any(await asyncio.gather(*(_give_up(state, unacked) for unacked in exhausted)))


async def _give_up(state: SubscriptionState, unacked: UnackedEvent) -> bool:
    leases, target = state.cursor.leases, state.target
    event = await load_or_none(state.resources.events, unacked.partition, unacked.offset)
    dead_letters = state.resources.dead_letters if target.delivery.has_sink else None
    if event is not None and dead_letters is not None:
        if not dead_letters.has_room(target.namespace):
            return False  # it stays as it is until there is room
        delivery = Delivery(unacked.position, unacked.partition, unacked.offset, Verdict.MATCH)
        delivery.failures = unacked.deliveries
        outcome = Outcome(0, "max-deliveries", f"handed out {unacked.deliveries} times, not acknowledged")
        outgoing = state.resources.final_check.outgoing(target, event) or event
        await give_up(dead_letters, target, delivery, outgoing, outcome, now_us=state.resources.clock_us())
    if unacked not in leases:  # acknowledged meanwhile, or there was a seek
        return False
    if event is None:
        leases.lose(unacked)
        return True
    leases.give_up(unacked)
    if dead_letters is None:
        place = f"partition {unacked.partition}, offset {unacked.offset}"
        state.resources.final_check.errors.dropped(
            target.id, f"{place}: handed out {unacked.deliveries} times, not acknowledged"
        )
    return True
