"""Who gets what? Outbox rows in, ended deliveries out; every target for itself.

A row becomes a `Delivery` in its target's bounded queue. Where the queue is full the target *lags*: it no longer
takes rows along but reads its own again from the outbox once it has room. So a target that does not answer costs a
bounded amount of memory and nobody else's time.

    row -> ended: gone, error            target deleted; the filter's value is a CEL error
        -> queue -> attempt -> ended: delivered, filtered, error, foreign, lost, gone
             ^       |   |
             +-pause-+   +-> buried -> ended: dead_lettered     no retries are left, or none would help
          retries are left   no sink -> ended: failed

An answer that is an event is stored by front within the attempt; when it cannot be, the attempt has failed.

Everything runs on one event loop; a row goes from `hand` to the socket without a pause and without a task but its
attempt's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from headgate import limits
from headgate.control.routing import RoutingTable, Target
from headgate.delivery.attempts import Attempts
from headgate.delivery.clock import SYSTEM, Clocks
from headgate.delivery.cursors import CursorChange, TargetCursor
from headgate.delivery.dead_letter import DeadLetter
from headgate.delivery.events import Events
from headgate.delivery.journal import AttemptRecorder, NullJournal
from headgate.delivery.post import Transport
from headgate.delivery.replies import Replies
from headgate.delivery.spans import AttemptTracing
from headgate.delivery.targets import Delivery, Lag, TargetState
from headgate.delivery.verdicts import FilterErrors, Judge
from headgate.filter.compile.plan import Verdict
from headgate.observe import metrics
from headgate.outbox.errors import EventGoneError
from headgate.outbox.reader import Backlog
from headgate.outbox.writer import DurableChunk

_RESULTS: Final = ("delivered", "failed", "filtered", "error", "foreign", "gone", "lost", "dead_lettered", "expired")
_ENDED: Final = {result: metrics.DELIVERIES.labels(result) for result in _RESULTS}
_FILTER_ERRORS: Final = metrics.FILTERED.labels("error")
_MATCHES: Final = {int(verdict): metrics.MATCHES.labels(verdict.name.lower()) for verdict in Verdict}


class Scheduler:
    """All deliveries of the dispatcher. Lives on one event loop.

    Args:
        events: The log.
        backlog: The outbox, for targets that lag.
        transport: The HTTP client.
        replies: For answers that are events.
        bury: Stores a dead letter; returns when it is on disk.
        judge_filter: Decides CANDIDATE rows.
        errors: Where filter errors are counted.
        refresh: Called for a row of an unknown target: brings `update` a newer table if there is one.
        on_change: Called when there is something to flush: cursors or filter errors.
        on_room: Called when handed rows have left memory.
        on_pulled: Called with a subscription's target when there is a row for it: it stays in the outbox.
        journal: Remembers attempts for people; None for nobody.
        tracing: Makes spans; None for none.
        clocks: Time, and the jitter of pauses.
    """

    def __init__(
        self,
        *,
        events: Events,
        backlog: Backlog,
        transport: Transport,
        replies: Replies,
        bury: Callable[[DeadLetter], Awaitable[None]],
        judge_filter: Judge,
        errors: FilterErrors,
        refresh: Callable[[], None],
        on_change: Callable[[], None] = lambda: None,
        on_room: Callable[[], None] = lambda: None,
        on_pulled: Callable[[int], None] = lambda _: None,
        journal: AttemptRecorder | None = None,
        tracing: AttemptTracing | None = None,
        clocks: Clocks = SYSTEM,
    ) -> None:
        self._journal = journal if journal is not None else NullJournal()
        self._events = events
        self._backlog = backlog
        self._judge_filter = judge_filter
        self._errors = errors
        self._refresh = refresh
        self._on_change = on_change
        self._on_room = on_room
        self._on_pulled = on_pulled
        self._loop = asyncio.get_running_loop()
        self._attempts = Attempts(
            events,
            transport,
            judge_filter,
            errors,
            self.end,
            self._has_room,
            self._touch,
            replies=replies,
            bury=bury,
            journal=self._journal,
            tracing=tracing,
            clocks=clocks,
        )
        self._table: dict[int, Target] = {}
        self._states: dict[int, TargetState] = {}
        self._dirty: set[TargetState] = set()
        self._gone: list[int] = []  # targets of an earlier process whose rows in dispatch.db are to go
        self._incoming: deque[DurableChunk] = deque()
        self._walk: Iterator[None] | None = None
        self._handed = 0
        self._marks: deque[tuple[float, int]] = deque()  # (time, position), one a second
        self._watermarks: dict[int, int] = {}
        self.rows_waiting = 0
        self.live_count = 0
        self.behind: set[TargetState] = set()
        """Targets with deliveries in memory."""

    @property
    def handed(self) -> int:
        """Every outbox row below this position has been handed over."""
        return self._handed

    @property
    def attempts_taken(self) -> dict[bool, int]:
        """Attempts under way, by whether their targets are slow."""
        return self._attempts.permits.taken

    # --- routing --------------------------------------------------------------------------------------

    def update(self, table: RoutingTable) -> None:
        """A new routing table: targets change their address at once, what a deleted target had ends as gone."""
        self._table = {target.id: target for target in table.targets}
        for state in list(self._states.values()):
            target = self._table.get(state.target.id)
            if target is not None:
                state.target, state.gone = target, False  # what was gone may come back under its name and number
                continue
            state.gone = True
            state.lag = state.tail = None
            waiting = [*state.queue, *state.key_queues.drain()]
            state.queue.clear()
            for delivery in waiting:
                self.end(state, delivery, "gone")
            self._touch(state)
            self._has_room(state)

    def find(self, target: int) -> Target | None:
        """A target as routing has it now."""
        return self._table.get(target)

    def restore(self, position: int, targets: tuple[TargetCursor, ...]) -> None:
        """Where an earlier process stopped; after the first `update`, before the first `hand`."""
        self._handed = self._attempts.warm_from = position
        for cursor in targets:
            target = self._table.get(cursor.target)
            if target is None:
                _ENDED["gone"].inc(len(cursor.pending))
                self._gone.append(cursor.target)
                continue
            state = self._states[cursor.target] = TargetState(target)
            state.stored = True
            floor = position if cursor.lag_from is None else cursor.lag_from
            state.lag = Lag(min(cursor.pending, default=floor), floor, set(cursor.pending))
            state.retries = {tried.position: tried for tried in cursor.retries}
            # The stored row may say "up to G", and G is about to move: its own floor must be stored with it.
            self._dirty.add(state)
            self._loop.call_soon(self._refill, state)

    # --- rows in --------------------------------------------------------------------------------------

    def hand(self, chunk: DurableChunk) -> None:
        """Take the rows of a durable outbox chunk, which begins where the last one ended.

        They are walked in turns, so that answers are heard in between.
        """
        self._incoming.append(chunk)
        self.rows_waiting += chunk.next_position - chunk.first_position
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
        """Walks all rows that have come; yields after HAND_ROWS_PER_TURN. Between two turns `_handed` is exact."""
        budget = limits.HAND_ROWS_PER_TURN
        while self._incoming:
            chunk = self._incoming.popleft()
            position = chunk.first_position
            for segment in chunk.segments:
                partition = segment.partition
                for offset, target, verdict in segment.rows:
                    self._row(position, partition, offset, target, verdict)
                    position += 1
                    budget -= 1
                    if budget <= 0:
                        self._handed = position
                        yield
                        budget = limits.HAND_ROWS_PER_TURN
            self._handed = chunk.next_position
            self._watermarks.update(chunk.watermarks)
            self.rows_waiting -= chunk.next_position - chunk.first_position
            self._mark_time()
            self._on_change()
            self._on_room()

    def _mark_time(self) -> None:
        """Remember how far we were when, to know which rows are CACHED_PAGES_S old."""
        now, marks = self._loop.time(), self._marks
        if not marks or now - marks[-1][0] >= 1.0:
            marks.append((now, self._handed))
        while now - marks[0][0] > limits.CACHED_PAGES_S:
            self._attempts.warm_from = marks.popleft()[1]

    def _row(self, position: int, partition: int, offset: int, target: int, verdict: int) -> None:
        state = self._states.get(target) or self._meet(target)
        _MATCHES[verdict].inc()
        if state is None:
            if target in self._table:
                self._on_pulled(target)
            else:
                _ENDED["gone"].inc()
        elif verdict == Verdict.ERROR and not state.target.delivery.filter_errors_kept:
            self._error(state, partition, offset)
        elif state.lag is not None:
            if state.tail is not None:
                if len(state.tail) < limits.TARGET_QUEUE_MAX:
                    state.tail.append(Delivery(position, partition, offset, verdict))
                else:
                    state.tail = None
        elif len(state.live) >= self._bound():
            state.lag = Lag(position, position)
            self._touch(state)
        else:
            self._enqueue(state, Delivery(position, partition, offset, verdict))
            self._attempts.pump(state)

    def _meet(self, target: int) -> TargetState | None:
        """The state of a target that has none yet; None when it does not exist (any more) or is a subscription."""
        known = self._table.get(target)
        if known is None:
            self._refresh()
            known = self._table.get(target)
        if known is None or known.pull is not None:
            return None
        state = self._states[target] = TargetState(known)
        return state

    def _error(self, state: TargetState, partition: int, offset: int) -> None:
        """The matcher says that the filter's value is an error; find words for it now and then."""
        _ENDED["error"].inc()
        _FILTER_ERRORS.inc()
        target = state.target
        if not self._errors.add(target.id):
            return
        try:
            event = self._events.recent(partition, offset)
        except EventGoneError:
            return
        self._errors.describe(target.id, self._judge_filter(target.filter.cel, event).message, event)

    def _bound(self) -> int:
        """How many deliveries a target may have in memory now."""
        full = self.live_count >= limits.DELIVERIES_LIVE_MAX
        return limits.TARGET_CROWDED_MAX if full else limits.TARGET_QUEUE_MAX

    def _enqueue(self, state: TargetState, delivery: Delivery) -> None:
        state.live[delivery.position] = delivery
        state.queue.append(delivery)
        self.behind.add(state)
        self.live_count += 1
        self._dirty.add(state)

    # --- deliveries out -------------------------------------------------------------------------------

    def end(self, state: TargetState, delivery: Delivery, result: str) -> None:
        """The one place where a delivery reaches its terminal state, whatever it is: dead letters branch off here.

        Args:
            state: The target's.
            delivery: It holds no place any more.
            result: One of `_RESULTS`.
        """
        del state.live[delivery.position]
        if not state.live:
            self.behind.discard(state)
        self.live_count -= 1
        if delivery.key is not None and (behind := state.key_queues.leave(delivery.key)) is not None:
            state.queue.appendleft(behind)
        self._count(state, delivery, result)
        self._touch(state)

    def _count(self, state: TargetState, delivery: Delivery, result: str) -> None:
        _ENDED[result].inc()
        if result == "lost":
            self._errors.dropped(
                state.target.id, f"partition {delivery.partition}, offset {delivery.offset}: the log no longer holds it"
            )
        if result != "delivered":
            self._journal.end(delivery.partition, delivery.offset, state.target.id, result)

    def _has_room(self, state: TargetState) -> None:
        if state.lag is not None:
            self._refill(state)
        elif state.gone and not state.live and not state.refilling:
            self._states.pop(state.target.id, None)

    # --- backlog --------------------------------------------------------------------------------------

    def _refill(self, state: TargetState) -> None:
        """Read a piece of the backlog when half the queue is free."""
        bound = self._bound()
        room = bound - len(state.live)
        if state.lag is None or state.refilling or self._attempts.stopping or room < bound // 2:
            return
        state.refilling = True
        self._attempts.spawn(self._refill_now(state, room))

    async def _refill_now(self, state: TargetState, room: int) -> None:
        # A task starts between two turns: `_handed` is exact here, and rows from it on go to the tail.
        lag, upto = state.lag, self._handed
        if lag is not None:
            state.tail = []
            page = await self._backlog.read(state.target.id, lag.next, upto, room, lag.wants)
        state.refilling = False
        if lag is None or state.lag is None:  # deleted meanwhile
            self._has_room(state)
            return
        lag.next = page.reached
        lag.unread = {position for position in lag.unread if position >= page.reached}
        for delivery in (Delivery(*row) for row in page.rows):
            if self._is_counted(state, delivery):
                continue
            if state.retries and (tried := state.retries.pop(delivery.position, None)) is not None:
                delivery.resume(tried)
            self._enqueue(state, delivery)
        if page.reached >= upto and state.tail is not None:
            state.lag = None
            state.retries.clear()
            for delivery in state.tail:
                self._enqueue(state, delivery)
        state.tail = None
        self._touch(state)
        self._attempts.pump(state)
        self._has_room(state)

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
                state.retries.pop(delivery.position, None)
                self._count(state, delivery, result)
            lag.next = page.reached
            lag.unread = {position for position in lag.unread if position >= page.reached}
            self._touch(state)
        self._has_room(state)

    def _is_counted(self, state: TargetState, delivery: Delivery) -> bool:
        """Whether a row is an error of the filter, which was counted when it was handed over the first time."""
        return delivery.verdict == Verdict.ERROR and not state.target.delivery.filter_errors_kept

    # --- cursors, life --------------------------------------------------------------------------------

    def _touch(self, state: TargetState) -> None:
        self._dirty.add(state)
        self._on_change()

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
        return CursorChange(self._handed, watermarks, behind, done)

    async def stop(self, deadline_s: float) -> None:
        """Start nothing more; let attempts in flight end for so long, then break them off (a restart repeats them)."""
        await self._attempts.stop(deadline_s)
