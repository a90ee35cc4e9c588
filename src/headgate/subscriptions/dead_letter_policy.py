"""Giving up a subscription's events: those that were not taken for too long, or handed out too often.

Each function returns whether the cursor has changed.
"""

from __future__ import annotations

import asyncio

from headgate import limits
from headgate.control.routing import Target
from headgate.delivery.dead_letter import DeadLetter, dead_letter_of
from headgate.delivery.events import SharedEvent, load_or_none
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Outcome
from headgate.filter.compile.plan import Verdict
from headgate.observe import metrics
from headgate.subscriptions.registry import SubscriptionState
from headgate.subscriptions.sources import SubscriptionResources
from headgate.subscriptions.store import UnackedEvent


async def expire(resources: SubscriptionResources, state: SubscriptionState, upto: int, before_us: int) -> bool:
    """Give up what was matched below an outbox position, and before a time. `state.reading` is taken."""
    cursor = state.cursor
    expired, progress = cursor.counters.expired, cursor.progress
    cursor.expire(upto)
    cursor.expire_history(before_us)
    while cursor.next < upto:
        page = await resources.outbox.page(state.target.id, cursor.next, limits.BACKLOG_READ_ROWS, upto=upto)
        cursor.counters.expired += len(page.rows)
        cursor.read_to(page.reached)
    gone = cursor.counters.expired - expired
    if gone:
        metrics.DELIVERIES.labels("expired").inc(gone)
        resources.look.errors.dropped(state.target.id, "nobody took them within the bounds of a backlog", gone)
    return bool(gone) or cursor.progress != progress


def is_too_old(resources: SubscriptionResources, state: SubscriptionState, event: SharedEvent) -> bool:
    """Whether the broker shows an event to nobody any more."""
    retention_us = state.target.delivery.retention_us
    return retention_us is not None and event.append_time_us < resources.clock_us() - retention_us


def tell_too_old(resources: SubscriptionResources, state: SubscriptionState) -> None:
    """One more event is given up because it is too old."""
    metrics.DELIVERIES.labels("expired").inc()
    resources.look.errors.dropped(state.target.id, "older than the broker's spec.log.retention")


async def pass_others(resources: SubscriptionResources, state: SubscriptionState) -> bool:
    """Move the cursor past rows of other targets: it must not keep them. `state.reading` is taken."""
    cursor = state.cursor
    start = cursor.next
    page = await resources.outbox.page(state.target.id, start, 1)
    cursor.read_to(page.rows[0].position if page.rows else page.reached)
    return cursor.next > start


async def exhaust(resources: SubscriptionResources, state: SubscriptionState) -> bool:
    """End what was handed out `maxDeliveries` times: a dead letter with a sink, else dropped and reported."""
    exhausted = state.cursor.leases.exhausted(resources.clock_us(), state.rules)
    return any(await asyncio.gather(*(_give_up(resources, state, unacked) for unacked in exhausted)))


async def _give_up(resources: SubscriptionResources, state: SubscriptionState, unacked: UnackedEvent) -> bool:
    leases, target = state.cursor.leases, state.target
    event = await load_or_none(resources.events, unacked.partition, unacked.offset)
    dead_letters = resources.dead_letters if target.delivery.has_sink else None
    if event is not None and dead_letters is not None:
        if not dead_letters.has_room(target.namespace):
            return False  # it stays as it is until there is room
        await dead_letters.put(_dead_letter(target, unacked, event, resources.clock_us()))
    if unacked not in leases:  # acknowledged meanwhile, or there was a seek
        return False
    if event is None:
        leases.lose(unacked)
        return True
    leases.give_up(unacked)
    if dead_letters is None:
        place = f"partition {unacked.partition}, offset {unacked.offset}"
        resources.look.errors.dropped(target.id, f"{place}: handed out {unacked.deliveries} times, not acknowledged")
    return True


def _dead_letter(target: Target, unacked: UnackedEvent, event: SharedEvent, now_us: int) -> DeadLetter:
    delivery = Delivery(unacked.position, unacked.partition, unacked.offset, Verdict.MATCH)
    delivery.failures = unacked.deliveries
    outcome = Outcome(0, "max-deliveries", f"handed out {unacked.deliveries} times, not acknowledged")
    return dead_letter_of(target, delivery, event, outcome, reason="max-deliveries", now_us=now_us)
