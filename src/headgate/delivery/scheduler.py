"""All deliveries of the dispatcher: outbox rows in, ended deliveries out; every target for itself.

A row becomes a `Delivery` in its target's bounded queue. Where the queue is full the target *lags*: it no longer takes
rows along but reads its own again from the outbox once it has room. So a target that does not answer costs a bounded
amount of memory and nobody else's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Container, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import structlog

from headgate.delivery.attempt_service import AttemptService
from headgate.delivery.attempts import Attempts, PendingEvents
from headgate.delivery.cursors import CursorChange, TargetCursor
from headgate.delivery.events import EventGoneError, Events
from headgate.delivery.given_up import DeadLetterQueue
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.permits import PermitCounts
from headgate.delivery.targets import GIVEN_UP, Lag, TargetCounts, TargetState
from headgate.delivery.verdicts import FinalCheck
from headgate.filter.cel.evaluate import program
from headgate.filter.compile.plan import Verdict
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.routing import RoutingTable, Target
from headgate.observe import metrics
from headgate.observe.logs import Recurring
from headgate.outbox.reader import Backlog
from headgate.outbox.writer import OutboxChunk
from headgate_api import limits
from headgate_api.errors import HeadgateError

_RESULTS: Final = (
    *("delivered", "failed", "filtered", "error", "foreign", "gone", "lost", "dead_lettered", "expired"),
    *("pending", "cancelled"),
)
"""`failed` and `dead_lettered`: no retries are left, or none would help; a `failed` one has no dead-letter sink.

