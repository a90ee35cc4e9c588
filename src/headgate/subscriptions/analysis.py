"""What do people ask of a subscription? Its numbers, and what a filter would take of its backlog; nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from headgate import limits
from headgate.delivery.events import Events, load_or_none
from headgate.delivery.verdicts import Judge
from headgate.filter.cel.evaluate import OutcomeKind
from headgate.filter.compile.plan import Verdict
from headgate.outbox.reader import Backlog
from headgate.subscriptions.messages import BacklogAnalysis, SubscriptionStats
from headgate.subscriptions.state import SubscriptionState, unread


class BacklogQueries:
    """Answers them.

    Args:
        backlog: The outbox.
        events: The log.
        judge_filter: Evaluates filters.
        handed: The outbox position below which every row is durable and known.
    """

    def __init__(self, backlog: Backlog, events: Events, judge_filter: Judge, handed: Callable[[], int]) -> None:
        self._backlog = backlog
        self._events = events
        self._judge = judge_filter
        self._handed = handed

    async def stats(self, state: SubscriptionState) -> SubscriptionStats:
        """Where it stands: exact, the outbox is read from the cursor on."""
        async with state.reading:
            cursor = state.cursor
            count = candidates = 0
            oldest: int | None = None
            async for row in unread(state, self._backlog, self._handed):
                if cursor.wants(row.partition, row.offset):
                    count += 1
                    candidates += row.verdict == Verdict.CANDIDATE
                    if oldest is None and not cursor.held_count:
                        event = await load_or_none(self._events, row.partition, row.offset)
                        oldest = event.append_time_us if event is not None else None
            held = [one.stored_us for one in cursor.held()]
            oldest = min([*held, *([] if oldest is None else [oldest])], default=None)
            counters = msgspec.structs.replace(cursor.counters)
            backlog, left = count + len(held), cursor.history_left
            return SubscriptionStats(
                counters, backlog, candidates, len(held), oldest, cursor.epoch, cursor.consumer, left
            )

    async def analyze(self, state: SubscriptionState, cel: str) -> BacklogAnalysis:
        """How many events of the backlog a filter would accept; nothing is consumed."""
        counts = dict.fromkeys(OutcomeKind, 0)
        async with state.reading:
            places = [(held.partition, held.offset, False) for held in state.cursor.held()]
            complete = True
            async for row in unread(state, self._backlog, self._handed):
                if not state.cursor.wants(row.partition, row.offset):
                    continue
                if len(places) >= limits.ANALYZE_EVENTS_MAX:
                    complete = False
                    break
                places.append((row.partition, row.offset, row.verdict == Verdict.CANDIDATE))
        for partition, offset, undecided in places:
            event = await load_or_none(self._events, partition, offset)
            if event is None:
                continue
            # What the matcher left to cel-cpp is of the backlog only if the subscription's own filter takes it.
            if not undecided or self._judge(state.target.filter.cel, event).kind is OutcomeKind.TRUE:
                counts[self._judge(cel, event).kind] += 1
            await asyncio.sleep(0)
        accepted, rejected, errors = (counts[k] for k in (OutcomeKind.TRUE, OutcomeKind.FALSE, OutcomeKind.ERROR))
        return BacklogAnalysis(sum(counts.values()), accepted, rejected, errors, complete)
