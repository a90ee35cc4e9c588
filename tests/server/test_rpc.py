"""Does the front serve gRPC where it is told to, and does what another process answers come through unchanged?"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from pydantic import ValidationError

from headgate import limits
from headgate.errors import ConflictError, UnavailableError
from headgate.rpc import headgate_pb2 as pb
from headgate.rpc.service import Service
from headgate.server import rpc
from headgate.settings import Settings
from headgate.testing import free_port
from tests.calls import Client, Refused, Stream, client

Work = Callable[[Settings], Awaitable[None]]


def run(work: Work, **settings: Any) -> None:
    async def in_folder() -> None:
        # Paths of Unix sockets are short.
        with tempfile.TemporaryDirectory() as folder:
            given = {"data": Path(folder), "grpc": f"127.0.0.1:{free_port()}"} | settings
            found = Settings(**given)
            found.run_directory.mkdir()
            await asyncio.wait_for(work(found), 60)

    asyncio.run(in_folder())


async def echo(call: Any) -> None:
    """Answers each request to read with its credits; breaks off at 13."""
    while (request := await call.read()) is not None:
        if request.credits == 13:
            raise ConflictError("thirteen is bad luck, größe", hint="take\nanother: 日本")
        await call.write(pb.ReadResponse(progress=pb.Progress(events_matched=request.credits)))


READER = Service("headgate.v1.Reader", {"Read": (pb.ReadRequest, echo)})
NOBODY = Service("headgate.v1.Publisher", {})


def test_messages_and_errors_pass_through_the_front_both_ways() -> None:
    async def work(settings: Settings) -> None:
        async with (
            rpc.serving([READER], f"unix:{settings.reader_rpc}"),
            rpc.front(settings, NOBODY),
            client(settings.grpc) as found,
        ):
            assert settings.reader_rpc.stat().st_mode & 0o777 == 0o600
            stream = found.call("Reader/Read", pb.ReadResponse)
            for number in (1, 2, 3):
                await stream.write(pb.ReadRequest(credits=number))
                assert (await stream.read()).progress.events_matched == number
            assert await stream.rest() == []
            stream = found.call("Reader/Read", pb.ReadResponse)
            await stream.write(pb.ReadRequest(credits=13))
            with pytest.raises(Refused) as refused:
                await stream.read()
            assert (refused.value.status, refused.value.code) == (grpc.StatusCode.ABORTED, "conflict")
            assert refused.value.details == "thirteen is bad luck, größe"
            assert refused.value.hint == "take another: \\u65e5\\u672c"

    run(work)


def test_a_client_that_leaves_ends_the_call_in_the_other_process() -> None:
    async def work(settings: Settings) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def waiting(call: Any) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        service = Service("headgate.v1.Reader", {"Read": (pb.ReadRequest, waiting)})
        async with (
            rpc.serving([service], f"unix:{settings.reader_rpc}"),
            rpc.front(settings, NOBODY),
            client(settings.grpc) as found,
        ):
            stream = found.call("Reader/Read", pb.ReadResponse)
            await stream.write(pb.ReadRequest())
            await begun.wait()
            stream.cancel()
            await ended.wait()

    run(work)


def test_a_process_that_is_not_there_is_said_to_be_and_found_when_it_comes_back() -> None:
    async def work(settings: Settings) -> None:
        async with rpc.front(settings, NOBODY), client(settings.grpc) as found:
            with pytest.raises(Refused) as refused:
                await found.call("Reader/Read", pb.ReadResponse).rest()
            assert (refused.value.status, refused.value.code) == (grpc.StatusCode.UNAVAILABLE, "part-unavailable")
            assert "run/" not in refused.value.details
            async with rpc.serving([READER], f"unix:{settings.reader_rpc}"):
                while True:
                    try:
                        assert await found.call("Reader/Read", pb.ReadResponse).rest() == []
                        break
                    except Refused:
                        await asyncio.sleep(0.05)

    run(work)


def test_a_port_that_somebody_has_is_not_shared() -> None:
    async def work(settings: Settings) -> None:
        async with rpc.front(settings, NOBODY):
            with pytest.raises(UnavailableError, match="cannot listen"):
                async with rpc.front(settings, NOBODY):
                    pass

    run(work)


def test_off_listens_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "serving", None)  # whoever calls it fails

    async def work(settings: Settings) -> None:
        async with rpc.front(settings, NOBODY):
            pass

    run(work, grpc="off")


@pytest.mark.parametrize("value", ["8081", "localhost:", "127.0.0.1:70000", "on", ""])
def test_an_address_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(ValidationError):
        Settings(grpc=value)


def test_a_failure_of_ours_is_told_without_its_insides() -> None:
    async def broken(call: Any) -> None:
        raise ValueError("the password is hunter2")

    async def work(settings: Settings) -> None:
        service = Service("headgate.v1.Reader", {"Read": (pb.ReadRequest, broken)})
        async with rpc.serving([service], settings.grpc), client(settings.grpc) as found:
            with pytest.raises(Refused) as refused:
                await found.call("Reader/Read", pb.ReadResponse).rest()
            assert refused.value.status is grpc.StatusCode.INTERNAL
            assert "hunter2" not in str(refused.value)

    run(work)


def test_a_message_that_is_too_large_is_refused() -> None:
    async def work(settings: Settings) -> None:
        async with rpc.serving([READER], settings.grpc), client(settings.grpc) as found:
            stream = found.call("Reader/Read", pb.ReadResponse)
            await stream.write(b"\x00" * (5 << 20))
            with pytest.raises(Refused) as refused:
                await stream.rest()
            assert refused.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(work)


async def hold(call: Any) -> None:
    """Says that the call has begun, and never ends it."""
    await call.write(pb.ReadResponse())
    await asyncio.Event().wait()


HOLDING = Service("headgate.v1.Reader", {"Read": (pb.ReadRequest, hold)})


async def held(found: Client, count: int) -> list[Stream]:
    streams = [found.call("Reader/Read", pb.ReadResponse) for _ in range(count)]
    for stream in streams:
        assert await stream.read() is not None
    return streams


def test_clients_together_have_more_calls_than_one_connection_may() -> None:
    async def work(settings: Settings) -> None:
        async with (
            rpc.serving([HOLDING], f"unix:{settings.reader_rpc}"),
            rpc.front(settings, NOBODY),
            client(settings.grpc) as first,
            client(settings.grpc) as second,
        ):
            # Kept until the end: a call that nobody holds is cancelled.
            streams = await held(first, limits.RPC_STREAMS_A_CONNECTION_MAX)
            streams += await held(second, 10)

    run(work)


@pytest.mark.parametrize("full", ["front", "reader"])
def test_one_call_more_than_there_may_be_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    monkeypatch.setattr(limits, "RPCS_MAX", 3)

    async def work(settings: Settings) -> None:
        address = f"unix:{settings.reader_rpc}"
        async with (
            rpc.serving([HOLDING], address),
            rpc.front(settings, NOBODY),
            client(settings.grpc) as found,
            client(address) as beside,
        ):
            streams = await held(found if full == "front" else beside, 3)
            with pytest.raises(Refused) as refused:
                await found.call("Reader/Read", pb.ReadResponse).read()
            assert refused.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
            streams.pop().cancel()
            while True:  # the place is free again
                try:
                    await held(found, 1)
                    break
                except Refused:
                    await asyncio.sleep(0.01)

    run(work)


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "_OPEN_TO_CLIENTS", (("grpc.max_allowed_incoming_connections", 2),))

    async def work(settings: Settings) -> None:
        async with rpc.serving([READER], settings.grpc):
            ports = [await asyncio.open_connection(*settings.grpc.split(":")) for _ in range(4)]
            closed = 0
            for source, _ in ports:
                try:
                    # A connection that is let in is greeted with HTTP/2 settings.
                    closed += await source.read(9) == b""
                except ConnectionResetError:
                    closed += 1
            assert closed == 2
            for _, sink in ports:
                sink.close()

    run(work)
