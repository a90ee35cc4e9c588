"""Requests that are passed on to another process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.types import Message, Scope

from headgate.server.proxy import ProcessProxy


def test_a_client_that_dies_while_it_sends_its_request_is_no_error(tmp_path: Path) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    asyncio.run(ProcessProxy(tmp_path / "nobody")(scope, receive, send))
    assert sent == []
