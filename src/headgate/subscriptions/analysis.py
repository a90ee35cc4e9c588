"""Read-only questions about a subscription: its numbers, and what a filter would take of its backlog."""

from __future__ import annotations

import asyncio

import msgspec

from headgate import limits
from headgate.delivery.events import load_or_none
from headgate.event import rfc3339
from headgate.filter.cel.evaluate import OutcomeKind
from headgate.filter.compile.plan import Verdict
from headgate.subscriptions.messages import BacklogAnalysis, SubscriptionStats
from headgate.subscriptions.registry import SubscriptionState
from headgate.subscriptions.sources import SubscriptionResources


async def stats(resources: SubscriptionResources, state: SubscriptionState) -> SubscriptionStats:
    """Where it stands: exact, the outbox is read from the cursor on."""
    async with state.reading:
        cursor = state.cursor
        count = candidates = 0
        oldest: int | None = None
        async for row in resources.outbox.rows(state.target.id, cursor.next):
            if cursor.wants(row.partition, row.offset):
                count += 1
                candidates += row.verdict == Verdict.CANDIDATE
                if oldest is None and not cursor.leases:
                    event = await load_or_none(resources.events, row.partition, row.offset)
                    oldest = event.append_time_us if event is not None else None
        unacked = [event.stored_us for event in cursor.leases]
        oldest_us = min([*unacked, *([] if oldest is None else [oldest])], default=None)
        return SubscriptionStats(
            **msgspec.structs.asdict(cursor.counters),
            backlog=count + len(unacked),
            candidates=candidates,
            unacknowledged=len(unacked),
            oldest_unacknowledged=None if oldest_us is None else rfc3339.text(oldest_us),
            epoch=cursor.epoch,
            consumer=cursor.leases.consumer,
            history_left=cursor.history_left,
        )


async def analyze(resources: SubscriptionResources, state: SubscriptionState, cel: str) -> BacklogAnalysis:
    """How many events of the backlog a filter would accept; nothing is consumed."""
    counts = dict.fromkeys(OutcomeKind, 0)
    async with state.reading:
        events = [(unacked.partition, unacked.offset, False) for unacked in state.cursor.leases]
        complete = True
        async for row in resources.outbox.rows(state.target.id, state.cursor.next):
            if not state.cursor.wants(row.partition, row.offset):
                continue
            if len(events) >= limits.ANALYZE_EVENTS_MAX:
                complete = False
                break
            events.append((row.partition, row.offset, row.verdict == Verdict.CANDIDATE))
    for partition, offset, undecided in events:
        event = await load_or_none(resources.events, partition, offset)
        if event is None:
            continue
        # What the matcher left to cel-cpp is of the backlog only if the subscription's own filter takes it.
        if not undecided or resources.look.judge_filter(state.target.filter.cel, event).kind is OutcomeKind.TRUE:
            counts[resources.look.judge_filter(cel, event).kind] += 1
        await asyncio.sleep(0)
    accepted, rejected, errors = (counts[k] for k in (OutcomeKind.TRUE, OutcomeKind.FALSE, OutcomeKind.ERROR))
    return BacklogAnalysis(sum(counts.values()), accepted, rejected, errors, complete)
