"""Attempts of all targets, their retries and pauses.

A target starts its queue's next delivery whenever it has fewer than its `parallelism` in flight (an ordered one: none
of the same key, see `key_queues.py`) and there is a permit (see `permits.py`); else it waits for a permit. A delivery
that is backing off holds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from headgate import limits
from headgate.delivery.batches import Batches
from headgate.delivery.clock import SYSTEM, Clocks
from headgate.delivery.dead_letter import CODE_FILTER_ERROR, DeadLetter, dead_letter_of
from headgate.delivery.encoding import Headers, traced
from headgate.delivery.events import Events, SharedEvent, load_or_none
from headgate.delivery.health import SubscriberHealth
from headgate.delivery.journal import AttemptRecorder
from headgate.delivery.permits import Permits
from headgate.delivery.post import Transport
from headgate.delivery.replies import Answered, Replies
from headgate.delivery.retry import JITTER, UNSENT, Fate, Outcome, backoff_s, is_left, judge, pause_s
from headgate.delivery.spans import AttemptTracing, context_sent, end
from headgate.delivery.targets import Delivery, TargetState
from headgate.delivery.tasks import tell_failure
from headgate.delivery.verdicts import FilterErrors, Judge, LastLook
from headgate.event.identity import path_of
from headgate.observe import metrics
from headgate.observe.tracing import Span
from headgate.outbox.errors import EventGoneError


class Attempts:
    """Everything under way. Lives on one event loop.

    Args:
        events: The log.
        transport: The HTTP client.
        judge_filter: Decides CANDIDATE rows.
        errors: Where filter errors are counted, and what is wrong with subscribers.
        on_end: Called with (state, delivery, result) when a delivery has ended; it holds no place then.
        on_room: Called with the state after an attempt of it.
        on_rest: Called with the state when a delivery of it will be tried again.
        replies: For answers that are events.
        bury: Stores a dead letter; returns when it is on disk.
        journal: Remembers attempts for people.
        tracing: Makes spans; None for none.
        clocks: Time, and the jitter of pauses.
    """

    def __init__(
        self,
        events: Events,
        transport: Transport,
        judge_filter: Judge,
        errors: FilterErrors,
        on_end: Callable[[TargetState, Delivery, str], None],
        on_room: Callable[[TargetState], None],
        on_rest: Callable[[TargetState], None],
        *,
        replies: Replies,
        bury: Callable[[DeadLetter], Awaitable[None]],
        journal: AttemptRecorder,
        tracing: AttemptTracing | None = None,
        clocks: Clocks = SYSTEM,
    ) -> None:
        self._events = events
        self.transport = transport
        self.look = LastLook(judge_filter, errors)
        self._errors = errors
        self._health = SubscriberHealth(errors.trouble, clocks)
        self.on_end = on_end
        self._on_room = on_room
        self._on_rest = on_rest
        self.replies = replies
        self._bury = bury
        self._chance = clocks.chance
        self._tracing = tracing
        self._journal = journal
        self.clock = clocks.now
        self._clock_us = clocks.now_us
        self._loop = asyncio.get_running_loop()
        self.permits = Permits(self.pump, clocks.now)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[Delivery, asyncio.TimerHandle] = {}
        self._held: dict[TargetState, asyncio.TimerHandle] = {}
        self._batches = Batches(self, events)
        self.stopping = False
        self.warm_from = 0
        """Events of rows from this outbox position on were read a moment ago (by the matcher): in the page cache."""

    def pump(self, state: TargetState) -> None:
        """Start what may start of this target."""
        cautious = self.permits.cautious(state)
        while state.startable and not self.stopping:
            if cautious and state.in_flight:
                break
            if (state.circuit.opened or state.target.delivery.rate_per_s is not None) and self._held_back(state):
                break
            if not self.permits.free(state):
                break
            if state.target.delivery.format == "batch":
                if not self._batches.start(state):
                    break
                continue
            delivery = state.queue.popleft()
            if delivery.key is None and state.target.delivery.ordered and not self._enters(state, delivery):
                continue
            if delivery.due_us and self.rests(state, delivery):
                continue
            self.take(state, delivery)
            event = self._events.kept(delivery.partition, delivery.offset)
            if event is None:
                if delivery.position < self.warm_from:
                    self.spawn(self._attempt_later(state, delivery))
                    continue
                try:
                    event = self._events.recent(delivery.partition, delivery.offset)
                except EventGoneError:
                    self.permits.release(state, delivery)
                    self.on_end(state, delivery, "lost")
                    continue
                metrics.MATCH_SECONDS.observe((self._clock_us() - event.append_time_us) / 1e6)
            if self._passes(state, delivery, event):
                self.spawn(self._attempt(state, delivery, event))
        self.permits.watch()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a task that `stop` waits for; what it raises is a bug and reaches the loop's exception handler."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def stop(self, deadline_s: float) -> None:
        """Start nothing more; let what is under way end for so long, then break it off (a restart repeats it)."""
        self.stopping = True
        for timer in [*self._timers.values(), *self._held.values()]:
            timer.cancel()
        self.permits.close()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=deadline_s)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one attempt ----------------------------------------------------------------------------------

    def _passes(self, state: TargetState, delivery: Delivery, event: SharedEvent) -> bool:
        """The last look before delivery: the right broker, and what the matcher left open; else the delivery ends."""
        result = self.look(state.target, delivery, event)
        if not result:
            self.permits.charge(state, delivery, event.size_bytes)
            return True
        if result == "error" and state.target.delivery.filter_errors_buried:
            self.spawn(self._bury_filter_error(state, delivery, event))
            return False
        self.permits.release(state, delivery)
        self.on_end(state, delivery, result)
        return False

    async def _bury_filter_error(self, state: TargetState, delivery: Delivery, event: SharedEvent) -> None:
        await self.bury_filter_error(state, delivery, event)
        self.permits.release(state, delivery)
        self.on_end(state, delivery, "dead_lettered")
        self.go_on(state)

    async def bury_filter_error(self, state: TargetState, delivery: Delivery, event: SharedEvent) -> None:
        """Store the dead letter of an event for which the filter is an error."""
        words = self.look.words(state.target, event).encode()
        outcome = Outcome(CODE_FILTER_ERROR, body=words[: limits.ERROR_BODY_BYTES_MAX])
        now_us = self._clock_us()
        await self._bury(dead_letter_of(state.target, delivery, event, outcome, reason="filter-error", now_us=now_us))

    def _enters(self, state: TargetState, delivery: Delivery) -> bool:
        """Whether an ordered target's delivery may start now; else it waits in its lane, or its key is being read."""
        event = self._events.kept(delivery.partition, delivery.offset)
        if event is None and delivery.position >= self.warm_from:
            try:
                event = self._events.recent(delivery.partition, delivery.offset)
            except EventGoneError:
                self.on_end(state, delivery, "lost")
                return False
        if event is not None:
            return state.key_queues.enter(delivery, event.key)
        state.resolving = True
        self.spawn(self._enter_later(state, delivery))
        return False

    async def _enter_later(self, state: TargetState, delivery: Delivery) -> None:
        event = await load_or_none(self._events, delivery.partition, delivery.offset)
        state.resolving = False
        if event is None or state.gone:
            self.on_end(state, delivery, "gone" if event else "lost")
        elif state.key_queues.enter(delivery, event.key):
            state.queue.appendleft(delivery)
        self.pump(state)
        self._on_room(state)

    async def _attempt_later(self, state: TargetState, delivery: Delivery) -> None:
        try:
            event = await self._events.load(delivery.partition, delivery.offset)
        except EventGoneError:
            self.permits.release(state, delivery)
            self.on_end(state, delivery, "lost")
            self.go_on(state)
            return
        if self._passes(state, delivery, event):
            await self._attempt(state, delivery, event)
        else:
            self.go_on(state)

    async def _attempt(self, state: TargetState, delivery: Delivery, event: SharedEvent) -> None:
        target = state.target
        headers, body = event.wire if target.delivery.format == "binary" else event.wire_json
        span, headers = self.begin(state, delivery, event, headers)
        outcome = await self.transport.post(target.subscriber_uri, headers, body, target.delivery.timeout_s)
        self.heard(state, delivery, outcome)
        if outcome.reply is not None:
            answered = Answered(path_of(target.broker), event.event, event.root)
            outcome = await self.replies.store(answered, outcome.reply, context_sent(span, event))
        end(span, outcome)
        if judge(outcome) is Fate.DELIVERED:
            self.permits.release(state, delivery)
            self.delivered(state, delivery, event, outcome)
        else:
            # The place is held meanwhile: who fails cannot do so faster than the disk takes letters.
            buried = await self.failed(state, delivery, event, outcome, self.clock())
            self.permits.release(state, delivery)
            self.conclude(state, [delivery], outcome, buried=buried)
        self.go_on(state)

    def begin(
        self, state: TargetState, delivery: Delivery, event: SharedEvent, headers: Headers, count: int = 1
    ) -> tuple[Span | None, Headers]:
        """An attempt with `count` events begins; its span, if spans are made, and the headers that name it."""
        if self._tracing is None:
            return None, headers
        span = self._tracing.attempt(state.target.name, event, delivery.failures, count)
        return span, traced(headers, span.context)

    def heard(self, state: TargetState, delivery: Delivery, outcome: Outcome) -> None:
        """What an attempt says of the subscriber, whatever becomes of the event."""
        now = self.clock()
        metrics.SEND_SECONDS.observe(now - delivery.started_at)
        if delivery.failures:
            metrics.RETRIES.inc()
        slow = not outcome.answered or now - delivery.started_at > limits.SLOW_AFTER_S
        self.permits.set_slow(state, slow and outcome.reason not in UNSENT)
        if not slow:
            state.answered_at = now
        self._health.heard(state, delivery, outcome)

    def delivered(self, state: TargetState, delivery: Delivery, event: SharedEvent, outcome: Outcome) -> None:
        """The subscriber took it, and its reply is stored."""
        self._remember(state, delivery, outcome, "")
        metrics.DELIVERY_SECONDS.observe((self._clock_us() - event.append_time_us) / 1e6)
        self.on_end(state, delivery, "delivered")

    async def failed(
        self, state: TargetState, delivery: Delivery, event: SharedEvent, outcome: Outcome, at: float
    ) -> bool:
        """Count an attempt that failed at a time; True when it was the last one and the event is buried now."""
        self._remember(state, delivery, outcome, outcome.label)
        metrics.ATTEMPTS_FAILED.labels(outcome.label).inc()
        delivery.fail(at)
        target = state.target
        if self._is_left(state, delivery, outcome) or state.gone or not target.delivery.has_sink:
            return False
        now_us = self._clock_us()
        await self._bury(dead_letter_of(target, delivery, event, outcome, reason=outcome.label, now_us=now_us))
        return True

    def _remember(self, state: TargetState, delivery: Delivery, outcome: Outcome, reason: str) -> None:
        number = delivery.failures + 1
        self._journal.attempt(delivery.partition, delivery.offset, state.target.id, number, outcome.status, reason)

    def conclude(self, state: TargetState, deliveries: list[Delivery], outcome: Outcome, *, buried: bool) -> None:
        """What follows for deliveries that failed together: an end, or a pause that they share."""
        again: list[Delivery] = []
        for delivery in deliveries:
            if state.gone:
                self.on_end(state, delivery, "dead_lettered" if buried else "gone")
            elif not buried and self._is_left(state, delivery, outcome):
                again.append(delivery)
            else:
                self._health.given_up(state, delivery, outcome)
                if not buried:
                    said = f"{outcome.reason or f'status {outcome.status}'} at attempt {delivery.failures}"
                    place = f"partition {delivery.partition}, offset {delivery.offset}"
                    self._errors.dropped(state.target.id, f"{place}: {said}")
                self.on_end(state, delivery, "dead_lettered" if buried else "failed")
        if again:
            now_us = self._clock_us()
            failures = max(delivery.failures for delivery in again)
            wait_s = pause_s(state.target.delivery, failures, outcome, now_s=now_us / 1e6, chance=self._chance())
            for delivery in again:
                delivery.due_us = now_us + int(wait_s * 1e6)
            self._rest(state, again, wait_s)
            self._on_rest(state)

    def _is_left(self, state: TargetState, delivery: Delivery, outcome: Outcome) -> bool:
        """Whether a failed delivery has another attempt."""
        return is_left(state.target.delivery, outcome, delivery.failures, delivery.tried_us / 1e6)

    def rests(self, state: TargetState, delivery: Delivery) -> bool:
        """Whether a delivery that an earlier process tried is not due yet; it rests then."""
        spec = state.target.delivery
        longest_s = max(backoff_s(spec, delivery.failures), spec.retry_after_max_s) * (1.0 + JITTER)
        # A clock that was set back must not make a pause of days.
        wait_s = min((delivery.due_us - self._clock_us()) / 1e6, longest_s)
        if wait_s <= 0:
            delivery.due_us = 0
            return False
        self._rest(state, [delivery], wait_s)
        return True

    def _rest(self, state: TargetState, deliveries: list[Delivery], wait_s: float) -> None:
        state.backing_off += len(deliveries)
        self._timers[deliveries[0]] = self._loop.call_later(wait_s, self._again, state, deliveries)

    def _again(self, state: TargetState, deliveries: list[Delivery]) -> None:
        del self._timers[deliveries[0]]
        state.backing_off -= len(deliveries)
        for delivery in reversed(deliveries):
            delivery.due_us = 0
            if state.gone:
                self.on_end(state, delivery, "gone")
            else:
                # First in line: its turn came before all that is queued.
                state.queue.appendleft(delivery)
        self.pump(state)
        if state.gone:
            self._on_room(state)

    # --- places ---------------------------------------------------------------------------------------

    def take(self, state: TargetState, delivery: Delivery) -> None:
        """An attempt begins: it has a place, and counts for the target's rate."""
        self.permits.take(state, delivery)
        if state.rate is not None:
            state.rate.take(delivery.started_at)

    def go_on(self, state: TargetState) -> None:
        """After an attempt: others in line first, then the target's next one."""
        self.permits.go_on(state)
        self._on_room(state)

    def _held_back(self, state: TargetState) -> bool:
        """Whether circuit or rate hold the target back; when time alone ends that, it is looked at again then."""
        wait_s = state.wait_s(self.clock())
        if wait_s <= 0:
            return False
        if wait_s != float("inf") and state not in self._held:
            self._held[state] = self._loop.call_later(wait_s, self._let_go, state)
        return True

    def _let_go(self, state: TargetState) -> None:
        del self._held[state]
        self.pump(state)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        tell_failure(task, "a delivery's task failed")
