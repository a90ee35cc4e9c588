"""Requests that are passed on to another process."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from starlette.types import Message, Scope

from headgate.server.peers.local_http import KeptConnections, ProcessProxy, WholeRequest, requested, whole_request
from headgate_api import limits
from headgate_api.errors import TooLargeError
from headgate_api.limits import APPLY_BYTES_MAX, KEPT_CONNECTIONS_MAX, OBJECT_BYTES_MAX, SECRET_BODY_BYTES_MAX


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


GOOD = b"HTTP/1.1 200 OK\r\n"


class Process:
    """Answers requests on a socket for as long as the block lasts, and counts its connections."""

    def __init__(self, place: Path, head: bytes = GOOD) -> None:
        self.connections = 0
        self._place = place
        self._head = head
        self._tasks = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Process:
        self._place.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._answer, self._place)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # the other ends hear of it

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self._head + b"content-length: 4\r\n\r\nhalf")
        writer.close()


async def whole(kept: KeptConnections, place: Path) -> bytes:
    async with requested(place, b"GET", b"/", b"", kept=kept) as response:
        assert await response.head() == 200
        return b"".join([piece async for piece in response.pieces()])


def test_a_connection_is_used_again(tmp_path: Path) -> None:
    async def asked() -> None:
        place = tmp_path / "s"
        async with Process(place) as process:
            with contextlib.closing(KeptConnections()) as kept:
                for _ in range(3):
                    assert await whole(kept, place) == b"half"
                assert process.connections == 1
                assert await asyncio.gather(*(whole(kept, place) for _ in range(3))) == [b"half"] * 3
                assert process.connections == 3, "a request has its connection alone"

    asyncio.run(asked())


@pytest.mark.parametrize(
    ("method", "head"),
    [(b"GET", b"HTTP/1.0 200 OK\r\n"), (b"GET", GOOD + b"connection: close\r\n"), (b"HEAD", GOOD), (b"POST", GOOD)],
)
def test_a_connection_that_takes_no_other_request_is_closed(tmp_path: Path, method: bytes, head: bytes) -> None:
    """The process says so, or its answer was not read to the end."""

    async def asked() -> None:
        place = tmp_path / "s"
        async with Process(place, head) as process:
            with contextlib.closing(KeptConnections()) as kept:
                for _ in range(2):
                    async with requested(place, method, b"/", b"", kept=kept) as response:
                        if method != b"POST":
                            assert await response.head() == 200
                        if method == b"GET":
                            assert [piece async for piece in response.pieces()]
                while process.connections < 2:
                    await asyncio.sleep(0)

    asyncio.run(asked())


def test_a_process_that_was_started_again_is_asked_on_a_new_connection(tmp_path: Path) -> None:
    async def asked() -> None:
        place = tmp_path / "s"
        with contextlib.closing(KeptConnections()) as kept:
            for _ in range(2):
                async with Process(place) as process:
                    await asyncio.gather(*(whole(kept, place) for _ in range(3)))
                    assert process.connections == 3

    asyncio.run(asked())


def test_connections_without_requests_are_few_and_not_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> None:
        place = tmp_path / "s"
        async with Process(place) as process:
            with contextlib.closing(KeptConnections()) as kept:
                many = KEPT_CONNECTIONS_MAX + 3
                await asyncio.gather(*(whole(kept, place) for _ in range(many)))
                await asyncio.gather(*(whole(kept, place) for _ in range(many)))
                assert process.connections == many + 3
                monkeypatch.setattr(limits, "KEPT_CONNECTION_S", 0)
                await whole(kept, place)
                assert process.connections == many + 4

    asyncio.run(asked())
