"""Attempts of all targets: when the next one starts, and what follows from it.

A target starts its queue's next delivery whenever it has fewer than its `parallelism` in flight (an ordered one: none
of the same key) and there is a permit; else it waits for a permit. A delivery that is backing off holds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from headgate.delivery.attempt_service import TURN_S, AttemptService, OutgoingMessage, Recipient
from headgate.delivery.events import EventGoneError, Events, SharedEvent, batched
from headgate.delivery.given_up import CODE_FILTER_ERROR, DeadLetterQueue, give_up
from headgate.delivery.lifecycle import QUEUED, Attempt, Delivery
from headgate.delivery.permits import PermitCounts, Permits
from headgate.delivery.recent import Recent
from headgate.delivery.retry import UNSENT, Fate, Outcome, judge, left_s
from headgate.delivery.targets import TargetState
from headgate.delivery.verdicts import FinalCheck, sent_from_us
from headgate.event.hops import hops_of
from headgate.objects.kinds.routing import Target
from headgate.observe import metrics
from headgate.observe.logs import tell_failure
from headgate.storage.threads import cancel_all
from headgate_api import limits

_REFUSALS: Final = {"error": (CODE_FILTER_ERROR, "filter-error"), "expired": (0, "expired")}
"""Status and reason of dead letters that had no attempt, by how their deliveries end; see `DeliveryRules.keeps`."""
Members = list[tuple[Delivery, SharedEvent]]
Results = list[tuple[Delivery, str]]
"""How deliveries of an attempt end; an empty text for one that is tried again."""
Started = tuple[TargetState, Attempt, Members | None]
"""An attempt that is to be sent; its members where they are at hand."""


class DeliveryOwner(Protocol):
    """Who keeps the targets' deliveries and cursors: the scheduler."""

    def end(self, state: TargetState, delivery: Delivery, result: str) -> None: ...

    def has_room(self, state: TargetState) -> None: ...

    def changed(self, state: TargetState) -> None: ...


class PendingEvents(Protocol):
    """Where events are that wait for their time: `deadletters/pending.py`."""

    def has_room(self, target: Target) -> bool:
        """Whether an event of a trigger would be taken now."""

    def has_before(self, target: int, due_us: int) -> bool:
        """Whether events of a target may be there that are due by then and have not been released."""

    def put(self, target: Target, delivery: Delivery, event: SharedEvent, due_us: int) -> Coroutine[None, None, None]:
        """Keep an event until a time: it takes its place at once, and what comes back ends when it is on disk."""

    async def load(self, id_: int) -> SharedEvent:
        """The event of one. Raises EventGoneError when it was cancelled."""

    def tried(self, delivery: Delivery) -> None:
        """An attempt has failed, and another one follows."""

    def ended(self, target: int, delivery: Delivery) -> None:
        """The delivery has ended: it is not kept any more."""

    def forget(self, target: int) -> None:
        """A target is routed no more: what it had waiting is dropped."""