`pending`: put off until its time; what is delivered then, or `cancelled` before, is counted once more."""
_ENDED: Final = {result: metrics.DELIVERIES.labels(result) for result in _RESULTS}
_FILTER_ERRORS: Final = metrics.FILTERED.labels("error")
_MATCHES: Final = {int(verdict): metrics.MATCHES.labels(verdict.name.lower()) for verdict in Verdict}


class SchedulerListener(Protocol):
    """What the scheduler tells the dispatcher. Every method returns at once."""

    def target_unknown(self) -> None:
        """There is a row of an unknown target: `update` is called with a newer table if there is one."""

    def cursors_changed(self) -> None:
        """There is something to flush: cursors or filter errors."""

    def rows_walked(self) -> None:
        """Handed rows have left memory."""

    def row_kept(self, target: int) -> None:
        """There is a row for this subscription: it stays in the outbox."""


class Scheduler:
    """All deliveries of the dispatcher, on one event loop. Each of `sharers` has that part of the process's limits."""

    def __init__(
        self,
        listener: SchedulerListener,
        *,
        events: Events,
        backlog: Backlog,
        service: AttemptService,
        final_check: FinalCheck,
        dead_letters: DeadLetterQueue,
        pending: PendingEvents | None = None,
        sharers: int = 1,
    ) -> None:
        self._listener = listener
        self._events = events
        self._backlog = backlog
        self._final_check = final_check
        self._journal = service.journal
        self._subscribers = service.subscribers
        self._loop = asyncio.get_running_loop()
        self._attempts = Attempts(self, events, service, final_check, dead_letters, PermitCounts(sharers), pending)
        self._pending = pending
        self._live_max = limits.DELIVERIES_LIVE_MAX // sharers
        self._table = RoutingTable.of(0, -1, {}, ())
        self._states: dict[int, TargetState] = {}
        self._dirty: set[TargetState] = set()
        self._gone: list[int] = []  # targets of an earlier process whose rows in dispatch.db are to go
        self._incoming: deque[OutboxChunk] = deque()
        self._walk: Iterator[None] | None = None
        self.handed = 0  # every outbox row below this position has been handed over
        self._is_within_record = False
        self._marks: deque[tuple[float, int]] = deque()  # (time, position), one a second
        self._watermarks: dict[int, int] = {}
        self.rows_waiting = 0  # rows that were handed over and not walked yet
        self.live_count = 0  # deliveries in memory
        self.behind: set[TargetState] = set()  # targets with deliveries in memory

    @property
    def attempts_taken(self) -> dict[bool, int]:
        """Attempts in flight, by whether their targets are slow."""
        return self._attempts.permits.counts.taken

    # --- routing --------------------------------------------------------------------------------------

    def update(self, table: RoutingTable) -> None:
        """A new routing table: targets change their address at once, what a deleted target had ends as gone."""
        before, self._table = self._table, table
        for id_ in table.changed_since(before):
            state, target = self._states.get(id_), table.targets.get(id_)
            if target is None and self._pending is not None:
                self._pending.forget(id_)
            if state is None:
                continue
            if target is not None:
                was_paused = state.target.paused
                if target.filter.ceiling != state.target.filter.ceiling:
                    state.counts, state.recent = TargetCounts(), None  # whoever sees them may not know of all of them
                state.route(target)  # what was gone may come back under its name and number
                if was_paused and not target.paused:
                    state.deliveries.rebase()
                    self._attempts.pump(state)
                    self.has_room(state)
                continue
            state.gone = True
            state.lag = None
            for delivery in state.deliveries.unstarted():
                self.end(state, delivery, "gone")
            self.changed(state)
            self.has_room(state)

    def find(self, target: int) -> Target | None:
        return self._table.targets.get(target)

    @property
    def states(self) -> Collection[TargetState]:
        """Those of all targets that have had a row."""
        return self._states.values()

    def states_of(self, names: Container[str]) -> dict[str, TargetState]:
        """The states of triggers `namespace/name`; who has had no row has none."""
        return {state.target.name: state for state in self._states.values() if state.target.name in names}

    def restore(self, position: int, targets: tuple[TargetCursor, ...]) -> None:
        """Where an earlier process stopped; after the first `update`, before the first `hand`."""
        self.handed = self._attempts.warm_from = position
        for cursor in targets:
            target = self._table.targets.get(cursor.target)
            if target is None:
                _ENDED["gone"].inc(len(cursor.pending))
                self._gone.append(cursor.target)
                continue
            state = self._states[cursor.target] = TargetState(self._subscribers.of(target))
            state.stored = True
            floor = position if cursor.lag_from is None else cursor.lag_from
            tried = {tried.position: tried for tried in cursor.retries}
            state.lag = Lag(min(cursor.pending, default=floor), floor, set(cursor.pending), tried)
            # The stored row may say "up to G", and G is about to move: its own floor must be stored with it.
            self._dirty.add(state)
            self._loop.call_soon(self._refill, state)

    # --- rows in --------------------------------------------------------------------------------------

    def hand(self, chunk: OutboxChunk) -> None:
        """Take the rows of an outbox chunk, which begins where the last one ended; the disk may not have it yet."""
        self._incoming.append(chunk)
        self.rows_waiting += chunk.row_count
        if self._walk is None:
            self._walk = self._turns()
            self._turn()

    def _turn(self) -> None:
        assert self._walk is not None
        try:
            next(self._walk)
        except StopIteration:
            self._walk = None
        else:
            self._loop.call_soon(self._turn)

    def _turns(self) -> Iterator[None]:
        """Walks all rows that have come; yields after HAND_ROWS_PER_TURN, so that answers are heard in between.

        Between two turns `handed` is exact; within a record, whose rows share a position, it stays at it.
        """
        budget = limits.HAND_ROWS_PER_TURN
        while self._incoming:
            chunk = self._incoming.popleft()
            position, step = chunk.first_position, chunk.row_step
            for row_group in chunk.row_groups:
                partition = row_group.partition
                for offset, target, verdict in row_group.rows:
                    self._row(position, partition, offset, target, verdict)
                    position += step
                    budget -= 1
                    if budget <= 0:
                        self.handed, self._is_within_record = position, not step
                        yield
                        budget = limits.HAND_ROWS_PER_TURN
            self.handed, self._is_within_record = chunk.next_position, False
            self._watermarks.update(chunk.watermarks)
            self.rows_waiting -= chunk.row_count
            self._mark_time()
            self._listener.cursors_changed()
            self._listener.rows_walked()

    def _mark_time(self) -> None:
        """Remember how far we were when, to know which rows are CACHED_PAGES_S old."""
        now, marks = self._loop.time(), self._marks
        if not marks or now - marks[-1][0] >= 1.0:
            marks.append((now, self.handed))
        while now - marks[0][0] > limits.CACHED_PAGES_S:
            self._attempts.warm_from = marks.popleft()[1]

    def _row(self, position: int, partition: int, offset: int, target: int, verdict: int) -> None:
        state = self._states.get(target) or self._meet(target)
        _MATCHES[verdict].inc()
        if state is None:
            if target in self._table.targets:
                self._listener.row_kept(target)
            else:
                _ENDED["gone"].inc()
        elif verdict == Verdict.ERROR and not state.target.delivery.filter_errors_kept:
            self._error(state, partition, offset)
        elif verdict != Verdict.MATCH and not self._is_below_ceiling(state.target, partition, offset, unknown=True):
            _ENDED["foreign"].inc()  # now, not before its delivery: what waits for the target is counted
        elif state.lag is not None:
            if (tail := state.lag.tail) is not None:
                if len(tail) < limits.TARGET_QUEUE_MAX:
                    tail.append(Delivery(position, partition, offset, verdict))
                else:
                    state.lag.tail = None
        elif len(state.deliveries.live) >= self._bound(state):
            state.lag = Lag(position, position)
            self.changed(state)
        else:
            self._enqueue(state, Delivery(position, partition, offset, verdict))
            self._attempts.pump(state)

    def _meet(self, target: int) -> TargetState | None:
        """The state of a target that has none yet; None when it does not exist (any more) or is a subscription."""
        known = self._table.targets.get(target)
        if known is None:
            self._listener.target_unknown()
            known = self._table.targets.get(target)
        if known is None or known.pull is not None:
            return None
        state = self._states[target] = TargetState(self._subscribers.of(known))
        return state

    def _error(self, state: TargetState, partition: int, offset: int) -> None:
        """The matcher says that the filter's value is an error; describe it now and then."""
        target = state.target
        if not self._is_below_ceiling(target, partition, offset, unknown=False):
            return  # perhaps the ceiling is the error, so that the event is not the target's
        _ENDED["error"].inc()
        _FILTER_ERRORS.inc()
        state.counts.filter_errors += 1
        if not self._final_check.errors.add(target.id):
            return
        with contextlib.suppress(EventGoneError):
            if (event := self._events.recent(partition, offset)) is not None:
                self._final_check.errors.describe(target.id, self._final_check.message(target, event), event)

    def _is_below_ceiling(self, target: Target, partition: int, offset: int, *, unknown: bool) -> bool:
        """Whether an event is below its target's ceiling; `unknown` where it cannot be looked at now."""
        if not target.filter.ceiling:
            return True
        with contextlib.suppress(EventGoneError):
            event = self._events.recent(partition, offset)
            return unknown if event is None else self._final_check.is_below_ceiling(target, event)
        return unknown

    def _bound(self, state: TargetState) -> int:
        """How many deliveries a target may have in memory now; a paused one has few, for it needs none."""
        full = state.target.paused or self.live_count >= self._live_max
        return limits.TARGET_CROWDED_MAX if full else limits.TARGET_QUEUE_MAX

    def _enqueue(self, state: TargetState, delivery: Delivery) -> None:
        state.deliveries.arrive(delivery)
        self.behind.add(state)
        self.live_count += 1
        self._dirty.add(state)

    def release(self, target: int, deliveries: Sequence[Delivery]) -> None:
        """The time of events has come that waited for it; there is `room_for_pending`."""
        state = self._states.get(target) or self._meet(target)
        assert state is not None, "its trigger has room"
        for delivery in deliveries:
            self._enqueue(state, delivery)
        self._attempts.pump(state)

    def room_for_pending(self, target: int) -> int:
        """How many events of a trigger may be released now; a paused one has no use for them."""
        state, known = self._states.get(target), self._table.targets.get(target)
        if known is None or known.paused or self.live_count >= self._live_max:
            return 0
        return limits.PENDING_RELEASED_MAX - (state.deliveries.pending if state is not None else 0)

    def dropped(self, target: int, partition: int, offset: int, result: str) -> None:
        """An event that waited for its time does not any more: `cancelled`, or `gone` with its trigger."""
        _ENDED[result].inc()
        self._journal.end(partition, offset, target, result)

    # --- deliveries out -------------------------------------------------------------------------------

    def end(self, state: TargetState, delivery: Delivery, result: str) -> None:
        """The one place where a delivery ends; `result` is one of `_RESULTS`."""
        state.deliveries.end(delivery)
        if delivery.pending and self._pending is not None:
            self._pending.ended(state.target.id, delivery)
        if not state.deliveries.live:
            self.behind.discard(state)
        self.live_count -= 1
        self._count(state, delivery, result)
        self.changed(state)

    def _count(self, state: TargetState, delivery: Delivery, result: str) -> None:
        _ENDED[result].inc()
        state.counts.end(result, self._loop.time())
        if result in {"delivered", "pending"}:
            return
        if result in GIVEN_UP:
            state.given_up.inc()
        if result == "lost":
            self._final_check.errors.dropped(
                state.target.id, f"partition {delivery.partition}, offset {delivery.offset}: the log no longer holds it"
            )
        self._journal.end(delivery.partition, delivery.offset, state.target.id, result)

    def has_room(self, state: TargetState) -> None:
        if state.lag is not None:
            self._refill(state)
        elif state.gone and not state.deliveries.live and not state.refilling:
            self._states.pop(state.target.id, None)

    # --- backlog --------------------------------------------------------------------------------------

    def _refill(self, state: TargetState) -> None:
        """Read a piece of the backlog when half the queue is free."""
        bound = self._bound(state)
        room = bound - len(state.deliveries.live)
        if state.lag is None or state.refilling or self._attempts.stopping or room < bound // 2:
            return
        state.refilling = True
        self._attempts.spawn(self._refill_now(state, room))

    async def _refill_now(self, state: TargetState, room: int) -> None:
        while self._is_within_record:  # a row at `handed` may have been walked, or not
            await asyncio.sleep(0)
        # A task runs between two turns: `handed` is exact here, and rows from it on go to the tail.
        lag, upto = state.lag, self.handed
        if lag is not None:
            lag.tail = []
            page = await self._backlog.read(state.target.id, lag.next, upto, room, lag.wants)
        state.refilling = False
        if lag is None or state.lag is not lag:  # deleted meanwhile
            self.has_room(state)
            return
        lag.read_to(page.reached)
        for delivery in (Delivery(*row) for row in page.rows):
            if self._is_counted(state, delivery):
                continue
            if lag.tried and (tried := lag.tried.pop(delivery.position, None)) is not None:
                delivery.resume(tried)
            self._enqueue(state, delivery)
        tail, lag.tail = lag.tail, None
        if page.reached >= upto and tail is not None:
            state.lag = None
            for delivery in tail:
                self._enqueue(state, delivery)
        self.changed(state)
        self._attempts.pump(state)
        self.has_room(state)

    async def end_lag(
        self, state: TargetState, upto: int, decide: Callable[[TargetState, Delivery], Awaitable[str]]
    ) -> None:
        """End what a target has not read below a position without an attempt; `decide` says how."""
        while (lag := state.lag) is not None and lag.next < upto and not (state.refilling or self._attempts.stopping):
            state.refilling = True
            try:
                page = await self._backlog.read(state.target.id, lag.next, upto, limits.BACKLOG_READ_ROWS, lag.wants)
                deliveries = [Delivery(*row) for row in page.rows]
                deliveries = [delivery for delivery in deliveries if not self._is_counted(state, delivery)]
                results = await asyncio.gather(*(decide(state, delivery) for delivery in deliveries))
            finally:
                state.refilling = False
            for delivery, result in zip(deliveries, results, strict=True):
                lag.tried.pop(delivery.position, None)
                self._count(state, delivery, result)
            lag.read_to(page.reached)
            self.changed(state)
        self.has_room(state)

    def _is_counted(self, state: TargetState, delivery: Delivery) -> bool:
        """Whether a row is an error of the filter, which was counted when it was handed over the first time."""
        return delivery.verdict == Verdict.ERROR and not state.target.delivery.filter_errors_kept

    # --- cursors, life --------------------------------------------------------------------------------

    def changed(self, state: TargetState) -> None:
        self._dirty.add(state)
        self._listener.cursors_changed()

    def take_change(self) -> CursorChange:
        """What has changed since the last call; the caller writes it down, all or nothing."""
        behind: list[TargetCursor] = []
        done, self._gone = self._gone, []
        for state in self._dirty:
            cursor = state.cursor()
            if cursor is not None:
                behind.append(cursor)
                state.stored = True
            elif state.stored:
                done.append(state.target.id)
                state.stored = False
        self._dirty.clear()
        watermarks, self._watermarks = self._watermarks, {}
        return CursorChange(self.handed, watermarks, behind, done)

    async def stop(self, deadline_s: float) -> None:
        await self._attempts.stop(deadline_s)


