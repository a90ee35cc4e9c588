"""HTTP between the processes of a server, over Unix sockets for this user only; to another server it goes over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httptools
import msgspec
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.auth.context import USER, USER_HEADER, header_of
from headgate.auth.user import ANONYMOUS
from headgate.objects.api.http import JSON, bounded_body, while_connected
from headgate.server import child
from headgate.server.listening import bracketed
from headgate_api import limits
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.objects.kinds import JsonObject

REDIRECTED: Final = 300
Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where another server of a deployment answers: a `host` without brackets; `tls` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class BrokenAnswerError(ConnectionError):
    """The other end broke off its answer, or it is no HTTP."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that has come as a whole. Names of headers are in lower case; `content` and `response` are of JSON."""

    status: int
    body: bytes
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.status < REDIRECTED

    @property
    def content(self) -> JsonObject:
        found: JsonObject = msgspec.json.decode(self.body)
        return found

    def response(self) -> Response:
        headers = {"retry-after": "1"} if self.status >= 500 else None
        return Response(self.body, self.status, headers, media_type=JSON)


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
        timeout_graceful_shutdown=limits.READ_DRAIN_S_MAX,
        timeout_keep_alive=2 * limits.KEPT_CONNECTION_S,  # by then the other end has closed it
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
    """An answer as it comes; names of `headers` are in lower case. It ends where HTTP says so."""

    def __init__(self, source: asyncio.StreamReader, *, only_head: bool) -> None:
        self.headers: list[Header] = []
        self._source = source
        self._only_head = only_head
        self._parser = httptools.HttpResponseParser(self)
        self._started = self._ended = False
        self.leaves_open = False
        """Whether the whole answer has come, and its connection takes another request."""
        self._pieces: list[bytes] = []

    async def head(self) -> int:
        """Waits for the headers; returns the status. Raises OSError where the connection or the answer breaks off."""
        while not self._started:
            await self._read()
        return self._parser.get_status_code()

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            if self._pieces:
                piece, self._pieces = b"".join(self._pieces), []
                yield piece
            if self._ended:
                return
            await self._read()

    async def _read(self) -> None:
        if not (data := await self._source.read(limits.PROXY_PIECE_BYTES)):
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
        self.leaves_open = not self._only_head and self._parser.should_keep_alive()