class Attempts:
    """The attempts of all targets. Lives on one event loop."""

    def __init__(
        self,
        owner: DeliveryOwner,
        events: Events,
        service: AttemptService,
        final_check: FinalCheck,
        dead_letters: DeadLetterQueue,
        counts: PermitCounts,
        pending: PendingEvents | None = None,
    ) -> None:
        self._owner = owner
        self._events = events
        self._service = service
        self._final_check = final_check
        self._dead_letters = dead_letters
        self._pending = pending
        self._clock = service.clocks.now
        self._clock_us = service.clocks.now_us
        self._loop = asyncio.get_running_loop()
        self.permits = Permits(self.pump, self._clock, self._loop, counts)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: dict[Delivery, asyncio.TimerHandle] = {}
        self._held: dict[TargetState, asyncio.TimerHandle] = {}
        self._relay_open = False  # a task that has just ended an attempt takes the next one that starts
        self._relayed: Started | None = None
        self.stopping = False
        self.warm_from = 0  # events of rows from here on were read a moment ago, by the matcher: in the page cache

    def pump(self, state: TargetState) -> None:
        if not state.startable:
            return  # as after nearly every attempt
        cautious, rate_per_s = self.permits.cautious(state), state.subscriber.per_s
        while state.startable and not self.stopping:
            if cautious and state.deliveries.attempts:
                break
            if (state.subscriber.circuit.opened or rate_per_s is not None) and self._is_held(state):
                break
            if not (self.permits.available(state) and self._start(state)):
                break
        self.permits.watch()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a task that `stop` waits for; what it raises is a bug and reaches the loop's exception handler."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def stop(self, deadline_s: float) -> None:
        """Start nothing more; let what is in flight end for so long, then break it off (a restart repeats it)."""
        self.stopping = True
        for timer in [*self._pauses.values(), *self._held.values()]:
            timer.cancel()
        self.permits.close()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=deadline_s)
        await cancel_all(self._tasks)

    # --- which deliveries go out next -----------------------------------------------------------------

    def _start(self, state: TargetState) -> bool:
        """Start an attempt with the first of the queue; False when it has to wait, for time or for more events.

        A batch goes out when `batchSize` events wait, or when the first of them has waited for `batchWait`; what is
        tried again goes at once. One answer is for all its events. One that is refused for good is sent again event by
        event, so that only those are given up that are refused alone.
        """
        rules, deliveries = state.target.delivery, state.deliveries
        is_batch = rules.format == "batch"
        if is_batch and not self._is_ripe(state):
            return False
        size_max = rules.batch_size if is_batch else 1
        attempt: Attempt | None = None
        started: SharedEvent | None = None
        while queue := deliveries.queue:
            first = queue[0]
            if attempt is not None and (len(attempt.deliveries) >= size_max or first.alone):
                break
            event = self._at_hand(first)
            if event is not None and self._puts_off(state, first, event):
                continue
            if first.key is None and rules.ordered and not is_batch and not self._takes_key(state, event):
                return True
            if first.due_us and (wait_s := self._early_s(state, first)):
                if attempt is not None and rules.ordered:
                    break  # apart from those it would come to the front of the queue, before what is tried again
                self._pause(state, [deliveries.not_due()], wait_s)
                if is_batch and rules.ordered:
                    break
                continue
            if attempt is None:
                attempt = self.permits.acquire(state)
            deliveries.start(attempt)
            started = event
            if first.alone:
                break
        if attempt is None:
            return False
        self._launch(state, attempt, started)
        return True

    def _is_ripe(self, state: TargetState) -> bool:
        rules, queue = state.target.delivery, state.deliveries.queue
        first = queue[0]
        if len(queue) < rules.batch_size and not (state.ripe or first.failures or first.alone):
            if state.gathering is None:
                state.gathering = self._loop.call_later(rules.batch_wait_s, self._ripen, state)
            return False
        if state.gathering is not None:
            state.gathering.cancel()
        state.gathering, state.ripe = None, False
        return True

    def _ripen(self, state: TargetState) -> None:
        state.gathering, state.ripe = None, bool(state.deliveries.queue)
        if state.ripe:
            self.pump(state)

    def _takes_key(self, state: TargetState, event: SharedEvent | None) -> bool:
        """Whether an ordered target's first delivery has its key; else it waits for it, or the key is being read."""
        if event is not None:
            return state.deliveries.take_key(event.key)
        self.spawn(self._read_key(state, state.deliveries.read_key()))
        return False

    async def _read_key(self, state: TargetState, delivery: Delivery) -> None:
        try:
            event: SharedEvent | None = await self._load(delivery)
        except EventGoneError:
            event = None
        if event is None or state.gone:
            self._owner.end(state, delivery, "gone" if event else _missing(delivery))
        else:
            state.deliveries.key_read(delivery, event.key)
        self.pump(state)
        self._owner.has_room(state)

    def _is_held(self, state: TargetState) -> bool:
        """Whether circuit or rate hold the target back; it is looked at again when time alone ends that."""
        wait_s = state.subscriber.wait_s(self._clock())
        if wait_s <= 0:
            return False
        if wait_s == float("inf"):
            if state.deliveries.attempts:
                return True  # its end decides
            wait_s = TURN_S  # a replay's attempt decides
        if state not in self._held:
            self._held[state] = self._loop.call_later(wait_s, self._let_go, state)
        return True

    def _let_go(self, state: TargetState) -> None:
        del self._held[state]
        self.pump(state)

    # --- one attempt ----------------------------------------------------------------------------------

    def _launch(self, state: TargetState, attempt: Attempt, event: SharedEvent | None) -> None:
        """Send an attempt off; a single event that is not to go out costs no task where it is at hand."""
        members: Members | None = None
        if event is not None and len(attempt.deliveries) == 1 and not state.target.delivery.keeps_refused:
            (delivery,) = attempt.deliveries
            checked = self._final_check(state.target, delivery, event)
            if isinstance(checked, str):
                self.permits.release(state, attempt)
                self._owner.end(state, delivery, checked)
                self._owner.has_room(state)  # no attempt will say so
                return
            self.permits.charge(state, attempt, checked.size_bytes)
            members = [(delivery, checked)]
        if self._relay_open:
            self._relay_open, self._relayed = False, (state, attempt, members)
        else:
            self.spawn(self._relay(state, attempt, members))

    async def _relay(self, state: TargetState, attempt: Attempt, members: Members | None) -> None:
        """Attempts one after the other: a task for each would cost a tenth of a delivery's processor time."""
        started: Started | None = (state, attempt, members)
        while started is not None:
            state = started[0]
            # Only who has waited for an answer goes on: a target whose attempts end at once must not keep the loop.
            self._relay_open = await self._attempt(*started)
            self.permits.go_on(state)
            self._owner.has_room(state)
            started, self._relayed, self._relay_open = self._relayed, None, False
            if started is not None:
                # All answers that are there are heard before the next requests go out.
                await asyncio.sleep(0)

    async def _attempt(self, state: TargetState, attempt: Attempt, members: Members | None) -> bool:
        """Make an attempt; whether its events have been delivered."""
        if members is None:
            members = await self._members(state, attempt)
        if not members:
            self.permits.release(state, attempt)
            return False
        to, (delivery, event) = state.recipient, members[0]
        heard = partial(self._heard, state, delivery, event)
        outcome = await self._service.send(to, delivery, _message(to, members), heard)
        fate = judge(outcome)
        if fate is Fate.DELIVERED:
            self.permits.release(state, attempt)
            self._delivered(state, members, outcome)
            return True
        if fate is Fate.FAILED and len(members) > 1 and not state.gone:
            self.permits.release(state, attempt)
            self._split(state, members)
        else:
            # The permit is held meanwhile: who fails cannot do so faster than the disk takes dead letters.
            results, pause_s = await self._settle(state, members, outcome)
            self.permits.release(state, attempt)
            self._failed(state, results, outcome, pause_s)
        return False

    async def _members(self, state: TargetState, attempt: Attempt) -> Members:
        """Those of an attempt that go out, with their events; the others end, or return if it grows too large."""
        target, chosen = state.target, attempt.deliveries
        members: Members = []
        size_bytes = 0
        for index, delivery in enumerate(chosen):
            try:
                event = self._at_hand(delivery) or await self._load(delivery)
            except EventGoneError:
                self._owner.end(state, delivery, _missing(delivery))
                continue
            if self._puts_off(state, delivery, event):
                continue
            # Base64 and escapes make it longer.
            if members and size_bytes + event.size_bytes > limits.BATCH_BYTES_MAX // 2:
                state.deliveries.give_back(chosen[index:])
                break
            result = self._final_check(target, delivery, event)
            if not isinstance(result, str):
                size_bytes += result.size_bytes
                members.append((delivery, result))
                continue
            if target.delivery.keeps(result):
                if self._dead_letters.is_over_quota(target.namespace):
                    metrics.QUOTA_DEAD_LETTERS_WAITING.inc()
                    self._back_off(state, [delivery], limits.DEADLETTER_QUOTA_PAUSE_S)
                    continue
                message = self._final_check.message(target, event).encode()
                outcome = Outcome(*_REFUSALS[result], body=message)
                await give_up(self._dead_letters, target, delivery, event, outcome, now_us=self._clock_us())
                result = "dead_lettered"
            self._owner.end(state, delivery, result)
        if members:
            self.permits.charge(state, attempt, size_bytes)
        return members

    def _at_hand(self, delivery: Delivery) -> SharedEvent | None:
        """The event of a delivery where that takes no waiting; one that is gone is told by `_load`."""
        if delivery.pending:
            return None  # its store is asked: it may have been cancelled
        event = self._events.kept(delivery.partition, delivery.offset)
        if event is None and delivery.position >= self.warm_from:
            with suppress(EventGoneError):
                event = self._events.recent(delivery.partition, delivery.offset)
            if event is not None:
                metrics.MATCH_SECONDS.observe((self._clock_us() - event.append_time_us) / 1e6)
        return event

    async def _load(self, delivery: Delivery) -> SharedEvent:
        """The event of a delivery, perhaps from the disk. Raises EventGoneError."""
        if delivery.pending:
            assert self._pending is not None, "it came from there"
            return await self._pending.load(delivery.pending)
        return await self._events.load(delivery.partition, delivery.offset)

    # --- what is too early ----------------------------------------------------------------------------

    def _puts_off(self, state: TargetState, delivery: Delivery, event: SharedEvent) -> bool:
        """Whether a delivery is too early: the store of pending events gets it, or it is looked at again soon.

        So does one whose time has come behind others that are still there: events go out in the order of their times.
        """
        if delivery.pending or delivery.failures:
            return False
        due_us = sent_from_us(state.target, event)
        if not due_us or self._pending is None:
            return False
        if self._final_check.is_time(due_us) and not self._pending.has_before(state.target.id, due_us):
            return False
        if not self._final_check.may_wait(state.target, delivery, event):
            return False
        if self._pending.has_room(state.target):
            state.deliveries.put_off(delivery)
            self.spawn(self._put_off(state, delivery, self._pending.put(state.target, delivery, event, due_us)))
        elif delivery.state is QUEUED:
            self._pause(state, [state.deliveries.not_due()], limits.DEADLETTER_RETRY_S)
        else:
            state.deliveries.back_off(delivery)
            self._pause(state, [delivery], limits.DEADLETTER_RETRY_S)
        return True

    async def _put_off(self, state: TargetState, delivery: Delivery, stored: Coroutine[None, None, None]) -> None:
        await stored
        self._owner.end(state, delivery, "gone" if state.gone else "pending")
        self._owner.has_room(state)

    def _heard(self, state: TargetState, delivery: Delivery, event: SharedEvent, outcome: Outcome) -> None:
        """What an attempt says of the target's speed, whatever becomes of the event."""
        now = self._clock()
        took_s = now - delivery.started_at
        metrics.SEND_SECONDS.observe(took_s)
        if state.recent is None:
            state.recent = Recent()
        state.recent.attempt(self._clock_us(), event.event, delivery.failures + 1, took_s, outcome)
        if delivery.failures:
            metrics.RETRIES.inc()
        slow = not outcome.answered or took_s > limits.SLOW_AFTER_S
        self.permits.set_slow(state, slow and outcome.reason not in UNSENT)
        if not slow:
            state.subscriber.answered_at = now

    def _delivered(self, state: TargetState, members: Members, outcome: Outcome) -> None:
        now_us = self._clock_us()
        for delivery, event in members:
            self._service.record(state.recipient, delivery, outcome)
            took_s = (now_us - event.append_time_us) / 1e6
            metrics.DELIVERY_SECONDS.observe(took_s)
            state.seconds.observe(took_s)
            if state.recent is not None:
                state.recent.delivered(now_us, took_s)
            self._owner.end(state, delivery, "delivered")

    def _split(self, state: TargetState, members: Members) -> None:
        """A batch is refused for good: its events go out one by one."""
        for delivery, _ in members:
            delivery.alone = True
        state.deliveries.give_back(delivery for delivery, _ in members)

    async def _settle(self, state: TargetState, members: Members, outcome: Outcome) -> tuple[Results, float]:
        """How the deliveries of a failed attempt end, and the pause in seconds of those that are tried again."""
        results: Results = []
        pause_s = 0.0
        at = self._clock()  # of the answer to all: storing dead letters takes its time
        for delivery, event in members:
            decision = self._service.settle(state.recipient, delivery, outcome, at)
            state.deliveries.failed(delivery)
            metrics.ATTEMPTS_FAILED.labels(outcome.label).inc()
            state.counts.attempts_failed += 1
            if state.recent is not None:
                state.recent.failed(self._clock_us())
            if decision.fate is Fate.AGAIN:
                pause_s = max(pause_s, decision.pause_s)
                results.append((delivery, ""))
            elif state.gone:
                results.append((delivery, "failed"))
            elif state.target.delivery.has_sink and self._dead_letters.is_over_quota(state.target.namespace):
                # Not `put`, which would wait with the permit: nothing is lost, and others get on.
                metrics.QUOTA_DEAD_LETTERS_WAITING.inc()
                pause_s = max(pause_s, limits.DEADLETTER_QUOTA_PAUSE_S)
                results.append((delivery, ""))
            else:
                letters, now_us, is_shared = self._dead_letters, self._clock_us(), len(members) > 1
                given_up = give_up(letters, state.target, delivery, event, outcome, now_us=now_us, is_shared=is_shared)
                results.append((delivery, await given_up))
        return results, pause_s

    def _failed(self, state: TargetState, results: Results, outcome: Outcome, pause_s: float) -> None:
        again: list[Delivery] = []
        for delivery, result in results:
            if state.gone:
                self._owner.end(state, delivery, result if result == "dead_lettered" else "gone")
            elif not result:
                again.append(delivery)
            else:
                self._given_up(state, delivery, result, outcome)
        if again:
            self._back_off(state, again, pause_s)

    def _back_off(self, state: TargetState, deliveries: Sequence[Delivery], pause_s: float) -> None:
        due_us = self._clock_us() + int(pause_s * 1e6)
        for delivery in deliveries:
            state.deliveries.back_off(delivery)
            delivery.due_us = due_us
            if delivery.pending and self._pending is not None:
                self._pending.tried(delivery)
        self._pause(state, deliveries, pause_s)
        self._owner.changed(state)

    def _given_up(self, state: TargetState, delivery: Delivery, result: str, outcome: Outcome) -> None:
        self._service.health.given_up(state.subscriber, delivery, outcome)
        if result == "failed":
            why = f"{outcome.why} at attempt {delivery.failures}"
            where = f"partition {delivery.partition}, offset {delivery.offset}"
            self._final_check.errors.dropped(state.target.id, f"{where}: {why}")
        self._owner.end(state, delivery, result)

    # --- pauses ---------------------------------------------------------------------------------------

    def _early_s(self, state: TargetState, first: Delivery) -> float:
        """Seconds until the first delivery, which an earlier process tried, is due; 0 when it is."""
        wait_s = left_s(state.target.delivery, first.failures, first.due_us, now_us=self._clock_us())
        if wait_s <= 0:
            first.due_us = 0
        return max(0.0, wait_s)

    def _pause(self, state: TargetState, deliveries: Sequence[Delivery], wait_s: float) -> None:
        self._pauses[deliveries[0]] = self._loop.call_later(wait_s, self._again, state, deliveries)

    def _again(self, state: TargetState, deliveries: Sequence[Delivery]) -> None:
        del self._pauses[deliveries[0]]
        for delivery in reversed(deliveries):
            if state.gone:
                self._owner.end(state, delivery, "gone")
            else:
                state.deliveries.due(delivery)
        self.pump(state)
        if state.gone:
            self._owner.has_room(state)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        tell_failure(task, "a delivery's task failed")


def _missing(delivery: Delivery) -> str:
    """How a delivery ends whose event is not there."""
    return "cancelled" if delivery.pending else "lost"


def _message(to: Recipient, members: Members) -> OutgoingMessage:
    event = furthest = members[0][1]
    if to.rules.format == "batch":
        furthest = max((member for _, member in members), key=lambda member: hops_of(member.event))
        headers, body = batched([member.event for _, member in members], furthest.event, furthest.root)
    else:
        headers, body = event.wire if to.rules.format == "binary" else event.wire_json
    count = len(members)
    return OutgoingMessage(headers, body, event.event, furthest.event, furthest.root, count, event.append_time_us)
