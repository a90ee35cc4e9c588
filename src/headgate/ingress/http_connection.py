"""uvicorn's HTTP protocol with bounds on connections, and on the size and time of a request, its answer, and TLS.

The parser collects headers without any limit and waits for ever: one client that never ends its request would take
memory, and a thousand of them every connection there is.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fcntl import ioctl
from struct import unpack
from termios import TIOCOUTQ
from typing import Any, Final, Protocol, cast

import httptools
import structlog
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headgate.auth.lockout import client_of
from headgate.observe.logs import Recurring
from headgate.observe.metrics import CONNECTIONS_CLOSED, REQUESTS_REFUSED, TLS_HANDSHAKES_FAILED
from headgate_api import limits

_log = structlog.get_logger(__name__)

# --- slots ----------------------------------------------------------------------------------------
# Connections are bounded for all clients and for each, and the oldest idle one is closed for a new one.
#
# A client is an address, or the /64 network of an IPv6 address, of which one machine may use every address. A
# connection is idle while no request has begun on it: none has come, its head is not whole, or the last one is
# answered. So a client that opens connections and leaves them shuts out neither others nor itself.

_EVICTED: Final = CONNECTIONS_CLOSED.labels("idle")
_REFUSED: Final = CONNECTIONS_CLOSED.labels("refused")


class Evictable(Protocol):
    """A connection that holds a slot."""

    def evict(self) -> None:
        """Closes the connection; its slot is released already."""


@dataclass(eq=False, slots=True)
class ConnectionSlot:
    """The slot of one connection."""

    connection: Evictable
    client: _Client
    is_released: bool = False


@dataclass(eq=False, slots=True)
class _Client:
    """The connections of one address: how many, and those that are idle, the oldest first."""

    name: str
    count: int = 0
    idle: dict[ConnectionSlot, None] = field(default_factory=dict)


class Connections:
    """All connections of a server. Belongs to its event loop."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._idle: dict[ConnectionSlot, None] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def acquire(self, connection: Evictable, address: str) -> ConnectionSlot | None:
        """A slot for a connection, idle at first, of `address` ("" for none); None: all are taken and none is idle."""
        name = client_of(address)
        client = self._clients.get(name) or _Client(name)
        if client.count >= limits.CONNECTIONS_A_CLIENT_MAX:
            oldest = next(iter(client.idle), None)
        elif self._count >= limits.CONNECTIONS_MAX:
            oldest = next(iter(self._idle), None)
        else:
            return self._acquired(connection, client)
        if oldest is None:
            _REFUSED.inc()
            return None
        _EVICTED.inc()
        self.release(oldest)
        oldest.connection.evict()
        return self._acquired(connection, client)

    def _acquired(self, connection: Evictable, client: _Client) -> ConnectionSlot:
        slot = ConnectionSlot(connection, client)
        self._clients[client.name] = client
        client.count += 1
        self._count += 1
        self.end_request(slot)
        return slot

    def begin_request(self, slot: ConnectionSlot) -> None:
        self._idle.pop(slot, None)
        slot.client.idle.pop(slot, None)

    def end_request(self, slot: ConnectionSlot) -> None:
        if not slot.is_released:
            self._idle[slot] = slot.client.idle[slot] = None

    def release(self, slot: ConnectionSlot) -> None:
        if slot.is_released:
            return
        self.begin_request(slot)
        slot.is_released = True
        self._count -= 1
        slot.client.count -= 1
        if not slot.client.count:
            del self._clients[slot.client.name]


# --- HTTP -----------------------------------------------------------------------------------------


class WriteTimeoutProtocol(HttpToolsProtocol):
    """Breaks a connection off whose client takes nothing of an answer for WRITE_STALLED_S_MAX; slowly is enough.

    An answer that fits into the sockets' buffers costs no timer.
    """

    _unread_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_answer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        self._unwatch_answer()
        super().resume_writing()

    def _watch_answer(self) -> None:
        waiting_bytes = self._waiting_bytes()
        self._unread_timer = self.loop.call_later(limits.WRITE_STALLED_S_MAX, self._look_at_answer, waiting_bytes)

    def _unwatch_answer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _look_at_answer(self, waiting_bytes: int) -> None:
        if self._waiting_bytes() < waiting_bytes:
            self._watch_answer()
        else:
            self.transport.abort()

    def _waiting_bytes(self) -> int:
        """What the client has not taken: also of the kernel's buffer, megabytes that a slow client is long about."""
        (sent_bytes,) = unpack("i", ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4)))
        return int(sent_bytes) + self.transport.get_write_buffer_size()


_LENGTH_DIGITS: Final = 16
_END = b"content-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = STATUS_LINE[431] + _END
_INVALID = "Invalid HTTP request received."
_TOO_SLOW = STATUS_LINE[408] + _END
_WHY_NOT_HTTP2 = b"this port speaks HTTP/1.1; gRPC has a port of its own, set by headgate serve --grpc\n"
_HTTP2_HEAD = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(_WHY_NOT_HTTP2)
_HTTP2 = STATUS_LINE[505] + _HTTP2_HEAD + _WHY_NOT_HTTP2
"""What a client gets that begins with HTTP/2's preface. It is no HTTP/2 on purpose: after a GOAWAY with the reason
HTTP_1_1_REQUIRED gRPC's clients connect again and again until the call's deadline, after this they give up at once."""

