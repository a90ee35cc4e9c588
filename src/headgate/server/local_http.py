"""HTTP between the processes of a server, over Unix sockets that only this user may open: both ends.

The asking end also reaches another server of a deployment, over TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import httptools
import uvicorn
from starlette.types import ASGIApp

from headgate.server import child
from headgate_api.errors import HeadgateError
from headgate_api.limits import DISPATCHER_ANSWER_BYTES_MAX, LEADER_CONNECT_S_MAX, PROXY_PIECE_BYTES, READ_DRAIN_S_MAX

Header = tuple[bytes, bytes]
"""Name and value."""


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where another server of a deployment answers: a `host` without brackets; `tls` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @property
    def text(self) -> str:
        """HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BrokenAnswerError(ConnectionError):
    """The other end broke off its answer, or it is no HTTP."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that has come as a whole. Names of headers are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class SocketServerGoneError(HeadgateError):
    """The server on a process's socket ended by itself: nobody can reach the process any more."""

    code = "socket-server-gone"


@contextlib.asynccontextmanager
async def answering(app: ASGIApp, socket: Path) -> AsyncIterator[None]:
    """Serve an application for as long as the block lasts; at its end requests are cut off after READ_DRAIN_S_MAX.

    A server that ends before the block does breaks it off with SocketServerGoneError.
    """
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    config = uvicorn.Config(
        app,
        uds=str(socket),
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,
        timeout_graceful_shutdown=READ_DRAIN_S_MAX,
    )
    server = child.UvicornServer(config)
    block = asyncio.current_task()
    assert block is not None
    serving = asyncio.create_task(server.serve())
    broken_off = False

    def break_off(_: asyncio.Task[None]) -> None:
        nonlocal broken_off
        broken_off = not server.should_exit
        if broken_off:
            block.cancel()

    serving.add_done_callback(break_off)
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        socket.chmod(0o600)
        yield
    except asyncio.CancelledError:
        if not broken_off:
            raise
        block.uncancel()
        error = None if serving.cancelled() else serving.exception()
        raise SocketServerGoneError(
            f"the server on {socket} has ended", hint="try again: the process is being restarted"
        ) from error
    finally:
        server.should_exit = True
        if not broken_off:
            await serving


class LocalResponse:
    """An answer as it comes. It ends where HTTP says so, never where the connection does.

    Names of `headers` are in lower case; they are complete once `head` has returned.
    """

    def __init__(self, source: asyncio.StreamReader, *, only_head: bool) -> None:
        self.headers: list[Header] = []
        self._source = source
        self._only_head = only_head
        self._parser = httptools.HttpResponseParser(self)
        self._started = self._ended = False
        self._pieces: list[bytes] = []

    async def head(self) -> int:
        """Waits for the headers; returns the status. Raises OSError where the connection or the answer breaks off."""
        while not self._started:
            await self._read()
        return self._parser.get_status_code()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes; raises as `head` does."""
        while True:
            if self._pieces:
                piece, self._pieces = b"".join(self._pieces), []
                yield piece
            if self._ended:
                return
            await self._read()

    async def _read(self) -> None:
        data = await self._source.read(PROXY_PIECE_BYTES)
        if not data:
            raise BrokenAnswerError("the process broke off its answer")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BrokenAnswerError(f"the process answers with no HTTP: {error}") from error

    # --- what the parser calls ------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head's end; an answer to HEAD has no body, whatever its headers say."""
        self._started, self._ended = True, self._only_head

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._ended = True


@contextlib.asynccontextmanager
async def requested(
    place: Path | PeerAddress, method: bytes, target: bytes, body: bytes, headers: Iterable[Header] = ()
) -> AsyncIterator[LocalResponse]:
    """A request to another process; the block's end closes its connection.

    It adds the headers about the connection and the body's length. Raises OSError where nobody listens, or another
    server does not answer within LEADER_CONNECT_S_MAX.
    """
    if isinstance(place, Path):
        host = b"headgate"
        source, sink = await asyncio.open_unix_connection(str(place), limit=PROXY_PIECE_BYTES)
    else:
        host = place.text.encode()
        async with asyncio.timeout(LEADER_CONNECT_S_MAX):  # its TimeoutError is an OSError
            source, sink = await asyncio.open_connection(place.host, place.port, ssl=place.tls, limit=PROXY_PIECE_BYTES)
    lines = [method + b" " + target + b" HTTP/1.1", b"host: " + host, b"connection: close"]
    lines += [b"content-length: %d" % len(body), *(name + b": " + value for name, value in headers)]
    try:
        sink.write(b"\r\n".join([*lines, b"", body]))
        yield LocalResponse(source, only_head=method == b"HEAD")
    finally:
        sink.close()


async def answered(
    place: Path | PeerAddress,
    method: bytes,
    target: bytes,
    body: bytes = b"",
    headers: Iterable[Header] = (),
    bytes_max: int = DISPATCHER_ANSWER_BYTES_MAX,
) -> WholeAnswer:
    """What another process answers, as a whole; OSError where nobody listens, it breaks off, or is over `bytes_max`."""
    async with requested(place, method, target, body, headers) as response:
        status, whole = await response.head(), bytearray()
        async for piece in response.pieces():
            whole += piece
            if len(whole) > bytes_max:
                raise BrokenAnswerError(f"the process answers with over {bytes_max} bytes")
        return WholeAnswer(status, dict(response.headers), bytes(whole))
