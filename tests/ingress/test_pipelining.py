"""Requests that a client sends ahead of its answers: each is answered in its turn, and few of them are parsed ahead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from headgate.ingress.http_connection import BoundedHttpProtocol, http_config
from headgate_api import limits
from headgate_api.limits import PIPELINE_BYTES

AHEAD_MAX = 50
"""Requests of about 95 bytes in PIPELINE_BYTES, and one that was begun before."""

READ_BYTES_MAX = 2 << 18
"""One read of asyncio, and what an earlier one has left."""


class Echo:
    """Answers with each request's path and the length of its body; the first one when it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.begun = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        await self.may.wait()
        size, more = 0, True
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        for _ in range(3):  # turns of the loop, as who stores it needs them
            await asyncio.sleep(0)
        body = f"{scope['path']}:{size};".encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def served(app: Echo) -> AsyncIterator[tuple[uvicorn.Server, asyncio.StreamReader, asyncio.StreamWriter]]:
    server = uvicorn.Server(http_config(app, "127.0.0.1", 0))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname(), limit=1 << 26)
    try:
        yield server, reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await running


def post(number: int, body: bytes, *, chunked: bool = False) -> bytes:
    head = f"POST /{number} HTTP/1.1\r\nhost: x\r\n"
    if chunked:
        return f"{head}transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def answers(reader: asyncio.StreamReader, count: int) -> list[str]:
    found = []
    for _ in range(count):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        found.append((await reader.readexactly(size)).decode())
    return found


def ahead(server: uvicorn.Server) -> int:
    """Requests that are parsed and wait."""
    return sum(len(one.pipeline) for one in server.server_state.connections)  # type: ignore[union-attr]


def behind(server: uvicorn.Server) -> int:
    """Bytes that are read and not parsed."""
    found: set[object] = set(server.server_state.connections)
    return sum(len(one._behind) for one in found if isinstance(one, BoundedHttpProtocol))


def test_a_client_that_waits_for_no_answer_has_few_requests_in_memory() -> None:
    async def work() -> None:
        app = Echo()
        async with served(app) as (server, reader, writer):
            requests = [post(number, b"x" * 50) for number in range(5_000)]
            writer.write(b"".join(requests))
            while not app.begun:
                await asyncio.sleep(0.01)
            most = 0
            for _ in range(20):  # turns of the loop, in which anything would be read that may be
                await asyncio.sleep(0)
                most = max(most, ahead(server))
            assert 1 <= most <= AHEAD_MAX
            app.may.set()
            reading = asyncio.create_task(answers(reader, len(requests)))
            while not reading.done():
                await asyncio.sleep(0)
                most = max(most, ahead(server))
            assert reading.result() == [f"/{number}:50;" for number in range(5_000)]
            assert most <= AHEAD_MAX

    asyncio.run(asyncio.wait_for(work(), 60))


def test_nothing_is_read_behind_what_waits() -> None:
    """Reading a request's body lets the connection be read on: not where requests wait that came behind it."""

    async def work() -> None:
        app = Echo()
        app.may.set()
        async with served(app) as (server, reader, writer):
            count = 20_000
            writer.write(b"".join(post(number, b"x" * 50) for number in range(count)))
            reading = asyncio.create_task(answers(reader, count))
            most = 0
            while not reading.done():
                await asyncio.sleep(0)
                most = max(most, behind(server))
            assert len(reading.result()) == count
            assert most <= READ_BYTES_MAX

    asyncio.run(asyncio.wait_for(work(), 60))


def test_bodies_of_any_size_and_form_keep_their_places() -> None:
    sizes = [0, 1, PIPELINE_BYTES - 60, PIPELINE_BYTES, 3 * PIPELINE_BYTES + 1, 300_000, 5, 70_000, 0, 12]

    async def work() -> None:
        app = Echo()
        app.may.set()
        async with served(app) as (_, reader, writer):
            parts = [post(n, b"y" * size, chunked=size > 0 and n % 3 == 1) for n, size in enumerate(sizes * 4)]
            whole = b"".join(parts)
            for at in range(0, len(whole), 100_003):  # pieces that end anywhere
                writer.write(whole[at : at + 100_003])
                await writer.drain()
            assert await answers(reader, len(parts)) == [f"/{n}:{size};" for n, size in enumerate(sizes * 4)]

    asyncio.run(asyncio.wait_for(work(), 60))


def test_who_waits_for_the_server_is_not_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a half head may stand behind a request that takes its time."""
    monkeypatch.setattr(limits, "REQUEST_HEAD_S_MAX", 0.05)
    looks = 0
    look = BoundedHttpProtocol._look

    def counted(self: BoundedHttpProtocol) -> None:
        nonlocal looks
        looks += 1
        look(self)

    monkeypatch.setattr(BoundedHttpProtocol, "_look", counted)

    async def work() -> None:
        app = Echo()
        async with served(app) as (_, reader, writer):
            body = b"x" * (PIPELINE_BYTES - 200)  # so the second one is parsed in part
            writer.write(b"".join(post(number, body) for number in range(200)))
            while looks < 3:
                await asyncio.sleep(0.01)
            app.may.set()
            assert len(await answers(reader, 200)) == 200

    asyncio.run(asyncio.wait_for(work(), 60))