CLIENT_CERTIFICATE: Final = "headgate.certificate"
"""Where a request's state holds the client's certificate as DER."""


class _HeldFlow(FlowControl):
    """When a connection is read; what reads a body would resume it at any time."""

    is_held = False
    """Nothing is to be read: there is enough that waits."""

    def hold(self) -> None:
        """Read nothing, whoever wants to, until `is_held` is False again."""
        self.is_held = True
        self.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused and not self.is_held:
            super().resume_reading()


class BoundedHttpProtocol(WriteTimeoutProtocol):
    """Answers 431 and closes when a request's head is over REQUEST_HEAD_BYTES_MAX or REQUEST_HEADERS_MAX.

    Answers 408 and closes when a head is not whole after REQUEST_HEAD_S_MAX, or a request after REQUEST_S_MAX. A
    request that comes in one read costs no timer.

    Of requests that a client sends before it has the answers to those before them, one is parsed ahead, at most
    PIPELINE_BYTES of the others in one go, and nothing is read behind them: what nobody answers yet takes neither the
    time of others nor memory. What comes with a body and is no data of it (trailers, extensions of chunks) is dropped,
    and bounded like a head.
    """

    _bare_bytes = 0
    """Received without any data of a body since the request began, its head ended, or data came."""
    _in_body = False
    _body_bytes = 0
    """Received of the body."""
    _behind = b""
    """Received and not parsed: it comes behind a request that waits for the answer to another one."""
    _upgrades = False
    """The head requests another protocol, and so the parser takes no body."""
    _refused = False
    flow: _HeldFlow
    _began_at = 0.0
    _timer: asyncio.TimerHandle | None = None
    _slot: ConnectionSlot | None = None

    def __init__(self, connections: Connections, **uvicorn: Any) -> None:  # noqa: ANN401 - uvicorn's to say
        super().__init__(**uvicorn)
        self._connections = connections

    def adopt(self, slot: ConnectionSlot) -> None:
        self._slot = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there; it has REQUEST_HEAD_S_MAX for its first request's head."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.flow = _HeldFlow(self.transport)
        if self._slot is None:
            self._slot = self._connections.acquire(self, self.client[0] if self.client else "")
        if self._slot is None or self._slot.is_released:
            self.transport.abort()
            return
        self._slot.connection = self
        self._keep_certificate()
        self._watch()

    def _keep_certificate(self) -> None:
        """Puts the client's certificate, which the handshake has verified, into the state of each of its requests."""
        tls = self.transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if certificate:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: certificate}

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        if self._slot is not None:
            self._connections.release(self._slot)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses as much as may be under way; the rest waits for answers."""
        if len(data) <= limits.PIPELINE_BYTES and not (self._behind or self.pipeline or self.transport.is_closing()):
            self._take(data)
        else:
            self._take_pieces(self._behind + data)

    def _take_pieces(self, data: bytes) -> None:
        """Parses piece by piece, and no further than one request ahead of the answers."""
        self._behind, view = b"", memoryview(data)
        at = 0
        while at < len(data) and not self.transport.is_closing():
            if self.pipeline:
                self._behind = data[at:]
                self.flow.hold()
                return
            end = at + max(limits.PIPELINE_BYTES, self._body_left())
            self._take(view[at:end])
            at = end

    def _body_left(self) -> int:
        """Bytes of the body that are still to come, as far as its length was told."""
        if self._in_body:
            for name, value in self.scope["headers"]:
                if name == b"content-length":
                    return _length(value) - self._body_bytes
        return 0

    def _take(self, data: bytes | memoryview) -> None:
        self._bare_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            if self.parser.get_method() == b"PRI":
                self._refuse("http2", _HTTP2)
                return
            self.logger.warning(_INVALID)
            self.send_400_response(_INVALID)
        if self._in_body or self._bare_bytes:
            if self._timer is None:
                self._watch()
            if self._bare_bytes > limits.REQUEST_HEAD_BYTES_MAX:
                self._refuse("headers-too-large", _TOO_LARGE)
        elif self._timer is not None:
            self._unwatch()

    def _parse(self, data: bytes | memoryview) -> None:
        """Parses what was received.

        A client that requests HTTP/2 (Java's, curl --http2) continues in HTTP/1.1 when the server does not upgrade. The
        parser, though, ends such a request with its head. So it gets the head once more, without that wish, and then
        the rest.
        """
        waiting = [data]
        while waiting:
            piece = waiting.pop()
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._upgrades:
                    return  # CONNECT, which is answered: what follows is dropped
                waiting += [memoryview(piece)[upgrade.args[0] :], self._head_again()]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the first one has it

    def _head_again(self) -> bytes:
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/", self.parser.get_http_version().encode()]
        for name, value in self.headers:
            if name != b"upgrade":
                head += [b"\r\n", name, b": ", value]
        return b"".join([*head, b"\r\n\r\n"])

    def on_headers_complete(self) -> None:
        """The head is whole: what follows is the body's."""
        self._upgrades = self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)
        if self._upgrades:
            return
        self._in_body = True
        self._bare_bytes = self._body_bytes = 0
        if self._slot is not None:
            self._connections.begin_request(self._slot)
        if len(self.headers) > limits.REQUEST_HEADERS_MAX:
            self._refuse("headers-too-large", _TOO_LARGE)
        else:
            super().on_headers_complete()
            self.headers = []  # for trailers: with the head's, they would pass for headers that were checked

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        self._body_bytes += len(body)
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The next byte begins another head."""
        if self._upgrades:
            return
        self._in_body = False
        self._bare_bytes = 0
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is sent: nothing is left to do, unless the next request came already."""
        pipelined = bool(self.pipeline)
        self.flow.is_held = False
        super().on_response_complete()
        if not pipelined and self._slot is not None:
            self._connections.end_request(self._slot)
        if self._behind and not self.transport.is_closing():
            self.data_received(b"")

    def evict(self) -> None:
        self.transport.close()

    def _watch(self) -> None:
        if not self.transport.is_closing():
            self._began_at = self.loop.time()
            self._timer = self.loop.call_later(limits.REQUEST_HEAD_S_MAX, self._look)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """The request that has begun is still not whole."""
        self._timer = None
        if self._behind:  # the server lets it wait, not the client
            self._watch()
            return
        left_s = self._began_at + limits.REQUEST_S_MAX - self.loop.time()
        if self._in_body and left_s > 0:
            self._timer = self.loop.call_later(left_s, self._look)
        elif self._in_body or self._bare_bytes:
            self._refuse("too-slow", _TOO_SLOW)
        else:
            self.transport.close()  # it never sent anything

    def _refuse(self, code: str, answer: bytes) -> None:
        """Answers by itself, unless the application has begun to, and closes; the application sees a client leave."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        REQUESTS_REFUSED.labels(code).inc()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(answer)
        self.transport.close()


def _length(value: bytes) -> int:
    """What a header says of a body's length; 0 for what is no number, which the parser refuses."""
    return int(value) if value.isdigit() and len(value) < _LENGTH_DIGITS else 0


