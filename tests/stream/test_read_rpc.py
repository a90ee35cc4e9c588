"""Is the log read over gRPC as over HTTP, by no more events than the client has credits for?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest

from headgate.expr import property
from headgate.log.directory import LogDirectory
from headgate.scan.chunks import ChunkLog
from headgate.stream.follow import Readers
from headgate.stream.read_rpc import ReadRpc
from headgate_api import limits
from headgate_api.rpc.events import from_messages
from headgate_api.rpc.headgate_pb2 import Filter, ReadRequest, ReadResponse
from headgate_api.rpc.pulsar_pb2 import Expr
from tests.calls import Client, Refused, Stream, served
from tests.stream.test_api import BROKER, EVENTS, SERVED, Log, event


@contextlib.asynccontextmanager
async def reading(directory: Path, *, full: bool = True) -> AsyncIterator[tuple[Log, Client]]:
    log = Log(directory)
    log.store(*range(EVENTS if full else 0))
    readers = Readers(ChunkLog(LogDirectory(directory, "stop")), {BROKER: SERVED}.get)
    try:
        async with served(ReadRpc(readers).service()) as client:
            yield log, client
            assert not readers._places or full
    finally:
        await readers.close()
        log.close()


async def opened(client: Client, *, credits: int = 100, **wishes: Any) -> Stream:
    stream = client.call("Reader/Read", ReadResponse)
    wishes = {"from": "earliest"} | wishes
    await stream.write(ReadRequest(open=ReadRequest.Open(broker=BROKER, **wishes), credits=credits))
    return stream


def ids(responses: Iterable[ReadResponse]) -> list[str]:
    return [read.event.id for response in responses for read in response.events]


async def until(stream: Stream, count: int) -> list[ReadResponse]:
    """Responses until so many events have come."""
    found: list[ReadResponse] = []
    while len(ids(found)) < count:
        found.append(await stream.read())
    return found


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def names(*numbers: int) -> list[str]:
    return sorted(f"e{number}" for number in numbers)


def test_everything_with_its_place_and_where_the_reader_is(tmp_path: Path) -> None:
    async def work() -> None:
        async with reading(tmp_path) as (_, client):
            stream = await opened(client)
            first = await stream.read()
            assert (len(first.events), first.progress.position, first.progress.at_end) == (0, "0:0,1:0", False)
            found = await stream.rest()
            assert sorted(ids(found)) == names(*range(EVENTS))
            for response in found:
                for read in response.events:
                    number = int(read.event.id[1:])
                    assert (read.partition, read.offset) == (number % 2, number // 2)
                    assert from_messages([read.event])[0].data == event(number).data
            last = found[-1].progress
            assert (last.position, last.at_end, last.events_matched, last.chunks_read) == ("0:6,1:6", True, 12, 12)

    run(work())


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({"from": "1970-01-01T00:00:06Z"}, range(5, 12)),
        ({"from": "0:5,1:6"}, [10]),
        ({"from": "latest"}, [10, 11]),
        ({"from": "next"}, []),
        ({"first": "data.n == 7"}, range(7, 12)),
        ({"filter_values": ["type1"]}, [1, 5, 9]),
        ({"filter_values": ["none"], "match_unfiltered": True}, []),
        ({"first_expression": Expr.FromString(property("type").starts_with("type3").protobuf())}, range(3, 12)),
        ({"filter": Filter(expression=Expr.FromString((property("type") == "type2").protobuf()))}, [2, 6, 10]),
        ({"filter": Filter(cel='publish_time >= timestamp("1970-01-01T00:00:06Z")')}, range(5, 12)),
        ({"first": '{"cel": "publish_time > timestamp(6)"}'}, range(6, 12)),
        ({"filter": Filter(cel="data.n > 8")}, [9, 10, 11]),
        ({"filter": Filter(filter='{"attributes": {"type": "type2"}}')}, [2, 6, 10]),
        ({"filter": Filter(filters='[{"exact": {"type": "type2"}}, {"cel": "data.n > 2"}]')}, [6, 10]),
    ],
)
def test_wishes_are_those_of_http(tmp_path: Path, wishes: dict[str, Any], expected: Iterable[int]) -> None:
    async def work() -> None:
        async with reading(tmp_path) as (_, client):
            found = await (await opened(client, **wishes)).rest()
            assert sorted(ids(found)) == names(*expected)
            assert found[-1].progress.at_end
            assert found[-1].progress.position == "0:6,1:6"

    run(work())


def test_no_more_than_there_are_credits_and_on_from_where_it_stopped(tmp_path: Path) -> None:
    async def work() -> None:
        async with reading(tmp_path) as (_, client):
            stream = await opened(client, credits=0, follow=True)
            assert not (await stream.read()).events
            found: list[ReadResponse] = []
            for count in (1, 4, 2):
                await stream.write(ReadRequest(credits=count))
                some = await until(stream, count)
                assert len(ids(some)) == count
                found += some
            stream.cancel()
            rest = await opened(client, **{"from": found[-1].progress.position})
            assert sorted(ids(found + await rest.rest())) == names(*range(EVENTS)), "each once"
            last = await (await opened(client, credits=5, follow=True)).rest()
            assert len(ids(last)) == 5, "without a hope for credits the stream ends"

    run(work())


def test_a_reader_that_follows_hears_of_new_events_and_where_it_is_meanwhile(tmp_path: Path) -> None:
    async def work() -> None:
        async with reading(tmp_path) as (log, client):
            stream = await opened(client, follow=True, filter=Filter(cel="data.n == 13"))
            while not (response := await stream.read()).progress.at_end:
                assert not response.events
            assert response.progress.position == "0:6,1:6"
            assert response.progress.events_matched == 0
            log.store(12, 13)
            [found] = [one for one in await until(stream, 1) if one.events]
            assert ids([found]) == ["e13"]
            stream.cancel()

    run(work())


def test_large_events_come_in_several_messages_each_with_its_position(tmp_path: Path) -> None:
    async def work() -> None:
        async with reading(tmp_path) as (_, client):
            stream = await opened(client)
            found = await stream.rest()
            assert len(found) > EVENTS // 2
            at = {0: 0, 1: 0}
            for response in found:
                for read in response.events:
                    at[read.partition] = read.offset + 1
                assert response.progress.position == ",".join(f"{p}:{o}" for p, o in at.items())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headgate.stream.read_rpc.RPC_RESPONSE_BYTES", 1)
        run(work())


@pytest.mark.parametrize(
    ("messages", "status", "code"),
    [
        ([ReadRequest(credits=1)], grpc.StatusCode.INVALID_ARGUMENT, "protocol"),
        ([ReadRequest(open=ReadRequest.Open(broker="ns/none"))], grpc.StatusCode.NOT_FOUND, "unknown-broker"),
        (
            [ReadRequest(open=ReadRequest.Open(broker=BROKER, **{"from": "there"}))],
            grpc.StatusCode.INVALID_ARGUMENT,
            "position",
        ),
        (
            [ReadRequest(open=ReadRequest.Open(broker=BROKER, filter=Filter(cel="data.n ==")))],
            grpc.StatusCode.INVALID_ARGUMENT,
            "filter",
        ),
        (
            [ReadRequest(open=ReadRequest.Open(broker=BROKER, filter=Filter(cel="true", filter="{}")))],
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid",
        ),
        (
            [ReadRequest(open=ReadRequest.Open(broker=BROKER, follow=True))] * 2,
            grpc.StatusCode.INVALID_ARGUMENT,
            "protocol",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, messages: list[Any], status: grpc.StatusCode, code: str) -> None:
    async def work() -> None:
        async with reading(tmp_path) as (_, client):
            stream = client.call("Reader/Read", ReadResponse)
            for message in messages:
                await stream.write(message)
            with pytest.raises(Refused) as refused:
                await stream.rest()
            assert refused.value.status is status
            assert refused.value.code is not None
            assert code in refused.value.code

    run(work())


def test_there_is_a_bound_on_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.stream.follow.READERS_MAX", 1)
    assert limits.READERS_MAX > 1

    async def work() -> None:
        async with reading(tmp_path) as (_, client):
            stream = await opened(client, follow=True)
            await stream.read()
            with pytest.raises(Refused) as refused:
                await (await opened(client)).rest()
            assert (refused.value.status, refused.value.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "readers")
            stream.cancel()

    run(work())
