"""Does the front serve gRPC where it is told to, and does what another process answers come through unchanged?"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc import aio
from pydantic import ValidationError

from headgate.auth.user import authenticated
from headgate.rpc import service
from headgate.rpc.service import Service, attended
from headgate.server import rpc
from headgate.server.authentication import Authentication
from headgate.server.peers.local_grpc import is_gone
from headgate.settings import Settings
from headgate.shares import FairPlaces
from headgate.testing.server import free_port
from headgate_api import limits
from headgate_api.errors import ConflictError, UnavailableError
from headgate_api.rpc import headgate_pb2 as pb
from tests.calls import Client, Refused, Stream, client
from tests.support import on_one_loop

Work = Callable[[Settings], Awaitable[None]]


def run(work: Work, **settings: Any) -> None:
    async def in_folder() -> None:
        # Paths of Unix sockets are short.
        with tempfile.TemporaryDirectory() as folder:
            given = {"data": Path(folder), "grpc": f"127.0.0.1:{free_port()}"} | settings
            found = Settings(**given)
            found.run_directory.mkdir()
            await asyncio.wait_for(work(found), 60)

    on_one_loop(in_folder())


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


def test_connections_without_a_call_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that opens connections and leaves them shuts nobody out for good."""
    options = dict(rpc._OPEN_TO_CLIENTS)
    assert options["grpc.max_connection_idle_ms"] == limits.RPC_IDLE_S_MAX * 1_000
    options |= {"grpc.max_connection_idle_ms": 200, "grpc.max_allowed_incoming_connections": 2}
    monkeypatch.setattr(rpc, "_OPEN_TO_CLIENTS", tuple(options.items()))

    async def work(settings: Settings) -> None:
        async with rpc.serving([HOLDING], settings.grpc):
            idle = [await asyncio.open_connection(*settings.grpc.split(":")) for _ in range(2)]
            for source, sink in idle:
                sink.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
                await source.read()  # until the server closes it
            async with client(settings.grpc) as found:
                await held(found, 1)
            for _, sink in idle:
                sink.close()

    run(work)


def test_who_opens_many_calls_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.server.authentication.RPCS_MAX", 8)

    class Named:
        name = "eve"

        async def authenticate(self, _: object) -> Any:
            return authenticated(self.name)

    async def work(settings: Settings) -> None:
        named = Named()
        users = Authentication(cast(Any, named))
        async with (
            rpc.serving([HOLDING], f"unix:{settings.reader_rpc}"),
            rpc.front(settings, NOBODY, authentication=users),
            client(settings.grpc) as found,
        ):
            streams = await held(found, 6)
            with pytest.raises(Refused, match=r"'eve'.*8 places for calls") as refused:
                await held(found, 1)
            assert (refused.value.status, refused.value.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "calls")
            named.name = "ann"
            streams += await held(found, 1)

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


async def _reads(call: Any) -> None:
    while await call.read() is not None:
        pass


async def _fails(call: Any) -> None:
    kept = await call.read()
    raise ZeroDivisionError(str(kept)[:1])


async def _refuses(call: Any) -> None:
    """As a stream that publishes does: the error is that of a task, and comes by way of others."""
    first = await call.read()

    async def answer() -> None:
        raise ConflictError(f"no to {len(first.open.broker)} characters")

    working = asyncio.create_task(answer())

    async def acknowledge() -> None:
        await asyncio.wait([working])
        working.result()

    await attended(acknowledge(), asyncio.sleep(60))


