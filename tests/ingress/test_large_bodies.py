"""Large bodies: decoded beside the event loop, one after the other, and bounded together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from headgate.event.hops import Lineage
from headgate.ingress import intake
from headgate.ingress import publish_http as ingress_app
from headgate.ingress.partitions import Partitions
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate_api.event.http import BATCH_JSON, STRUCTURED_JSON, decode_request
from headgate_api.event.model import Event
from headgate_api.limits import BATCH_EVENTS_MAX, DECODE_BYTES_INLINE, DECODE_CONTAINERS_INLINE, PUBLISH_EVENTS_MAX
from tests.ingress.support import Answer, FakeLog, call, ingress, run

SMALL = b'{"specversion":"1.0","id":"small","source":"/s","type":"t","data":1}'
LARGE = [
    SMALL[:-2] + b'"%b"}' % (b"x" * DECODE_BYTES_INLINE),
    SMALL[:-2] + b"[%b]}" % b",".join([b"[]"] * DECODE_CONTAINERS_INLINE),
]


class Held:
    """Decodes small bodies at once, and large ones when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.first = threading.Event()
        self.bodies: list[bytes] = []
        monkeypatch.setattr(ingress_app, "decode_request", self)

    def __call__(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> Sequence[Event]:
        if body != SMALL:
            assert threading.current_thread() is not threading.main_thread()
            self.bodies.append(body)
            self.first.set()
            assert self.go.wait(30)
        return decode_request(headers, body)


async def post(
    app: ingress_app.Ingress, body: bytes, content_type: str = STRUCTURED_JSON, path: str = "/ns/b"
) -> Answer:
    answer, _ = await call(app, path=path, headers=[("content-type", content_type)], pieces=(body,))
    return answer


@pytest.mark.parametrize("large", LARGE)
def test_nobody_waits_while_a_large_body_is_decoded(large: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    held, log = Held(monkeypatch), FakeLog()
    app = ingress(log)

    async def work() -> None:
        waiting = [asyncio.create_task(post(app, large)) for _ in range(2)]
        try:
            assert (await post(app, SMALL)).status == 202
            assert (len(log.events), len(held.bodies) <= 1) == (1, True), "one at a time"
        finally:
            held.go.set()
        assert [(await one).status for one in waiting] == [202, 202]
        assert len(log.events) == 3
        wrong = await post(app, large[:-1])
        assert (wrong.status, wrong.problem["code"]) == (400, "invalid-event")

    run(work())


def test_bodies_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    large = LARGE[0]
    monkeypatch.setattr(intake, "DECODE_WAITING_BYTES_MAX", 2 * len(large))
    app = ingress(FakeLog())

    async def work() -> None:
        waiting = [asyncio.create_task(post(app, large)) for _ in range(2)]
        try:
            await asyncio.sleep(0)
            refused = await post(app, large)
            assert (refused.status, "retry-after" in refused.headers) == (429, True)
            assert (await post(app, SMALL)).status == 202
        finally:
            held.go.set()
        assert [(await one).status for one in waiting] == [202, 202]
        assert (await post(app, b"[%b]" % large, BATCH_JSON)).status == 202, "room is given back"

    run(work())


def test_turns_and_room_go_round_by_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    held, (loud, quiet) = Held(monkeypatch), LARGE
    monkeypatch.setattr(intake, "DECODE_WAITING_BYTES_MAX", 8 * len(loud))
    app = ingress(FakeLog(), brokers=("loud/b", "quiet/b"))

    async def work() -> None:
        loud_ones = [asyncio.create_task(post(app, loud, path="/loud/b")) for _ in range(8)]
        try:
            assert await asyncio.to_thread(held.first.wait, 30)
            quiet_one = asyncio.create_task(post(app, quiet, path="/quiet/b"))
            await asyncio.sleep(0)
        finally:
            held.go.set()
        answers = [await one for one in loud_ones]
        assert (await quiet_one).status == 202
        statuses = [answer.status for answer in answers]
        assert statuses == sorted(statuses)
        assert statuses.count(202) == 6, "three quarters of the room"
        assert {answer.problem["code"] for answer in answers if answer.status == 429} == {"undecoded"}
        assert held.bodies.index(quiet) <= 2, "behind the one that was being decoded, and one turn"

    run(work())


@pytest.mark.parametrize(("count", "turns"), [(PUBLISH_EVENTS_MAX, 0), (BATCH_EVENTS_MAX, 8)])
def test_the_loop_has_turns_while_a_large_batch_gets_its_lineage_and_trace(count: int, turns: int) -> None:
    """Requests of a stream, which keep their order, are enqueued before anything is awaited."""
    log = FakeLog()
    served = ServedBroker("ns/b/uid", DEFAULT_RULE)
    intake_ = intake.Intake(Partitions([log]), {"ns/b": served}.get)
    events = [Event("1.0", str(number), "/s", "t") for number in range(count)]
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

    async def work() -> int:
        storing = asyncio.create_task(intake_.store(served, events, 1, started_s=0.0, lineage=Lineage(1), trace=trace))
        await asyncio.sleep(0)
        had = 0
        while not log.events:
            had += 1
            await asyncio.sleep(0)
        await storing
        return had

    had = asyncio.run(work())
    assert had == 0 if not turns else had >= 2 * turns
    assert len(log.events) == count
    assert {event.extensions["traceparent"] for event in log.events} == set(trace.values())