def http_config(
    app: ASGIApp,
    host: str,
    port: int,
    protocol: Callable[..., asyncio.Protocol] | None = None,
    proxies: Sequence[str] = (),
) -> Config:
    """How uvicorn serves ingress: nothing per request but the protocol and the application.

    `protocol` makes that of a new connection from what uvicorn gives; None for plain HTTP with connections of its own.
    `proxies` are the addresses and networks whose header X-Forwarded-For says where a client is.
    """
    return Config(
        app,
        host=host,
        port=port,
        loop="none",
        http=cast(type[asyncio.Protocol], protocol or functools.partial(BoundedHttpProtocol, Connections())),
        ws="none",
        lifespan="off",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.KEEP_ALIVE_S,
        timeout_graceful_shutdown=limits.FRONT_DRAIN_S_MAX,
    )


class TlsAcceptor:
    """Accepts connections on one socket and makes HTTP of those whose handshake succeeds. Belongs to an event loop.

    asyncio's own servers make a connection's protocol after the handshake, so that clients which do not end theirs
    would hold files that nothing bounds. Here each connection gets its slot first.
    """

    def __init__(
        self,
        connections: Connections,
        context: Callable[[], ssl.SSLContext],
        make_http: Callable[[], BoundedHttpProtocol],
    ) -> None:
        self._connections = connections
        self._context = context
        self._make_http = make_http
        self._handshakes: set[asyncio.Task[None]] = set()

    async def run(self, listening: socket.socket) -> None:
        """Accepts until it is cancelled. `listening` listens, and does not block."""
        loop = asyncio.get_running_loop()
        failing = Recurring(_log, "connections cannot be accepted", OSError)
        while True:
            accepted: socket.socket | None = None
            with failing.attempt():
                accepted, address = await loop.sock_accept(listening)
            if accepted is None:  # most likely too many files are open
                await asyncio.sleep(limits.ACCEPT_PAUSE_S)
                continue
            handshake = _Handshake()
            slot = self._connections.acquire(handshake, str(address[0]))
            if slot is None:
                accepted.close()
            else:
                handshake.task = task = loop.create_task(self._shake_hands(accepted, slot))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            await asyncio.sleep(0)  # an accept that need not wait does not let anybody else work

    async def _shake_hands(self, accepted: socket.socket, slot: ConnectionSlot) -> None:
        http = self._make_http()
        http.adopt(slot)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: http,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=limits.TLS_HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=limits.TLS_SHUTDOWN_S_MAX,
            )
        except (OSError, asyncio.CancelledError):  # TLS, too: no trust, no TLS, no client, no time; or it was evicted
            TLS_HANDSHAKES_FAILED.inc()
            self._connections.release(slot)


class _Handshake:
    """What holds a slot as long as the handshake lasts."""

    task: asyncio.Task[None] | None = None

    def evict(self) -> None:
        if self.task is not None:
            self.task.cancel()
