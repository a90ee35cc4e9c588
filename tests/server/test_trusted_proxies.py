"""Which address does a request come from? The connection's, or what a trusted proxy says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop
from pydantic import ValidationError

from headgate.ingress.errors import send_body
from headgate.server.processes.front import HttpListeners
from headgate.settings import Settings
from headgate.testing.server import free_port


async def client_seen(scope: Any, receive: Any, send: Any) -> None:
    await send_body(send, 200, b"text/plain", scope["client"][0].encode())


@pytest.mark.parametrize(
    ("trusted", "forwarded", "seen"),
    [
        ("", "192.0.2.1, 203.0.113.9", "127.0.0.1"),
        ("10.0.0.0/8", "192.0.2.1, 203.0.113.9", "127.0.0.1"),
        ("127.0.0.1", "192.0.2.1, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.0/8, 127.0.0.0/8", "192.0.2.1, 198.51.100.7, 10.0.0.1", "198.51.100.7"),
    ],
)
def test_only_a_trusted_proxy_says_where_a_request_comes_from(trusted: str, forwarded: str, seen: str) -> None:
    port = free_port()

    async def work() -> bytes:
        listeners = HttpListeners(Settings(listen=f"127.0.0.1:{port}", trusted_proxies=trusted))
        listeners.serve(client_seen)
        await listeners.started()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {forwarded}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(len(seen))
        writer.close()
        await listeners.stop()
        return body

    assert uvloop.run(work()).decode() == seen


@pytest.mark.parametrize("trusted", ["proxy.example.com", "10.0.0.1/8", "127.0.0.1,*"])
def test_a_proxy_is_an_address_or_a_network(trusted: str) -> None:
    with pytest.raises(ValidationError, match="is no address and no network"):
        Settings(trusted_proxies=trusted)