# --- gauges ---------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)


class Gauges:
    """The dispatcher's gauges: sampled once a second, so that a delivery pays for none of them."""

    def __init__(
        self, scheduler: Scheduler, events: Events, outbox: PartitionWriter, *, clock_us: Callable[[], int]
    ) -> None:
        self._scheduler = scheduler
        self._events = events
        self._outbox = outbox
        self._clock_us = clock_us

    async def run(self) -> None:
        samples = Recurring(_log, "gauges cannot be sampled", OSError, HeadgateError)
        while True:
            with samples.attempt():
                await self.sample()
            await asyncio.sleep(limits.METRICS_WRITE_S)

    async def sample(self) -> None:
        scheduler = self._scheduler
        metrics.BACKLOG.set(scheduler.live_count + scheduler.rows_waiting)
        metrics.TARGETS_LAGGING.set(sum(state.lag is not None for state in scheduler.behind))
        for slow, count in scheduler.attempts_taken.items():
            metrics.ATTEMPTS.labels("slow" if slow else "healthy").set(count)
        metrics.CIRCUITS_OPEN.set(sum(state.subscriber.circuit.opened for state in scheduler.behind))
        await self._sample_triggers()
        cache = program.cache_info()
        for name, value in (("hits", cache.hits), ("misses", cache.misses), ("size", cache.currsize)):
            metrics.FILTER_CACHE.labels(name).set(value)
        metrics.LOG_RECORDS.labels("outbox").set(self._outbox.next_offset - self._outbox.first_offset)
        metrics.LOG_BYTES.labels("outbox").set(await asyncio.to_thread(_bytes, self._outbox.directory))

    async def _sample_triggers(self) -> None:
        worst = heapq.nlargest(
            limits.METRICS_TRIGGERS_MAX,
            self._scheduler.behind,
            key=lambda state: (state.lag is not None, len(state.deliveries.live)),
        )
        metrics.TRIGGER_BACKLOG.replace({state.target.name: len(state.deliveries.live) for state in worst})
        oldest = [(state.target.name, delivery) for state in worst if (delivery := state.oldest) is not None]
        ages: dict[str, float] = {}
        for name, delivery in oldest:
            try:
                event = await self._events.load(delivery.partition, delivery.offset)
            except HeadgateError:  # gone or damaged: nobody can tell its age
                continue
            ages[name] = (self._clock_us() - event.append_time_us) / 1e6
        metrics.TRIGGER_OLDEST.replace(ages)


def _bytes(directory: Path) -> int:
    found = 0
    for path in directory.glob("*.seg"):
        with contextlib.suppress(FileNotFoundError):  # retention has removed it since
            found += path.stat().st_size
    return found