async def _connected(place: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(str(place), limit=limits.PROXY_PIECE_BYTES)


class KeptConnections:
    """Connections to processes of this server that stay open between requests. Belongs to one event loop."""

    def __init__(self) -> None:
        self._idle: dict[Path, list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    async def take(self, place: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection that was used last, or a new one; raises OSError where nobody listens."""
        idle = self._idle.get(place, [])
        while idle:
            since_s, source, sink = idle.pop()
            if not source.at_eof() and time.monotonic() - since_s < limits.KEPT_CONNECTION_S:
                return source, sink
            sink.close()
        return await _connected(place)

    def keep(self, place: Path, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        idle = self._idle.setdefault(place, [])
        idle.append((time.monotonic(), source, sink))
        if len(idle) > limits.KEPT_CONNECTIONS_MAX:
            idle.pop(0)[-1].close()

    def close(self) -> None:
        for idle in self._idle.values():
            for *_, sink in idle:
                sink.close()
        self._idle.clear()


@contextlib.asynccontextmanager
async def requested(
    place: Path | PeerAddress,
    method: bytes,
    target: bytes,
    body: bytes,
    headers: Iterable[Header] = (),
    kept: KeptConnections | None = None,
) -> AsyncIterator[LocalResponse]:
    """A request to another process. It adds the headers about these two.

    The block's end closes its connection, unless it is one of `kept`, and the whole answer was read. OSError where
    nobody listens, or another server does not answer within LEADER_CONNECT_S_MAX.
    """
    keep = None if kept is None or not isinstance(place, Path) else partial(kept.keep, place)
    if not isinstance(place, Path):
        host = f"{bracketed(place.host)}:{place.port}".encode()
        async with asyncio.timeout(limits.LEADER_CONNECT_S_MAX):  # its TimeoutError is an OSError
            source, sink = await asyncio.open_connection(
                place.host, place.port, ssl=place.tls, limit=limits.PROXY_PIECE_BYTES
            )
    else:
        host = b"headgate"
        source, sink = await (_connected(place) if kept is None else kept.take(place))
    lines = [method + b" " + target + b" HTTP/1.1", b"host: " + host, b"content-length: %d" % len(body)]
    lines += [b"connection: close"] if keep is None else []
    lines += (name + b": " + value for name, value in headers)
    response = LocalResponse(source, only_head=method == b"HEAD")
    try:
        sink.write(b"\r\n".join([*lines, b"", body]))
        yield response
    finally:
        if keep is not None and response.leaves_open:
            keep(source, sink)
        else:
            sink.close()


async def ask(
    place: Path | PeerAddress,
    method: str,
    target: str,
    body: bytes = b"",
    headers: Iterable[Header] = (),
    within_s: float | None = None,
) -> WholeAnswer:
    """What another process answers, as a whole; `target` is a path and a query in Latin-1.

    OSError where nobody listens, or the answer breaks off or is too large; one that is late is a TimeoutError.
    """
    async with (
        asyncio.timeout(within_s),
        requested(place, method.encode(), target.encode("latin-1"), body, headers) as response,
    ):
        status, whole = await response.head(), bytearray()
        async for piece in response.pieces():
            whole += piece
            if len(whole) > limits.DISPATCHER_ANSWER_BYTES_MAX:
                raise BrokenAnswerError(f"the process answers with over {limits.DISPATCHER_ANSWER_BYTES_MAX} bytes")
        return WholeAnswer(status, bytes(whole), dict(response.headers))


# --- proxy ----------------------------------------------------------------------------------------

FORWARDED: Final = b"headgate-forwarded"
"""A header of what another server of the deployment has passed on: it goes no further."""
_PASSED_ON: Final = frozenset(
    {b"accept", b"content-type", b"if-none-match", b"last-event-id", b"user-agent", FORWARDED}
)
_LARGER: Final = (
    (re.compile(rb"/api/v1/namespaces/[^/]+/secrets(/[^/]+)?"), limits.SECRET_BODY_BYTES_MAX),
    (re.compile(rb"/apis/headgate\.dev/v1/namespaces/[^/]+/(trigger|subscription)applies"), limits.APPLY_BYTES_MAX),
)
"""The paths of what may be larger than an object."""
_OF_THE_CONNECTION: Final = frozenset({b"connection", b"transfer-encoding", b"date", b"server"})


class PartUnavailableError(UnavailableError):
    """The process that would answer is not there."""

    code = "part-unavailable"

    def __init__(self) -> None:
        super().__init__("there is no answer now", hint="try again in a few seconds")


def user_header(scope: Scope) -> tuple[Header, ...]:
    """What names the user of a request to a process of this server, and to no other one; empty without a user."""
    user = scope.get(USER, ANONYMOUS)
    return () if user is ANONYMOUS else ((USER_HEADER, header_of(user)),)


class ProcessProxy:
    """An ASGI application that passes requests on as a whole; `shown` has what lets the process ask further servers."""

    def __init__(
        self,
        socket: Path,
        kept: KeptConnections | None = None,
        shown: Callable[[Scope], Sequence[Header] | None] = lambda _: None,
    ) -> None:
        self._socket = socket
        self._kept = kept
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (request := await whole_request(scope, receive)) is not None:
            more = (*(self._shown(scope) or ()), *user_header(scope))
            request = replace(request, headers=(*request.headers, *more))
            await pass_on(self._socket, request, receive, send, kept=self._kept)


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """A request that has come as a whole; `target` is path and query, `headers` those that are passed on."""

    method: bytes
    target: bytes
    headers: tuple[Header, ...]
    body: bytes


async def whole_request(scope: Scope, receive: Receive) -> WholeRequest | None:
    """Receives a request, of no more bytes than any that is passed on may have; None when its client has gone."""
    request = Request(scope, receive)
    path = sent_path(scope).encode("latin-1")
    bytes_max = next((most for paths, most in _LARGER if paths.fullmatch(path)), limits.OBJECT_BYTES_MAX)
    try:
        body = await bounded_body(request, bytes_max)
    except ClientDisconnect:  # it has died: nobody waits for an answer
        return None
    target = path + b"?" + scope["query_string"] if scope["query_string"] else path
    headers = tuple((name, value) for name, value in scope["headers"] if name in _PASSED_ON)
    return WholeRequest(request.method.encode(), target, headers, body)


async def pass_on(
    place: Path | PeerAddress,
    request: WholeRequest,
    receive: Receive,
    send: Send,
    before: Callable[[LocalResponse], Awaitable[object]] | None = None,
    patience_s: float | None = None,
    kept: KeptConnections | None = None,
) -> None:
    """Asks another process, and passes its answer on as it comes; ends when the client or the other process does.

    `before` is awaited when the answer's head has come, for which it waits `patience_s`; None: as long as the client.
    """

    async def answer(response: LocalResponse) -> None:
        try:
            async with asyncio.timeout(patience_s):  # its TimeoutError is an OSError
                status = await response.head()
        except OSError as error:
            raise PartUnavailableError from error
        if before is not None:
            await before(response)
        headers = [(name, value) for name, value in response.headers if name not in _OF_THE_CONNECTION]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        # If the other process breaks off, so does this answer: what came must not pass for the whole.
        with contextlib.suppress(BrokenAnswerError):
            async for body in response.pieces():
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async with contextlib.AsyncExitStack() as stack:
        try:
            call = requested(place, request.method, request.target, request.body, request.headers, kept)
            response = await stack.enter_async_context(call)
        except OSError as error:
            raise PartUnavailableError from error
        await while_connected(receive, answer(response))


def sent_path(scope: Scope) -> str:
    """The path of a request as it was sent: what is decoded may hold the bytes that end a request line."""
    sent: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return sent.partition(b"?")[0].decode("latin-1")
