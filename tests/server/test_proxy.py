"""Requests that are passed on to another process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.types import Message, Scope

from headgate.errors import TooLargeError
from headgate.limits import APPLY_BYTES_MAX, OBJECT_BYTES_MAX, SECRET_BODY_BYTES_MAX
from headgate.server.proxy import ProcessProxy, WholeRequest, whole_request


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
