"""Requests that are passed on to another process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.types import Message, Scope

from headgate.server.peers.local_http import ProcessProxy, WholeRequest, whole_request
from headgate_api.errors import TooLargeError
from headgate_api.limits import APPLY_BYTES_MAX, OBJECT_BYTES_MAX, SECRET_BODY_BYTES_MAX


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


@pytest.mark.parametrize(
    ("path", "bytes_max"),
    [
        ("/apis/eventing.knative.dev/v1/namespaces/a/triggers", OBJECT_BYTES_MAX),
        ("/apis/headgate.dev/v1/namespaces/a/triggerapplies", APPLY_BYTES_MAX),
        ("/apis/headgate.dev/v1/namespaces/a/subscriptionapplies", APPLY_BYTES_MAX),
        ("/api/v1/namespaces/a/secrets/b", SECRET_BODY_BYTES_MAX),
    ],
)
def test_how_large_a_body_is_passed_on(path: str, bytes_max: int) -> None:
    async def received(size: int) -> WholeRequest | None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"x" * size}

        scope: Scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
        return await whole_request(scope, receive)

    whole = asyncio.run(received(bytes_max))
    assert whole is not None
    assert len(whole.body) == bytes_max
    with pytest.raises(TooLargeError):
        asyncio.run(received(bytes_max + 1))


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_answer_that_breaks_off_does_not_pass_for_the_whole(tmp_path: Path, is_whole: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf" + is_whole * b"half")
        writer.close()

    async def passed_on() -> list[Message]:
        messages: list[Message] = [{"type": "http.request", "body": b""}]
        sent: list[Message] = []

        async def receive() -> Message:
            return messages.pop() if messages else await asyncio.Future()

        async def send(message: Message) -> None:
            sent.append(message)

        scope: Scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        async with await asyncio.start_unix_server(answer, tmp_path / "socket"):
            await ProcessProxy(tmp_path / "socket")(scope, receive, send)
        return sent

    head, *bodies = asyncio.run(passed_on())
    assert head["status"] == 200
    assert b"".join(body["body"] for body in bodies) == (b"halfhalf" if is_whole else b"half")
    assert bodies[-1].get("more_body", False) is not is_whole
