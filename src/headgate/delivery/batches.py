"""When does a batch go out, and what if it is not taken? Targets with `format: batch`.

A batch goes when `batchSize` events wait, or when the first of them has waited for `batchWait`; what is tried again
goes at once. One answer is the answer for all its events: taken, or tried again together. A batch that is refused for
good (400, 413, ...) is sent again event by event, so that only those are given up that are refused alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headgate import limits
from headgate.delivery import encoding
from headgate.delivery.events import Events, SharedEvent
from headgate.delivery.replies import Answered
from headgate.delivery.retry import Fate, Outcome, judge
from headgate.delivery.spans import context_sent, end
from headgate.delivery.targets import Delivery, TargetState
from headgate.event.hops import hops_of
from headgate.event.identity import path_of
from headgate.outbox.errors import EventGoneError

if TYPE_CHECKING:
    from headgate.delivery.attempts import Attempts

Members = list[tuple[Delivery, SharedEvent]]


class Batches:
    """The batches of all targets. A batch holds one place, in the name of its first delivery.

    Args:
        attempts: Who has the places.
        events: The log.
    """

    def __init__(self, attempts: Attempts, events: Events) -> None:
        self._attempts = attempts
        self._events = events
        self._loop = asyncio.get_running_loop()

    def start(self, state: TargetState) -> bool:
        """Start a batch of what is queued; False when it has to wait for more, or for a pause to end."""
        rules, queue = state.target.delivery, state.queue
        first = queue[0]
        if len(queue) < rules.batch_size and not (state.ripe or first.failures or first.alone):
            if state.gathering is None:
                state.gathering = self._loop.call_later(rules.batch_wait_s, self._ripen, state)
            return False
        if state.gathering is not None:
            state.gathering.cancel()
        state.gathering, state.ripe = None, False
        chosen: list[Delivery] = []
        while queue and len(chosen) < rules.batch_size and not (chosen and queue[0].alone):
            delivery = queue.popleft()
            if delivery.due_us and self._attempts.rests(state, delivery):
                if rules.ordered:
                    break
                continue
            chosen.append(delivery)
            if delivery.alone:
                break
        if not chosen:
            return False
        self._attempts.take(state, chosen[0])
        self._attempts.spawn(self._attempt(state, chosen))
        return True

    def _ripen(self, state: TargetState) -> None:
        state.gathering, state.ripe = None, True
        if state.queue:
            self._attempts.pump(state)
        else:
            state.ripe = False

    async def _attempt(self, state: TargetState, chosen: list[Delivery]) -> None:
        attempts, target, head = self._attempts, state.target, chosen[0]
        members = await self._members(state, chosen)
        attempts.permits.charge(state, head, sum(event.size_bytes for _, event in members))
        if not members:
            attempts.permits.release(state, head)
            attempts.go_on(state)
            return
        for delivery, _ in members:
            delivery.started_at = head.started_at
        furthest = max((event for _, event in members), key=lambda event: hops_of(event.event))
        headers, body = encoding.batch([event.event for _, event in members], furthest.event, furthest.root)
        first = members[0][1]
        span, headers = attempts.begin(state, head, first, headers, len(members))
        outcome = await attempts.transport.post(target.subscriber_uri, headers, body, target.delivery.timeout_s)
        attempts.heard(state, head, outcome)
        if outcome.reply is not None:
            answered = Answered(path_of(target.broker), furthest.event, furthest.root)
            outcome = await attempts.replies.store(answered, outcome.reply, context_sent(span, first))
        end(span, outcome)
        fate = judge(outcome)
        if fate is Fate.DELIVERED:
            attempts.permits.release(state, head)
            for delivery, event in members:
                attempts.delivered(state, delivery, event, outcome)
        elif fate is Fate.FAILED and len(members) > 1 and not state.gone:
            attempts.permits.release(state, head)
            for delivery, _ in reversed(members):
                delivery.alone = True
                state.queue.appendleft(delivery)
        else:
            await self._fail(state, head, members, outcome)
        attempts.go_on(state)

    async def _fail(self, state: TargetState, head: Delivery, members: Members, outcome: Outcome) -> None:
        at = self._attempts.clock()  # of the answer to all: burying takes its time
        buried: list[Delivery] = []
        others: list[Delivery] = []
        for delivery, event in members:
            is_buried = await self._attempts.failed(state, delivery, event, outcome, at)
            (buried if is_buried else others).append(delivery)
        self._attempts.permits.release(state, head)
        self._attempts.conclude(state, buried, outcome, buried=True)
        self._attempts.conclude(state, others, outcome, buried=False)

    async def _members(self, state: TargetState, chosen: list[Delivery]) -> Members:
        """Those of a batch that go out, with their events; the others have ended, or wait when it grows too large."""
        attempts, target = self._attempts, state.target
        members: Members = []
        size_bytes = 0
        for index, delivery in enumerate(chosen):
            try:
                event = await self._events.load(delivery.partition, delivery.offset)
            except EventGoneError:
                attempts.on_end(state, delivery, "lost")
                continue
            size_bytes += event.size_bytes
            if members and size_bytes > limits.BATCH_BYTES_MAX // 2:  # Base64 and escapes make it longer
                state.queue.extendleft(reversed(chosen[index:]))
                break
            result = attempts.look(target, delivery, event)
            if result == "error" and target.delivery.filter_errors_buried:
                await attempts.bury_filter_error(state, delivery, event)
                result = "dead_lettered"
            if result:
                attempts.on_end(state, delivery, result)
            else:
                members.append((delivery, event))
        return members
