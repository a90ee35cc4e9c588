"""The states of deliveries: no transition but those of the table, and counts that agree with it whatever happens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.delivery.circuit import Subscriber
from headgate.delivery.lifecycle import (
    TRANSITIONS,
    Attempt,
    Delivery,
    DeliveryEvent,
    DeliveryState,
    TargetDeliveries,
    TransitionError,
)
from headgate.delivery.permits import PermitCounts, Permits
from headgate.delivery.targets import TargetState
from tests.delivery.harness import target
from tests.support import examples

PAIRS = [(state, event) for state in DeliveryState for event in DeliveryEvent]


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda one: one.name)
def test_what_is_not_in_the_table_is_refused(state: DeliveryState, event: DeliveryEvent):
    deliveries, delivery = TargetDeliveries(), Delivery(0, 0, 0, 3)
    deliveries.arrive(delivery)
    deliveries._counts[DeliveryState.QUEUED] -= 1
    deliveries._counts[state] += 1
    delivery.state = state
    after = TRANSITIONS.get((state, event))
    if after is None:
        with pytest.raises(TransitionError, match=f"{event.name} of a delivery that is {state.name}"):
            deliveries._move(delivery, event)
    else:
        deliveries._move(delivery, event)
    assert delivery.state is (state if after is None else after)
    assert deliveries.count(delivery.state) == 1
    assert sum(map(deliveries.count, DeliveryState)) == 1


def test_every_state_is_reached_and_left():
    assert set(TRANSITIONS.values()) == set(DeliveryState)
    assert {state for state, _ in TRANSITIONS} == set(DeliveryState) - {DeliveryState.ENDED}
    assert {event for _, event in TRANSITIONS} == set(DeliveryEvent)
    ends = {state for state, event in TRANSITIONS if event is DeliveryEvent.END}
    assert ends == set(DeliveryState) - {DeliveryState.ENDED}, "a target may be deleted at any time"


def test_an_event_that_has_failed_waits_for_another_one_of_its_key():
    """Both failed before their target became ordered."""
    deliveries = TargetDeliveries()
    first, second = (Delivery(position, 0, position, 3) for position in range(2))
    for delivery in (first, second):
        delivery.fail(1.0)
        deliveries.arrive(delivery)
    assert deliveries.take_key("a")
    attempt = Attempt(0.0)
    deliveries.open(attempt)
    deliveries.start(attempt)
    assert not deliveries.take_key("a")
    assert (second.state, [*deliveries.queue]) == (DeliveryState.WAITING_FOR_KEY, [])
    deliveries.end(first)
    assert [*deliveries.queue] == [second]


class Machine(RuleBasedStateMachine):
    """Two ordered targets that share permits; a model notes where each delivery must be."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.permits = Permits(lambda _: None, lambda: 0.0, self.loop, PermitCounts())
        self.states = [TargetState(Subscriber(target(n, "http://x/", ordered=True))) for n in (1, 2)]
        self.model: dict[Delivery, tuple[TargetState, DeliveryState]] = {}
        self.attempts: list[tuple[TargetState, Attempt]] = []
        self.next = 0
        self.ended = 0

    def teardown(self) -> None:
        self.loop.close()

    def put(self, state: TargetState, delivery: Delivery, where: DeliveryState) -> None:
        self.model[delivery] = (state, where)

    def those(self, where: DeliveryState, state: TargetState | None = None) -> list[Delivery]:
        return [one for one, (of, at) in self.model.items() if at is where and (state is None or of is state)]

    def pick(self, data: st.DataObject, where: DeliveryState) -> tuple[TargetState, Delivery]:
        delivery = data.draw(st.sampled_from(self.those(where)))
        return self.model[delivery][0], delivery

    def some(self, state: DeliveryState) -> bool:
        return bool(self.those(state))

    def queued(self, data: st.DataObject) -> TargetState:
        return data.draw(st.sampled_from([state for state in self.states if state.deliveries.queue]))  # type: ignore[no-any-return]

    @rule(number=st.integers(0, 1))
    def arrive(self, number: int) -> None:
        delivery, self.next = Delivery(self.next, 0, self.next, 3), self.next + 1
        self.states[number].deliveries.arrive(delivery)
        self.put(self.states[number], delivery, DeliveryState.QUEUED)

    @precondition(lambda self: self.some(DeliveryState.QUEUED))
    @rule(data=st.data(), count=st.integers(1, 3))
    def start(self, data: st.DataObject, count: int) -> None:
        state = self.queued(data)
        attempt = self.permits.acquire(state)
        for _ in range(min(count, len(state.deliveries.queue))):
            self.put(state, state.deliveries.queue[0], DeliveryState.IN_FLIGHT)
            state.deliveries.start(attempt)
        self.permits.charge(state, attempt, 10 * len(attempt.deliveries))
        self.attempts.append((state, attempt))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), what=st.sampled_from(["end", "fail", "return"]))
    def finish(self, data: st.DataObject, what: str) -> None:
        state, attempt = data.draw(st.sampled_from(self.attempts))
        self.attempts.remove((state, attempt))
        self.permits.release(state, attempt)
        left = [one for one in attempt.deliveries if self.model.get(one) == (state, DeliveryState.IN_FLIGHT)]
        if what == "return":
            state.deliveries.give_back(left)
            assert list(state.deliveries.queue)[: len(left)] == left, "in their order, before the others"
        for delivery in left:
            if what == "end":
                self.end(state, delivery)
            elif what == "fail":
                state.deliveries.back_off(delivery)
            self.put_if_alive(state, delivery, what)

    def put_if_alive(self, state: TargetState, delivery: Delivery, what: str) -> None:
        if what != "end":
            self.put(state, delivery, DeliveryState.BACKING_OFF if what == "fail" else DeliveryState.QUEUED)

    def end(self, state: TargetState, delivery: Delivery) -> None:
        was_waiting = set(self.those(DeliveryState.WAITING_FOR_KEY, state))
        del self.model[delivery]
        state.deliveries.end(delivery)
        self.ended += 1
        freed = [one for one in was_waiting if one.state is DeliveryState.QUEUED]
        assert len(freed) <= 1
        for one in freed:
            assert one.key == delivery.key
            assert state.deliveries.queue[0] is one
            self.put(state, one, DeliveryState.QUEUED)

    @precondition(lambda self: self.some(DeliveryState.QUEUED))
    @rule(data=st.data())
    def not_due(self, data: st.DataObject) -> None:
        state = self.queued(data)
        self.put(state, state.deliveries.not_due(), DeliveryState.BACKING_OFF)

    @precondition(lambda self: self.some(DeliveryState.BACKING_OFF))
    @rule(data=st.data())
    def due(self, data: st.DataObject) -> None:
        state, delivery = self.pick(data, DeliveryState.BACKING_OFF)
        state.deliveries.due(delivery)
        self.put(state, delivery, DeliveryState.QUEUED)

    @precondition(lambda self: any(s.deliveries.queue and s.deliveries.queue[0].key is None for s in self.states))
    @rule(data=st.data(), key=st.sampled_from("ab"))
    def take_key(self, data: st.DataObject, key: str) -> None:
        keyless = [s for s in self.states if s.deliveries.queue and s.deliveries.queue[0].key is None]
        state = data.draw(st.sampled_from(keyless))
        delivery = state.deliveries.queue[0]
        taken = any(one.key == key for one, (of, _) in self.model.items() if of is state)
        assert state.deliveries.take_key(key) is not taken
        self.put(state, delivery, DeliveryState.WAITING_FOR_KEY if taken else DeliveryState.QUEUED)

    @precondition(lambda self: any(s.deliveries.queue and s.deliveries.queue[0].key is None for s in self.states))
    @rule(data=st.data())
    def read_key(self, data: st.DataObject) -> None:
        keyless = [s for s in self.states if s.deliveries.queue and s.deliveries.queue[0].key is None]
        state = data.draw(st.sampled_from(keyless))
        self.put(state, state.deliveries.read_key(), DeliveryState.READING_KEY)

    @precondition(lambda self: self.some(DeliveryState.READING_KEY))
    @rule(data=st.data(), key=st.sampled_from("ab"))
    def key_read(self, data: st.DataObject, key: str) -> None:
        state, delivery = self.pick(data, DeliveryState.READING_KEY)
        taken = any(one.key == key for one, (of, _) in self.model.items() if of is state)
        state.deliveries.key_read(delivery, key)
        self.put(state, delivery, DeliveryState.WAITING_FOR_KEY if taken else DeliveryState.QUEUED)

    @rule(number=st.integers(0, 1), below=st.integers(0, 30))
    def expire(self, number: int, below: int) -> None:
        state = self.states[number]
        for delivery in state.deliveries.expire(below):
            self.put(state, delivery, DeliveryState.EXPIRING)
            self.end(state, delivery)

    @rule(number=st.integers(0, 1))
    def delete_the_target(self, number: int) -> None:
        state = self.states[number]
        for delivery in state.deliveries.unstarted():
            self.end(state, delivery)
        assert not state.deliveries.queue
        assert not state.deliveries.count(DeliveryState.WAITING_FOR_KEY)

    @rule(number=st.integers(0, 1), slow=st.booleans())
    def answers_slowly_or_not(self, number: int, slow: bool) -> None:
        self.permits.set_slow(self.states[number], slow)

    @invariant()
    def counts_agree(self) -> None:
        for state in self.states:
            deliveries = state.deliveries
            mine = {one: at for one, (of, at) in self.model.items() if of is state}
            assert {one: one.state for one in deliveries.live.values()} == mine
            counted = Counter(mine.values())
            assert [deliveries.count(at) for at in list(DeliveryState)[:-1]] == [
                counted[at] for at in list(DeliveryState)[:-1]
            ]
            assert sorted(one.position for one in deliveries.queue) == sorted(
                one.position for one, at in mine.items() if at is DeliveryState.QUEUED
            )
        assert sum(state.deliveries.count(DeliveryState.ENDED) for state in self.states) == self.ended

    @invariant()
    def permits_agree(self) -> None:
        for slow, count in self.permits.counts.taken.items():
            assert count == sum(state.slow is slow for state, _ in self.attempts)
        for state in self.states:
            attempts = [attempt for of, attempt in self.attempts if of is state]
            assert list(state.deliveries.attempts) == attempts
            assert state.subscriber.in_flight == len(attempts)
            carried = sum(len([d for d in a.deliveries if d.state is DeliveryState.IN_FLIGHT]) for a in attempts)
            assert carried == state.deliveries.count(DeliveryState.IN_FLIGHT)


Machine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestLifecycle: Callable[..., object] = Machine.TestCase
