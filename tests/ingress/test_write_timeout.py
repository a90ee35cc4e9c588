"""Is an answer held for ever for a client that does not read it?"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from headgate.ingress.http_connection import http_config
from headgate_api import limits

ANSWER_BYTES = 8 << 20
HEAD_BYTES_MAX = 1_000


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(ANSWER_BYTES)})


@contextlib.asynccontextmanager
async def asked() -> AsyncIterator[tuple[uvicorn.Server, socket.socket]]:
    """A server with one client, whose socket has asked for the answer and takes little into its buffer."""
    server = uvicorn.Server(http_config(large, "127.0.0.1", 0))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        await loop.sock_connect(client, server.servers[0].sockets[0].getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        while not waiting_bytes(server):
            await asyncio.sleep(0.01)
        yield server, client
    server.should_exit = True
    await running


def waiting_bytes(server: uvicorn.Server) -> int:
    """What the server holds of answers."""
    return sum(one.transport.get_write_buffer_size() for one in server.server_state.connections)  # type: ignore[union-attr]


def test_a_client_that_takes_nothing_loses_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE_STALLED_S_MAX", 0.2)

    async def work() -> None:
        async with asked() as (server, _):
            assert waiting_bytes(server) > 1 << 20
            while server.server_state.connections:
                await asyncio.sleep(0.01)

    uvloop.run(asyncio.wait_for(work(), 30))


def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE_STALLED_S_MAX", 1.0)

    async def work() -> None:
        async with asked() as (_, client):
            loop, taken = asyncio.get_running_loop(), 0
            began_at = loop.time()
            while taken < ANSWER_BYTES:
                piece = await loop.sock_recv(client, 1 << 16)
                assert piece, f"broken off after {taken} bytes"
                taken += len(piece)
                if loop.time() - began_at < 3.0:
                    await asyncio.sleep(0.01)
            assert ANSWER_BYTES <= taken < ANSWER_BYTES + (1 << 20)

    uvloop.run(asyncio.wait_for(work(), 60))
