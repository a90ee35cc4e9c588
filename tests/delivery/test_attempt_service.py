"""One attempt is one for all who make it: what it sends, hears, writes down and decides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from headgate.delivery.attempt_service import Answered, AttemptService, OutgoingMessage, Recipient
from headgate.delivery.circuit import Subscriber
from headgate.delivery.events import binary
from headgate.delivery.journal import Origin
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Answer, Fate, Outcome
from headgate.event.trace import Context
from headgate_api import limits
from tests.delivery.harness import attempt_service, event, run, spec, target

CONTEXT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


class Net:
    """Answers what it is told to; stores replies."""

    def __init__(self, *outcomes: Outcome, stored: Outcome | None = None) -> None:
        self.outcomes = [*outcomes]
        self.stored = stored or Outcome(200)
        self.sent: list[dict[str, str]] = []
        self.answered: list[tuple[Answered, Context]] = []

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float) -> Outcome:
        self.sent.append({"url": url, **dict(headers)})
        await asyncio.sleep(0)
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    async def store(self, to: Answered, answer: Answer, trace: Context) -> Outcome:
        self.answered.append((to, trace))
        return self.stored


class Spans:
    """Stands in for `Tracing`."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, dict[str, Any], str]] = []

    def start(self, name: str, parent: Context, attributes: dict[str, Any], *, at_us: int | None = None) -> Any:
        spans, given = self, dict(attributes)

        class Span:
            context = CONTEXT

            def end(self, more: dict[str, Any] | None = None, *, error: str = "", at_us: int | None = None) -> None:
                spans.ended.append((name, given | (more or {}), error))

        return Span()


def message() -> OutgoingMessage:
    one = event(1)
    return OutgoingMessage(*binary(one, "root"), one, one, "root")


def delivery(failures: int = 0) -> Delivery:
    one = Delivery(7, 0, 3, 3)
    one.failures = failures
    return one


@pytest.mark.parametrize("origin", Origin)
def test_every_attempt_makes_a_span_and_only_the_first_of_a_delivery_one_for_its_match(origin: Origin):
    async def work() -> None:
        net, spans = Net(Outcome(503)), Spans()
        service = attempt_service(net, net, tracing=cast(Any, spans))
        to = Recipient(url="http://x/", rules=spec(), target=1, name="default/t1", origin=origin)
        for failures in range(2):
            await service.send(to, delivery(failures), message())
        assert [name for name, _, _ in spans.ended] == ["match"] * (origin is Origin.DELIVERY) + ["deliver"] * 2
        attempts = [(found["headgate.attempt"], found.get("headgate.origin")) for name, found, _ in spans.ended[-2:]]
        told = None if origin is Origin.DELIVERY else origin.value
        assert attempts == [(1, told), (2, told)]
        assert all(error == "503" and found["http.response.status_code"] == 503 for _, found, error in spans.ended[-2:])
        assert [sent["traceparent"] for sent in net.sent] == [CONTEXT["traceparent"]] * 2

    run(work())


def test_a_reply_is_stored_where_replies_are_taken_and_decides_the_attempt():
    async def work() -> None:
        reply = Outcome(200, reply=Answer([], b""))
        net = Net(reply, stored=Outcome(200, "reply-refused"))
        service, heard = attempt_service(net, net), []
        with_replies = Recipient(url="http://x/", rules=spec(), replies_to="default/default")
        outcome = await service.send(with_replies, delivery(), message(), heard.append)
        assert (outcome.label, heard, len(net.answered)) == ("reply-refused", [reply], 1)
        assert net.answered[0][0].root == "root"
        assert await service.send(Recipient(url="http://x/", rules=spec()), delivery(), message()) is reply
        assert len(net.answered) == 1

    run(work())


@pytest.mark.parametrize(
    ("outcome", "failures", "fate"),
    [
        (Outcome(202), 0, Fate.DELIVERED),
        (Outcome(503), 0, Fate.AGAIN),
        (Outcome(0, "timeout", "no connection within 5 s"), 2, Fate.AGAIN),
        (Outcome(503), 3, Fate.FAILED),
        (Outcome(400), 0, Fate.FAILED),
    ],
    ids=str,
)
def test_what_follows_is_decided_counted_and_written_down(outcome: Outcome, failures: int, fate: Fate):
    async def work() -> None:
        written: list[tuple[object, ...]] = []
        service = attempt_service(Net(outcome))
        service.journal.attempt = lambda *entry: written.append(entry)  # type: ignore[method-assign]
        one = delivery(failures)
        to = Recipient(url="http://x/", rules=spec(retry=3), target=9, origin=Origin.REPLAY)
        decision = service.settle(to, one, outcome, 1.0)
        assert decision.fate is fate
        assert (decision.pause_s > 0) is (fate is Fate.AGAIN)
        assert one.failures == failures + (fate is not Fate.DELIVERED)
        reason = "" if fate is Fate.DELIVERED else outcome.label
        assert written == [(0, 3, 9, failures + 1, outcome.status, reason, Origin.REPLAY, outcome.detail)]

    run(work())


def trigger(service: AttemptService, **rules: Any) -> tuple[Subscriber, Recipient]:
    subscriber = service.subscribers.of(target(1, "http://x/", **rules))
    return subscriber, Recipient.subscriber_of(subscriber, Origin.REPLAY)


def test_all_who_send_to_a_trigger_share_its_rate():
    async def work() -> None:
        service = attempt_service(Net(Outcome(202)))
        subscriber, to = trigger(service, rate_per_s=50.0)
        for _ in range(10):
            subscriber.begin(service.clocks.now())  # as a delivery does
            subscriber.end()
        began = service.clocks.now()
        await asyncio.gather(*(service.send_in_turn(to, delivery(), message()) for _ in range(10)))
        assert service.clocks.now() - began >= (20 - 6) / 50.0, "a tenth of a second's worth may go at once"
        assert subscriber.in_flight == 0

    run(work())


def test_an_open_circuit_lets_one_attempt_at_a_time_through_and_closes_by_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "CIRCUIT_FAILURES_MAX", 3)
    monkeypatch.setattr(limits, "CIRCUIT_PAUSE_S_MIN", 0.1)
    monkeypatch.setattr("headgate.delivery.attempt_service.TURN_S", 0.01)

    async def work() -> None:
        net = Net(*[Outcome(0, "connection")] * 4, Outcome(202))
        service = attempt_service(net)
        subscriber, to = trigger(service)
        for _ in range(3):
            await service.send_in_turn(to, delivery(), message())
        assert subscriber.circuit.opened
        began = service.clocks.now()
        waiting = asyncio.gather(*(service.send_in_turn(to, delivery(), message()) for _ in range(5)))
        await asyncio.sleep(0.02)
        assert len(net.sent) == 3, "it pauses"
        await waiting
        assert not subscriber.circuit.opened
        assert service.clocks.now() - began >= 0.1 + 0.2, "the fourth failure doubles the pause"

    run(work())


def test_a_subscriber_is_forgotten_when_nobody_sends_to_it():
    async def work() -> None:
        service = attempt_service(Net(Outcome(202)))
        subscriber, _ = trigger(service)
        subscriber.circuit.failures = 5
        assert service.subscribers.of(target(1, "http://y/")) is subscriber
        assert subscriber.target.subscriber_uri == "http://y/"
        del subscriber, _
        assert service.subscribers.of(target(1, "http://x/")).circuit.failures == 0

    run(work())