@pytest.mark.parametrize("is_forwarded", [False, True])
@pytest.mark.parametrize("answer", [_reads, _fails, _refuses])
@pytest.mark.parametrize("size_bytes", [limits.RPC_QUESTION_BYTES_MAX // 2, limits.RPC_QUESTION_BYTES_MAX + 1])
def test_what_a_refused_call_sent_is_gone_with_it(
    answer: Callable[[Any], Awaitable[None]], size_bytes: int, is_forwarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the collector comes by: few objects may hold much, and it counts objects."""
    monkeypatch.setattr(service._log, "exception", lambda _: None)  # on a terminal it keeps what it has shown
    sent = b"\xff" * size_bytes if answer is _reads else message_of(size_bytes)

    async def refused(found: Client) -> None:
        stream = found.call("Reader/Read", pb.ReadResponse)
        await stream.write(sent)
        with pytest.raises(Refused):
            await stream.rest()

    async def work(settings: Settings) -> None:
        reader = Service("headgate.v1.Reader", {"Read": (pb.ReadRequest, answer)})
        front = rpc.front(settings, NOBODY) if is_forwarded else rpc.serving([reader], settings.grpc)
        async with rpc.serving([reader], f"unix:{settings.reader_rpc}"), front, client(settings.grpc) as found:
            for _ in range(3):
                await refused(found)
            gc.collect()
            gc.disable()
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                for _ in range(8):
                    await refused(found)
                await asyncio.sleep(0)
                assert tracemalloc.get_traced_memory()[0] - before < 2 * size_bytes
            finally:
                tracemalloc.stop()
                gc.enable()

    run(work)


@pytest.mark.parametrize("name", ["headgate.v1.Reader", "grpc.health.v1.Health"])
def test_a_message_is_bounded_by_its_method(name: str) -> None:
    """Before it is decoded: nobody needs 4 MiB to ask for a server's health."""
    limit = limits.RPC_QUESTION_BYTES_MAX if name == "headgate.v1.Reader" else limits.RPC_META_BYTES_MAX

    async def work(settings: Settings) -> None:
        answered = Service(name, {"Ask": (pb.ReadRequest, echo)})
        async with (
            rpc.serving([answered], settings.grpc),
            aio.insecure_channel(settings.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel,
        ):
            for size, code in ((limit, grpc.StatusCode.OK), (limit + 1, grpc.StatusCode.INVALID_ARGUMENT)):
                call: Any = channel.stream_stream(f"/{name}/Ask")()
                await call.write(message_of(size))
                await call.done_writing()
                with contextlib.suppress(aio.AioRpcError):
                    async for _ in call:
                        pass
                assert await call.code() is code

    run(work)


def test_a_call_is_refused_when_its_first_message_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that meets the end of its call costs a client of gRPC for Python the status, once in a thousand calls.

    Whether the call is handed on or answered, and though nobody has asked for the message.
    """

    async def refusing(call: Any) -> None:
        raise ConflictError("no")

    async def work(settings: Settings) -> None:
        service = Service("headgate.v1.Reader", {"Read": (pb.ReadRequest, refusing)})
        async with (
            rpc.serving([service], f"unix:{settings.reader_rpc}"),
            rpc.front(settings, NOBODY),
        ):
            for address in (settings.grpc, f"unix:{settings.reader_rpc}"):
                async with aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                    call: Any = channel.stream_stream("/headgate.v1.Reader/Read")()
                    await call.wait_for_connection()
                    await asyncio.sleep(0.1)
                    assert not call.done()
                    await call.write(b"")
                    assert (await call.code(), await call.details()) == (grpc.StatusCode.ABORTED, "no")
                    monkeypatch.setattr(limits, "RPC_REFUSED_WAIT_S_MAX", 0.05)
                    silent: Any = channel.stream_stream("/headgate.v1.Reader/Read")()
                    assert await silent.code() is grpc.StatusCode.ABORTED, "a silent client is not waited for"
                    monkeypatch.undo()

    run(work)


class Unheard:
    """A refused call of a client that sends nothing, as gRPC has it."""

    def __init__(self, client: str) -> None:
        self._client = client
        self.is_waiting, self.has_ended = asyncio.Event(), False

    def peer(self) -> str:
        return f"ipv4:{self._client}:1"

    async def read(self) -> object:
        self.is_waiting.set()
        return await asyncio.Event().wait()

    async def abort(self, *_: object) -> None:
        self.has_ended = True


def test_refused_calls_of_one_address_that_wait_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RPC_REFUSED_WAIT_S_MAX", 600.0)
    refused = FairPlaces("refused-calls", "RPCS_REFUSED_MAX", 64)
    waiting: list[asyncio.Task[None]] = []

    async def waits(client: str) -> int:
        """How many refused calls of a client are waited for."""
        for count in range(65):
            call = Unheard(client)
            ending = asyncio.create_task(rpc._ServedCall(cast(Any, call), None, refused).abort())
            has_begun = asyncio.create_task(call.is_waiting.wait())
            await asyncio.wait([ending, has_begun], return_when=asyncio.FIRST_COMPLETED)
            if call.has_ended:
                has_begun.cancel()
                return count
            waiting.append(ending)
        raise AssertionError("there are more places than there are")

    async def work() -> None:
        assert await waits("192.0.2.1") == 48
        assert await waits("192.0.2.2") > 5
        assert await waits("192.0.2.1") == 0
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(refused) == 0

    on_one_loop(work())


@pytest.mark.parametrize("details", ["Internal error from Core", "anything else"])
def test_whose_status_is_lost_is_not_there(details: str) -> None:
    """What the process behind has said is not known: the client may try again."""
    error = aio.AioRpcError(grpc.StatusCode.INTERNAL, aio.Metadata(), aio.Metadata(), details)
    assert is_gone(error) == (details == "Internal error from Core")


def message_of(size_bytes: int) -> bytes:
    """A message of just so many bytes."""
    message = pb.ReadRequest(open=pb.ReadRequest.Open(broker="x" * (size_bytes - 32)))
    missing = size_bytes - message.ByteSize()
    message.open.broker += "x" * missing
    assert message.ByteSize() == size_bytes
    return message.SerializeToString()
