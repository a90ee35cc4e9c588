"""Pull, acknowledge and seek, for the consumers of all subscriptions, which are named `namespace/name`.

A subscription's rows stay in the outbox, which is its backlog, until a pull reads them. An acknowledgement is answered
when it is on disk; those that come together share one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterator
from typing import Final

import msgspec
import structlog

from headgate.delivery.events import load_or_none
from headgate.filter.cel.evaluate import OutcomeKind
from headgate.filter.compile.plan import Verdict
from headgate.filter.tools.ceiling import joined
from headgate.objects.kinds.quotas import CONSUMERS
from headgate.objects.kinds.routing import RoutingTable, Target
from headgate.objects.views.shared_quotas import QuotaPlaces, SharedQuotas
from headgate.observe.logs import Recurring
from headgate.outbox.reader import OutboxRow
from headgate.scan.search import EventFinder, FilterSearch, OnProgress, offsets_at_event
from headgate.scan.source import EARLIEST, LATEST, NEXT, start_offsets
from headgate.shares import FairPlaces
from headgate.subscriptions.messages import (
    AckResult,
    BacklogAnalysis,
    BrokerGoneError,
    CompletedSeek,
    ConsumerList,
    ConsumersQuotaError,
    LeasedEvent,
    PlaceNotFoundError,
    PullResult,
    SeekBusyError,
    SeekGoal,
    SubscriptionStats,
)
from headgate.subscriptions.registry import (
    RunningSeek,
    SeekDestination,
    SubscriptionRegistry,
    SubscriptionResources,
    SubscriptionState,
)
from headgate.subscriptions.selection import begin_history, choose, exhaust, expire, has_history_begun, pass_others
from headgate.subscriptions.store import SubscriptionStore
from headgate_api import limits, positions
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.event import rfc3339
from headgate_api.event.names import namespace_of, path_of

_US: Final = 1_000_000
_log = structlog.get_logger(__name__)


class ConnectedConsumers:
    """Counts the consumers of a dispatcher, by namespace. A consumer of one name counts once, however it comes."""

    def __init__(self, quotas: SharedQuotas | None) -> None:
        self._quota = QuotaPlaces(quotas, CONSUMERS, ConsumersQuotaError, "a consumer")
        self._ways = Counter[tuple[str, str]]()
        """Streams and pulls by subscription and consumer."""

    @contextlib.contextmanager
    def connected(self, subscription: str, consumer: str) -> Iterator[None]:
        """A consumer is connected while the block lasts; raises ConsumersQuotaError at the limit of its namespace."""
        key, namespace = (subscription, consumer), namespace_of(subscription)
        if not self._ways[key]:
            self._quota.take(namespace)
        self._ways[key] += 1
        try:
            yield
        finally:
            self._ways[key] -= 1
            if not self._ways[key]:
                del self._ways[key]
                self._quota.give_back(namespace)


class Subscriptions:
    """All subscriptions. Lives on the dispatcher's event loop."""

    def __init__(
        self, store: SubscriptionStore, resources: SubscriptionResources, quotas: SharedQuotas | None = None
    ) -> None:
        self._connected = ConnectedConsumers(quotas)
        self._outbox = resources.outbox
        self._clock_us = resources.clock_us
        self._registry = SubscriptionRegistry(store, resources)
        self._places = FairPlaces("pulls", "PULLS_MAX", limits.PULLS_MAX)

    def update(self, table: RoutingTable) -> None:
        self._registry.update(table)

    def has(self, target: int) -> bool:
        return self._registry.find(target) is not None

    def wake(self, target: int) -> None:
        """A row of this subscription is durable."""
        state = self._registry.find(target)
        if state is not None:
            state.wake()

    # --- consumers ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def consuming(self, name: str, consumer: str, user: str = "") -> Iterator[None]:
        """A consumer of a subscription is connected while the block lasts; `user` makes the request or stream."""
        self._registry.get(name)  # what is not there is said before what is exceeded
        with self._places.held(namespace_of(name), user), self._connected.connected(name, consumer):
            yield

    async def pull(
        self,
        name: str,
        consumer: str,
        *,
        count_max: int = limits.PULL_EVENTS_DEFAULT,
        wait_s: float = 0.0,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> PullResult:
        """Events for a consumer that is connected (`consuming`), waiting up to `wait_s` for a first one.

        Each is its own until it is acknowledged or the ack timeout is over.
        """
        ends = time.monotonic() + wait_s
        search_ends = max(ends, time.monotonic() + limits.PULL_SEARCH_S)
        while True:
            state = self._registry.get(name)
            changed, cursor = state.changed, state.cursor
            active = cursor.leases.admit(consumer, state.rules, self._clock_us())
            events, moved = list[LeasedEvent](), False
            if active and await self._begin_history(state):
                events, moved = await self._hand_out(state, consumer, count_max)
            if events or time.monotonic() >= (search_ends if moved else ends):
                return PullResult(events, cursor.epoch, active)
            if is_gone is not None and await is_gone():
                return PullResult([], cursor.epoch, active)
            if not moved:
                await self._wait(state, changed, ends - time.monotonic(), consumer if active else "")

    async def _wait(self, state: SubscriptionState, changed: asyncio.Event, at_most_s: float, active: str) -> None:
        """Until there may be something for an active consumer (empty for none), or its lease is to be renewed."""
        poll_s = _poll_s(state) if has_history_begun(state) else limits.BACKFILL_POLL_S
        wait_s = min(at_most_s, poll_s)
        now_us = self._clock_us()
        due_us = state.cursor.leases.next_due_us(active, now_us, state.rules) if active else None
        if due_us is not None:
            wait_s = min(wait_s, max(0.01, (due_us - now_us) / _US))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), wait_s)

    async def _begin_history(self, state: SubscriptionState) -> bool:
        """Whether its consumers may have events: its history has begun, if it has one."""
        if has_history_begun(state):
            return True
        async with state.reading:
            if not await begin_history(state):
                return False
            self._registry.changed(state)
            if state.rules.history:
                await self._registry.save(state)  # before anything is handed out: ids carry the epoch
        state.wake()
        return True

    async def _hand_out(
        self, state: SubscriptionState, consumer: str, count_max: int
    ) -> tuple[list[LeasedEvent], bool]:
        """One turn: what is handed out, and whether the cursor moved, so that there may be more to look through."""
        async with state.reading:
            cursor = state.cursor
            progress = cursor.progress
            chosen = await choose(state, consumer, count_max)
            # From here on nothing is awaited: what was chosen is still unacknowledged.
            now_us = self._clock_us()
            for unacked, _ in chosen:
                cursor.leases.hand_out(unacked, consumer, now_us, state.rules)
            self._registry.changed(state)
            if state.rules.shares_keys and cursor.progress != progress:
                state.wake()  # some of what was read may be for others
            events = [
                LeasedEvent(cursor.leases.id_of(one), one.deliveries, one.partition, one.offset, event)
                for one, event in chosen
            ]
            return events, cursor.progress != progress

    async def ack(self, name: str, consumer: str, *, ids: tuple[str, ...] = (), up_to: str = "") -> AckResult:
        """Events have been dealt with; returns when that is on disk. Who acknowledges keeps the lease it has.

        Raises AckIdError, AckNotStoredError.
        """
        state = self._registry.get(name)
        leases = state.cursor.leases
        done = leases.ack_up_to(up_to, consumer) if up_to else leases.ack(ids)
        self.keep(name, consumer)
        state.wake()  # there may be room again
        await self._registry.save(state)
        return done

    def keep(self, name: str, consumer: str) -> float:
        """A consumer is there: it keeps its lease, if it has it. Returns after how many seconds to call this again."""
        state = self._registry.get(name)
        if state.rules.shares_keys or state.cursor.leases.consumer == consumer:
            state.cursor.leases.admit(consumer, state.rules, self._clock_us())
        return _poll_s(state)

    async def nack(self, name: str, ids: tuple[str, ...], delay_s: float) -> AckResult:
        """Events are to be handed out again after a while; returns when that is on disk. Raises as `ack`."""
        state = self._registry.get(name)
        done = state.cursor.leases.nack(ids, self._clock_us() + int(delay_s * _US))
        state.wake()
        await self._registry.save(state)
        return done

    def leave(self, name: str, consumer: str) -> int:
        """A consumer goes; what it has is due at once. Returns how many events those are."""
        state = self._registry.get(name)
        count = state.cursor.leases.leave(consumer, self._clock_us())
        self._registry.changed(state)
        state.wake()
        return count

    # --- questions ------------------------------------------------------------------------------------

    async def stats(self, name: str) -> SubscriptionStats:
        """Where it stands: exact, the outbox is read from the cursor on.

        Below a ceiling, what the matcher has left open counts where the event is looked at, and is below it.
        """
        state = self._registry.get(name)
        async with state.reading:
            cursor = state.cursor
            count = candidates = looked_at = 0
            oldest: int | None = None
            async for row in self._outbox.rows(state.target.id, cursor.next):
                if cursor.wants(row.partition, row.offset):
                    if state.target.filter.ceiling and row.verdict != Verdict.MATCH:
                        looked_at += 1
                        if looked_at > limits.PULL_REJECTED_MAX or not await _is_below_ceiling(state, row):
                            continue
                    count += 1
                    candidates += row.verdict == Verdict.CANDIDATE
                    if oldest is None and not cursor.leases:
                        event = await load_or_none(state.resources.events, row.partition, row.offset)
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

    def consumers(self, name: str) -> ConsumerList:
        state = self._registry.get(name)
        return state.cursor.leases.consumers(state.rules, self._clock_us())

    async def analyze(self, name: str, cel: str) -> BacklogAnalysis:
        """How many events of the backlog a filter would accept, of those below its ceiling; nothing is consumed."""
        state = self._registry.get(name)
        final_check = state.resources.final_check
        judge = final_check.judge_filter
        counts = dict.fromkeys(OutcomeKind, 0)
        async with state.reading:
            events = [(unacked.partition, unacked.offset, False) for unacked in state.cursor.leases]
            complete = True
            async for row in self._outbox.rows(state.target.id, state.cursor.next):
                if not state.cursor.wants(row.partition, row.offset):
                    continue
                if len(events) >= limits.ANALYZE_EVENTS_MAX:
                    complete = False
                    break
                events.append((row.partition, row.offset, row.verdict == Verdict.CANDIDATE))
        for partition, offset, undecided in events:
            event = await load_or_none(state.resources.events, partition, offset)
            if event is None or not final_check.is_below_ceiling(state.target, event):
                continue
            # What the matcher left to cel-cpp is of the backlog only if the subscription's own filter takes it.
            if not undecided or judge(state.target.filter.cel, event).kind is OutcomeKind.TRUE:
                counts[judge(cel, event).kind] += 1
            await asyncio.sleep(0)
        accepted, rejected, errors = (counts[k] for k in (OutcomeKind.TRUE, OutcomeKind.FALSE, OutcomeKind.ERROR))
        return BacklogAnalysis(sum(counts.values()), accepted, rejected, errors, complete)

    # --- seek -----------------------------------------------------------------------------------------

    async def seek(self, name: str, goal: SeekGoal, on_progress: OnProgress = lambda _, __: None) -> CompletedSeek:
        """Go on elsewhere, for all consumers; returns when it is on disk. Cancelling the task cancels the seek.

        Raises SeekBusyError, SeekCancelledError, and what `find_destination` raises.
        """
        state = self._registry.get(name)
        if state.seek is not None:
            raise SeekBusyError("another seek of this subscription is under way", hint="it continues; try again later")
        state.seek = seek = RunningSeek(goal, on_progress)
        try:
            destination = await seek.run(find_destination(state.resources, state.target, goal, seek.progress))
            async with state.reading:
                self._registry.get(name)  # it may have been deleted meanwhile
                cursor, floor = state.cursor, destination.floor
                cursor.seek(destination.position, floor, behind=destination.behind, now_us=self._clock_us())
                await self._registry.save(state)  # before anything is handed out: ids carry the epoch
            state.wake()
            return CompletedSeek(cursor.epoch, positions.write(floor) or goal.to)
        finally:
            state.seek = None

    def running_seek(self, name: str) -> RunningSeek | None:
        return self._registry.get(name).seek

    def cancel_seek(self, name: str) -> bool:
        """Cancel it: nothing has moved then. False when there is none any more."""
        seek = self._registry.get(name).seek
        return seek is not None and seek.cancel()

    # --- upkeep ---------------------------------------------------------------------------------------

    async def tend(self) -> None:
        """Writes down what changed, until it is cancelled."""
        # A full disk, a damaged chunk: a pull meets and reports them as well.
        turns = Recurring(_log, "subscriptions cannot be looked after", HeadgateError)
        while True:
            await asyncio.sleep(limits.SUBSCRIPTION_FLUSH_S)
            with turns.attempt():
                for state in self._registry:
                    # Whether or not anybody consumes it: from here on the log is kept for it.
                    await self._begin_history(state)
                    await self.give_up(state)
                await self.flush()

    async def sweep(
        self, warned: Container[int], near_us: int, near_position: int, over_us: int, over_position: int
    ) -> set[int]:
        """Give up what is over the bounds of a backlog (see `retention/expiry.py`); returns those that are near.

        Only those of `warned`, which were reported as near, lose anything. A bound is a time, microseconds since 1970
        UTC, and a position of the outbox: what was matched before either is near, or over.
        """
        near: set[int] = set()
        for state in self._registry:
            id_, cursor = state.target.id, state.cursor
            async with state.reading:
                upto = min(over_position, self._outbox.end)
                gone = id_ in warned and await expire(state, upto, over_us)
                if await pass_others(state) or gone:
                    self._registry.changed(state)
            first = min([cursor.next, *(unacked.position for unacked in cursor.leases if unacked.position >= 0)])
            if first < min(near_position, self._outbox.end) or cursor.is_history_older(near_us):
                near.add(id_)
        return near

    async def pass_others(self) -> None:
        """Moves the cursors past rows of other targets; all at once: one reading of the outbox may serve them."""

        async def pass_on(state: SubscriptionState) -> None:
            is_moving = True
            while is_moving and state.cursor.next < self._outbox.end:
                async with state.reading:
                    is_moving = await pass_others(state)
                if is_moving:
                    self._registry.changed(state)

        await asyncio.gather(*map(pass_on, self._registry))

    async def give_up(self, state: SubscriptionState) -> None:
        if await exhaust(state):
            self._registry.changed(state)
            state.wake()  # there may be room again

    async def flush(self) -> None:
        await self._registry.flush()


async def _is_below_ceiling(state: SubscriptionState, row: OutboxRow) -> bool:
    event = await load_or_none(state.resources.events, row.partition, row.offset)
    return event is not None and state.resources.final_check.is_below_ceiling(state.target, event)


def _poll_s(state: SubscriptionState) -> float:
    """How often a consumer's lease is renewed: it lasts for an ack timeout."""
    return min(limits.PULL_POLL_S, state.rules.ack_timeout_s / 3)


# --- where a seek goes ----------------------------------------------------------------------------


async def find_destination(
    resources: SubscriptionResources, target: Target, goal: SeekGoal, on_progress: OnProgress
) -> SeekDestination:
    """The destination of a goal, whose expression is searched for in all of the broker's events, wanted or not.

    What lies above the ceiling of the target is not there: where an event stands says that there is one.

    In every other partition it goes on at what was stored at the same time or later. Raises PositionError,
    PlaceNotFoundError, BrokerGoneError, CorruptChunkError, and InvalidInputError for parts that do not go together.
    """
    _check(goal)
    broker, cel = target.broker, goal.first or goal.last
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
        cel = await asyncio.to_thread(joined, cel, target.filter.ceiling)
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
