"""The gate of events before the log: who may send which, over HTTP and gRPC, and what it costs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.audit import AuditEntry
from headgate.auth.context import ENTRY, USER, current_user
from headgate.auth.event_policies import (
    DefaultMode,
    EventForbiddenError,
    EventPolicies,
    EventPolicyAuthority,
    SenderRule,
)
from headgate.auth.user import User, authenticated, sender_of
from headgate.ingress.event_gate import EventGate, EventPolicyTimeError
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.ingress.publish_rpc import PublishRpc
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate_api import limits
from headgate_api.event.model import DataKind, Event
from headgate_api.rpc.events import to_message
from headgate_api.rpc.headgate_pb2 import PublishRequest
from tests.calls import served
from tests.ingress.publisher import Log, opened, said
from tests.ingress.support import Answer, FakeLog, call, fallback

BROKER = "ns/b"
ANN, EVE = authenticated("ann"), authenticated("eve")
PAID = 'ce.type == "paid" && data.total < 100'
EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "paid", "data": {"total": 5}}


def authority(*rules: SenderRule, mode: DefaultMode = DefaultMode.ALLOW_SAME_NAMESPACE) -> EventPolicyAuthority:
    made = EventPolicyAuthority(mode)
    made.policies = EventPolicies(mode, {BROKER: rules} if rules else {})
    return made


def send(
    rules: EventPolicyAuthority, body: object, *, user: User = ANN, kind: str = "", entry: AuditEntry | None = None
) -> tuple[Answer, FakeLog]:
    """One request; the answer, and the log behind it."""
    log = FakeLog()
    served_brokers = {BROKER: ServedBroker(f"{BROKER}/uid", DEFAULT_RULE)}
    app = Ingress(Intake(Partitions([log]), served_brokers.get, gate=EventGate(rules)), fallback)

    async def known(scope: Any, receive: Any, answer: Any) -> None:
        scope[USER] = user
        if entry is not None:
            scope[ENTRY] = entry
        await app(scope, receive, answer)

    kind = kind or f"application/cloudevents{'-batch' if isinstance(body, list) else ''}+json"
    headers = [("content-type", kind)]
    found, _ = asyncio.run(call(known, headers=headers, pieces=(json.dumps(body).encode(),)))
    assert found is not None
    return found, log


def test_a_filter_sees_attributes_and_data() -> None:
    rules = authority(SenderRule.of("p", ("ann",), PAID))
    assert send(rules, EVENT)[0].status == 202
    for change in ({"type": "sent"}, {"data": {"total": 100}}, {"data": {}}, {"data": "text"}):
        answer, log = send(rules, EVENT | change)
        assert (answer.status, answer.problem["code"], log.events) == (403, "event-forbidden", [])
        assert "index" not in answer.problem
        assert "(id '1', type" in answer.problem["detail"]
        assert answer.problem["hint"]


def test_a_binary_event_is_judged_the_same() -> None:
    log = FakeLog()
    brokers = {BROKER: ServedBroker(f"{BROKER}/uid", DEFAULT_RULE)}
    gate = EventGate(authority(SenderRule.of("p", ("ann",), PAID)))
    app = Ingress(Intake(Partitions([log]), brokers.get, gate=gate), fallback)

    async def known(scope: Any, receive: Any, answer: Any) -> None:
        scope[USER] = ANN
        await app(scope, receive, answer)

    for kind, status in (("paid", 202), ("sent", 403)):
        headers = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", kind)]
        headers.append(("content-type", "application/json"))
        answer, _ = asyncio.run(call(known, headers=headers, pieces=(b'{"total":5}',)))
        assert answer is not None
        assert answer.status == status


def test_a_batch_with_one_forbidden_event_is_refused_whole() -> None:
    batch = [EVENT | {"id": str(number)} for number in range(5)]
    batch[3]["type"] = "sent"
    rules = authority(SenderRule.of("p", ("ann",), PAID))
    answer, log = send(rules, batch)
    assert (answer.status, answer.problem["index"], log.events) == (403, 3, [])
    assert answer.problem["detail"].startswith("event 3 (id '3', type 'sent') may not be sent to ns/b by user \"ann\"")
    answer, log = send(rules, batch[:3])
    assert (answer.status, len(log.events)) == (202, 3)


def test_who_is_not_named_sends_nothing() -> None:
    entry = AuditEntry("/ns/b", "", "", "create", decision="allow")
    answer, log = send(authority(SenderRule.of("p", ("ann",))), EVENT, user=EVE, entry=entry)
    assert (answer.status, log.events) == (403, [])
    assert 'user "eve" may not send events to ns/b' in answer.problem["detail"]
    assert (entry.decision, entry.reason) == ("forbid", answer.problem["detail"])


def test_without_a_policy_the_mode_decides() -> None:
    for mode in DefaultMode:
        answer, _ = send(authority(mode=mode), EVENT)
        assert answer.status == (403 if mode is DefaultMode.DENY_ALL else 202)


def test_a_filter_that_asks_for_the_time_of_storing_gets_now() -> None:
    recent = 'publish_time > timestamp("2020-01-01T00:00:00Z") && publish_time < timestamp("2200-01-01T00:00:00Z")'
    assert send(authority(SenderRule.of("p", ("ann",), recent)), EVENT)[0].status == 202


def ticking(step_s: float) -> Callable[[], float]:
    """A clock that moves on with each look."""
    now = 0.0

    def clock_s() -> float:
        nonlocal now
        now += step_s
        return now

    return clock_s


def events(count: int) -> list[Event]:
    return [Event("1.0", f"e{n}", "/s", "paid", data=b'{"total":5}', data_kind=DataKind.JSON) for n in range(count)]


def test_others_go_on_while_a_batch_is_judged() -> None:
    async def work() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        gate = EventGate(authority(SenderRule.of("p", ("ann",), PAID)), clock_s=ticking(limits.EVENT_POLICY_TURN_S))
        running = asyncio.create_task(other())
        await gate.admit(ANN, BROKER, events(50))
        running.cancel()
        return turns

    assert asyncio.run(work()) >= 20


def test_a_batch_that_takes_too_long_is_refused() -> None:
    gate = EventGate(authority(SenderRule.of("p", ("ann",), PAID)), clock_s=ticking(limits.EVENT_POLICY_S_MAX / 4))
    with pytest.raises(EventPolicyTimeError, match="EVENT_POLICY_S_MAX") as error:
        asyncio.run(gate.admit(ANN, BROKER, events(50)))
    assert error.value.http_status == 413
    many = [
        SenderRule.of(f"p{n}", ("ann",), f'ce.type == "t{n}"') for n in range(limits.EVENT_POLICIES_PER_NAMESPACE_MAX)
    ]
    gate = EventGate(authority(*many), clock_s=ticking(limits.EVENT_POLICY_S_MAX / 40))
    with pytest.raises(EventPolicyTimeError, match="on 0 of 1 events"):  # nor may many policies ask one event for ever
        asyncio.run(gate.admit(ANN, BROKER, events(1)))


@pytest.mark.parametrize(
    ("mode", "rules", "own", "other"),
    [
        (DefaultMode.ALLOW_SAME_NAMESPACE, (), True, False),
        (DefaultMode.ALLOW_ALL, (), True, True),
        (DefaultMode.DENY_ALL, (), False, False),
        (DefaultMode.DENY_ALL, (SenderRule.of("p", (sender_of("away/t").name,), PAID),), False, True),
    ],
)
def test_a_reply_of_another_namespace_has_to_pass_the_door(
    mode: DefaultMode, rules: tuple[SenderRule, ...], own: bool, other: bool
) -> None:
    """What its trigger may receive it may not publish."""
    gate = EventGate(authority(*rules, mode=mode))
    for trigger, may in (("ns/t", own), ("away/t", other)):
        with contextlib.nullcontext() if may else pytest.raises(EventForbiddenError, match=trigger.split("/")[0]):
            asyncio.run(gate.admit(sender_of(trigger), BROKER, events(1), is_reply=True))
    asyncio.run(EventGate(authority()).admit(sender_of("away/t"), BROKER, events(1)))  # its subscriber is the broker


def test_a_text_that_is_no_filter_admits_nothing() -> None:
    gate = EventGate(authority(SenderRule.of("p", ("ann",), "ce.type ==")))
    with pytest.raises(EventForbiddenError):
        asyncio.run(gate.admit(ANN, BROKER, events(1)))


@pytest.fixture
def as_ann() -> Iterator[None]:
    token = current_user.set(ANN)
    yield
    current_user.reset(token)


@pytest.mark.parametrize("producer", ["", "till-1"])
def test_a_stream_of_grpc_goes_on_after_a_refusal(tmp_path: Path, as_ann: None, producer: str) -> None:
    """Requests are judged and stored in their order, and each forbidden one is answered as such."""

    async def work() -> None:
        log = Log(tmp_path)
        # A look at the clock is a turn: every judgement gives way to the others.
        clock_s = ticking(limits.EVENT_POLICY_TURN_S)
        gate = EventGate(authority(SenderRule.of("p", ("ann",), 'ce.type != "sent"')), clock_s=clock_s)
        rpc = PublishRpc(Intake(log.partitions, log.brokers.get, gate=gate), log.producers)
        try:
            async with served(rpc.service()) as client:
                stream, _ = await opened(client, producer)
                for number in range(20):
                    kinds = ("t", "sent") if number % 5 == 4 else ("t", "t")
                    made = [to_message(Event("1.0", f"{number}-{n}", "/s", kind)) for n, kind in enumerate(kinds)]
                    await stream.write(PublishRequest(sequence=2 * number, events=made))
                answers = [said(message) for message in await stream.rest()]
                codes = ["event-forbidden" if number % 5 == 4 else 0 for number in range(20)]
                assert answers == [(2 * n, 2 * n + 1, code) for n, code in enumerate(codes)]
        finally:
            await log.close()
        assert log.ids() == [[f"{number}-{n}" for number in range(20) if number % 5 != 4 for n in range(2)]]

    asyncio.run(asyncio.wait_for(work(), 60))
