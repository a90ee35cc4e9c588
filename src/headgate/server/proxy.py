"""How does a request reach another process of this server? Handed on over its Unix socket, the answer as it comes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import httptools
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from headgate.control.http import while_connected
from headgate.errors import TooLargeError, UnavailableError
from headgate.limits import OBJECT_BYTES_MAX, PROXY_PIECE_BYTES

_HANDED_ON: Final = frozenset({"accept", "content-type", "last-event-id", "user-agent"})


class PartUnavailableError(UnavailableError):
    """The process that would answer is not there."""

    code = "part-unavailable"


class _Answer:
    """What `httptools` found of an answer so far.

    Args:
        only_head: It answers HEAD, so no body follows its head, whatever that says of one.
    """

    def __init__(self, *, only_head: bool) -> None:
        self._only_head = only_head
        self.headers: list[tuple[bytes, bytes]] = []
        self.started = False
        self.ended = False
        self.pieces: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in (b"connection", b"transfer-encoding", b"date", b"server"):
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.started = True
        self.ended = self._only_head

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.ended = True


class ProcessProxy:
    """An ASGI application that hands requests on, their bodies as a whole.

    Args:
        socket: Of the process that answers.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; ends when the client or the other process does.

        Raises:
            PartUnavailableError: The other process does not answer.
            TooLargeError: The body is too large for any request that is handed on.
        """
        request = Request(scope, receive)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > OBJECT_BYTES_MAX:
                raise TooLargeError(f"the body is over {OBJECT_BYTES_MAX} bytes")
        try:
            source, sink = await asyncio.open_unix_connection(str(self._socket), limit=PROXY_PIECE_BYTES)
        except OSError as error:
            raise PartUnavailableError("there is no answer now", hint="try again in a few seconds") from error
        try:
            sink.write(_head(request, len(body)) + body)
            await while_connected(receive, _copy(source, send, _Answer(only_head=request.method == "HEAD")))
        finally:
            sink.close()


def _head(request: Request, body_bytes: int) -> bytes:
    path = request.scope["raw_path"] if "raw_path" in request.scope else request.url.path.encode()
    query = request.scope["query_string"]
    first = request.method.encode() + b" " + path + (b"?" + query if query else b"") + b" HTTP/1.1"
    lines = [first, b"host: headgate", b"connection: close", b"content-length: %d" % body_bytes]
    lines += [
        name.encode() + b": " + value.encode("latin-1") for name, value in request.headers.items() if name in _HANDED_ON
    ]
    return b"\r\n".join([*lines, b"", b""])


async def _copy(source: asyncio.StreamReader, send: Send, answer: _Answer) -> None:
    parser = httptools.HttpResponseParser(answer)
    started = False
    while not answer.ended:
        data = await source.read(PROXY_PIECE_BYTES)
        if not data:
            break
        parser.feed_data(data)
        if answer.started and not started:
            started = True
            await send({"type": "http.response.start", "status": parser.get_status_code(), "headers": answer.headers})
        if answer.pieces:
            body, answer.pieces = b"".join(answer.pieces), []
            await send({"type": "http.response.body", "body": body, "more_body": True})
    if not started:
        raise PartUnavailableError("there is no answer now", hint="try again in a few seconds")
    if answer.ended:
        await send({"type": "http.response.body", "body": b""})
    # Else the other process broke off, and so does this answer: what came must not pass for the whole.
