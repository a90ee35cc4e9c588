"""Is a subscription consumed over gRPC as over HTTP? Streams of consumers on a real dispatcher and real files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headgate.expr import property, publish_time
from headgate.subscriptions.rpc import SubscriptionsRpc
from headgate_api import limits
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc import pulsar_pb2 as wire
from headgate_api.rpc.events import from_messages
from tests.calls import Client, Refused, Stream, served
from tests.delivery.harness import EPOCH, EventLog, Routes, Running, event, matcher, run, running
from tests.subscriptions.test_http import subscription
from tests.support import until

EVENTS = 20
Request = pb.SubscribeRequest


@contextlib.asynccontextmanager
async def serving(data: Path, routes: Routes) -> AsyncIterator[tuple[Running, Client]]:
    async with (
        running(data, routes) as work,
        served(SubscriptionsRpc(work.dispatcher.subscriptions).service()) as client,
    ):
        yield work, client


@contextlib.asynccontextmanager
async def matched(data: Path, *types: str) -> AsyncIterator[tuple[Running, Client]]:
    """Subscriptions s1, s2, ... of these types, each with all events."""
    log = EventLog(data)
    routes = Routes(*(subscription(n, f"s{n}", type_) for n, type_ in enumerate(types, 1)))
    log.append([event(n, data=b'{"n":%d}' % n) for n in range(EVENTS)])
    async with serving(data, routes) as (work, client):
        async with matcher(work) as peer:
            peer.match(*[(n, t) for n in range(EVENTS) for t in range(1, len(types) + 1)])
            peer.passed(EVENTS)
            await until(lambda: work.dispatcher.scheduler.handed >= EVENTS * len(types))
            await until(lambda: not work.dispatcher._outbox.rows_pending)  # rows are handed on before they are written
        yield work, client
    log.close()


async def opened(client: Client, consumer: str = "a", name: str = "s1", credits: int = 0) -> tuple[Stream, Any]:
    stream = client.call("Subscriptions/Subscribe", pb.SubscribeResponse)
    name = f"default/{name}"
    await stream.write(Request(open=Request.Open(subscription=name, consumer=consumer), credits=credits))
    first = await stream.read()
    assert not first.events
    return stream, first


async def received(stream: Stream, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += (await stream.read()).events
    return found


async def settled(stream: Stream, number: int) -> tuple[int, list[str]]:
    """How many acknowledgements are on disk, and the stale ones, up to a request."""
    count, stale = 0, []
    while True:
        response = await stream.read()
        assert not response.events
        count += response.acknowledged
        stale += response.stale
        if response.settled >= number:
            return count, stale


def numbers(events: list[Any]) -> list[int]:
    return [int(event.id[1:]) for event in from_messages(one.event for one in events)]


async def ask(client: Client, method: str, request: Any, type_: Any) -> list[Any]:
    stream = client.call(f"Subscriptions/{method}", type_)
    await stream.write(request)
    return await stream.rest()


async def stats(client: Client) -> Any:
    [found] = await ask(client, "Stats", pb.StatsRequest(subscription="default/s1"), pb.StatsResponse)
    return found


def test_credits_in_events_out_and_acknowledgements_are_on_disk_when_they_are_settled(tmp_path: Path) -> None:
    async def work() -> None:
        async with matched(tmp_path, "shared") as (_, client):
            stream, first = await opened(client)
            assert (first.active, first.epoch, first.settled) == (True, EPOCH, 0)
            await stream.write(Request(credits=3))
            found = await received(stream, 3)
            await stream.write(Request(credits=4))
            found += await received(stream, 4)
            assert numbers(found) == list(range(7))
            assert [(one.deliveries, one.partition, one.offset) for one in found[:2]] == [(1, 0, 0), (1, 0, 1)]
            ids = [one.ack_id for one in found]
            await stream.write(Request(ack=ids[:2], number=1))
            await stream.write(Request(ack=[ids[0], ids[3]], number=2))
            await stream.write(Request(ack_up_to=ids[4], number=3))
            assert await settled(stream, 3) == (5, [ids[0]])
            now = await stats(client)
            assert (now.acknowledged, now.unacknowledged, now.backlog) == (5, 2, 15)
            await stream.write(Request(nack=Request.Nack(ids=[ids[6]]), number=4))
            assert await settled(stream, 4) == (0, [])
            await stream.write(Request(credits=1))
            [again] = await received(stream, 1)
            assert (numbers([again]), again.deliveries) == ([6], 2)
            assert await stream.rest() is not None
            assert (await stats(client)).backlog == 15

    run(work(), 60)


def test_a_stream_that_ends_gives_back_what_it_had_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with matched(tmp_path, "shared") as (_, client):
            for end in ("close", "cancel"):
                stream, _ = await opened(client, "a", credits=5)
                assert len(await received(stream, 5)) == 5
                if end == "close":
                    await stream.rest()
                else:
                    stream.cancel()
                other, _ = await opened(client, "b", credits=EVENTS)
                assert sorted(numbers(await received(other, EVENTS))) == list(range(EVENTS))
                await other.rest()

    run(work(), 25)  # below the ack timeout


def test_competing_streams_each_get_their_share(tmp_path: Path) -> None:
    async def work() -> None:
        async with matched(tmp_path, "shared") as (_, client):
            streams = [(await opened(client, "", credits=EVENTS // 4))[0] for _ in range(4)]
            found = [numbers(await received(stream, EVENTS // 4)) for stream in streams]
            assert sorted(number for share in found for number in share) == list(range(EVENTS))

    run(work(), 60)


def test_a_failover_consumer_hears_when_it_is_its_turn_an_exclusive_one_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with matched(tmp_path, "failover", "exclusive") as (_, client):
            first, opening = await opened(client, "a", credits=2)
            assert opening.active
            await received(first, 2)
            second, waiting = await opened(client, "b", credits=EVENTS)
            assert not waiting.active
            await first.rest()
            response = await second.read()
            assert response.active
            assert numbers(list(response.events)) == list(range(len(response.events)))
            held, _ = await opened(client, "a", "s2")
            with pytest.raises(Refused) as refused:
                await opened(client, "b", "s2")
            assert (refused.value.status, refused.value.code) == (grpc.StatusCode.ABORTED, "consumer-busy")
            await held.rest()
            await opened(client, "b", "s2")

    run(work(), 60)


def test_a_consumer_that_connects_again_takes_the_place_of_its_first_stream(tmp_path: Path) -> None:
    async def work() -> None:
        async with matched(tmp_path, "exclusive") as (_, client):
            old, _ = await opened(client, "a", credits=5)
            await received(old, 5)
            new, _ = await opened(client, "a", credits=3)
            found = await received(new, 3)
            assert numbers(found) == [0, 1, 2]
            assert {one.deliveries for one in found} == {2}
            with pytest.raises(Refused) as refused:
                await old.rest()
            assert refused.value.code == "consumer-replaced"
            await new.write(Request(ack=[one.ack_id for one in found], number=1))
            assert await settled(new, 1) == (3, [])

    run(work(), 60)


def test_a_seek_is_told_with_its_epoch_and_streams_go_on_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with matched(tmp_path, "shared") as (_, client):
            stream, _ = await opened(client, credits=4)
            before = await received(stream, 4)
            request = pb.SeekRequest(subscription="default/s1", to="0:7")
            *_, done = await ask(client, "Seek", request, pb.SeekResponse)
            assert (done.done, done.epoch, done.position) == (True, EPOCH + 1, "0:7")
            response = await stream.read()
            assert (response.epoch, len(response.events)) == (EPOCH + 1, 0), "told without credits"
            await stream.write(Request(ack=[before[0].ack_id], number=1))
            assert await settled(stream, 1) == (0, [before[0].ack_id])
            await stream.write(Request(credits=2))
            assert numbers(await received(stream, 2)) == [7, 8]
            request = pb.SeekRequest(subscription="default/s1", first="data.n == 3", after=True)
            *_, done = await ask(client, "Seek", request, pb.SeekResponse)
            await stream.write(Request(credits=2))
            assert numbers(await received(stream, 2)) == [4, 5]
            expression = wire.Expr.FromString(((property("id") == "e6") & (publish_time() > 0)).protobuf())
            request = pb.SeekRequest(subscription="default/s1", first_expression=expression)
            *_, done = await ask(client, "Seek", request, pb.SeekResponse)
            await stream.write(Request(credits=2))
            assert numbers(await received(stream, 2)) == [6, 7]
            expression = wire.Expr.FromString(property("id").in_("e1", "e2").protobuf())
            request = pb.SeekRequest(subscription="default/s1", last_expression=expression, after=True)
            *_, done = await ask(client, "Seek", request, pb.SeekResponse)
            await stream.write(Request(credits=2))
            assert numbers(await received(stream, 2)) == [3, 4]
            request = pb.SeekRequest(subscription="default/s1", first='{"jms": "id = \'e5\'"}')
            *_, done = await ask(client, "Seek", request, pb.SeekResponse)
            await stream.write(Request(credits=1))
            assert numbers(await received(stream, 1)) == [5]
            request = pb.SeekRequest(subscription="default/s1", first_expression=wire.Expr(tp=1))
            with pytest.raises(Refused, match=r"first\.pulsar\.op1: is missing") as refused:
                await ask(client, "Seek", request, pb.SeekResponse)
            assert refused.value.status is grpc.StatusCode.INVALID_ARGUMENT
            request = pb.SeekRequest(subscription="default/s1", last="data.n == 100")
            with pytest.raises(Refused) as refused:
                await ask(client, "Seek", request, pb.SeekResponse)
            assert refused.value.status is grpc.StatusCode.NOT_FOUND

    run(work(), 60)


def test_stats_and_analyze(tmp_path: Path) -> None:
    async def work() -> None:
        async with matched(tmp_path, "shared") as (_, client):
            now = await stats(client)
            assert (now.backlog, now.unacknowledged, now.epoch, now.consumer) == (EVENTS, 0, EPOCH, "")
            assert now.oldest_unacknowledged.endswith("Z")
            for asked, accepted in (
                (pb.Filter(cel="data.n < 5"), 5),
                (pb.Filter(expression=wire.Expr.FromString(property("id").in_("e1", "e2", "x").protobuf())), 2),
                (pb.Filter(filter='{"expression": "data.n < 6"}'), 6),
                (pb.Filter(filters='[{"cel": "data.n < 6"}, {"cel": "data.n > 2"}]'), 3),
                (pb.Filter(), EVENTS),
            ):
                request = pb.AnalyzeRequest(subscription="default/s1", filter=asked)
                [found] = await ask(client, "Analyze", request, pb.AnalyzeResponse)
                assert (found.events, found.accepted, found.complete) == (EVENTS, accepted, True)

    run(work(), 60)


@pytest.mark.parametrize(
    ("method", "messages", "status"),
    [
        ("Subscribe", [], grpc.StatusCode.INVALID_ARGUMENT),
        ("Subscribe", [Request(credits=1)], grpc.StatusCode.INVALID_ARGUMENT),
        ("Subscribe", [Request(open=Request.Open(subscription="default/no"))], grpc.StatusCode.NOT_FOUND),
        (
            "Subscribe",
            [Request(open=Request.Open(subscription="default/s1", consumer="x" * 129))],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        ("Subscribe", [Request(open=Request.Open(subscription="default/s1"))] * 2, grpc.StatusCode.INVALID_ARGUMENT),
        (
            "Subscribe",
            [Request(open=Request.Open(subscription="default/s1"), ack=["what"])],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            "Subscribe",
            [Request(open=Request.Open(subscription="default/s1"), nack=Request.Nack(ids=["1:0"], delay_s=-1))],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            "Subscribe",
            [
                Request(
                    open=Request.Open(subscription="default/s1"), ack=["1:0"] * (limits.SUBSCRIPTION_UNACKED_MAX + 1)
                )
            ],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        ("Seek", [pb.SeekRequest(subscription="default/no")], grpc.StatusCode.NOT_FOUND),
        ("Seek", [pb.SeekRequest(subscription="default/s1", to="there")], grpc.StatusCode.INVALID_ARGUMENT),
        ("Seek", [pb.SeekRequest(subscription="default/s1", first="data.n ==")], grpc.StatusCode.INVALID_ARGUMENT),
        ("Stats", [pb.StatsRequest(subscription="default/no")], grpc.StatusCode.NOT_FOUND),
        (
            "Analyze",
            [pb.AnalyzeRequest(subscription="default/s1", filter=pb.Filter(filter="{"))],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            "Analyze",
            [pb.AnalyzeRequest(subscription="default/s1", filter=pb.Filter(filter="{}", cel="true"))],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            "Analyze",
            [pb.AnalyzeRequest(subscription="default/s1", filter=pb.Filter(cel="true", expression=wire.Expr()))],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, method: str, messages: list[Any], status: grpc.StatusCode) -> None:
    async def work() -> None:
        async with serving(tmp_path, Routes(subscription(1, "s1"))) as (_, client):
            stream = client.call(f"Subscriptions/{method}", pb.SubscribeResponse)
            for message in messages:
                await stream.write(message)
            with pytest.raises(Refused) as refused:
                await stream.rest()
            assert refused.value.status is status
            assert refused.value.code

    run(work(), 60)
