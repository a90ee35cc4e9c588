"""uvicorn's HTTP protocol with bounds on the size and time of a request, its answer, and the handshake before it.

The parser collects headers without any limit and waits for ever, so one client that never ends its request would take
memory, and a thousand of them every connection there is.

asyncio's own servers make a connection's protocol after the handshake, so that clients which do not end theirs would
hold files that nothing bounds. Here connections are accepted one by one, each gets its slot, then the handshake.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable, Sequence
from fcntl import ioctl
from struct import unpack
from termios import TIOCOUTQ
from typing import Any, Final, cast

import httptools
import structlog
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headgate.ingress.connections import Connections, ConnectionSlot
from headgate.observe.logs import Recurring
from headgate.observe.metrics import REQUESTS_REFUSED, TLS_HANDSHAKES_FAILED
from headgate_api.limits import (
    ACCEPT_PAUSE_S,
    FRONT_DRAIN_S_MAX,
    KEEP_ALIVE_S,
    PIPELINE_BYTES,
    REQUEST_HEAD_BYTES_MAX,
    REQUEST_HEAD_S_MAX,
    REQUEST_HEADERS_MAX,
    REQUEST_S_MAX,
    TLS_HANDSHAKE_S_MAX,
    TLS_SHUTDOWN_S_MAX,
    WRITE_STALLED_S_MAX,
)

_log = structlog.get_logger(__name__)


class WriteTimeoutProtocol(HttpToolsProtocol):
    """Breaks a connection off whose client takes nothing of an answer for WRITE_STALLED_S_MAX.

    A client that takes it slowly keeps it. An answer that fits into the sockets' buffers costs no timer.
    """

    _unread_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_answer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More of the answer waits than the client takes."""
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        """The client has taken nearly all of it."""
        self._unwatch_answer()
        super().resume_writing()

    def _watch_answer(self) -> None:
        self._unread_timer = self.loop.call_later(WRITE_STALLED_S_MAX, self._look_at_answer, self._waiting_bytes())

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
_HTTP2 = b"".join(
    [
        STATUS_LINE[505],
        b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(_WHY_NOT_HTTP2),
        _WHY_NOT_HTTP2,
    ]
)
"""What a client gets that begins with HTTP/2's preface. It is no HTTP/2 on purpose: after a GOAWAY with the reason
HTTP_1_1_REQUIRED gRPC's clients connect again and again until the call's deadline, after this they give up at once."""

CLIENT_CERTIFICATE: Final = "headgate.certificate"
"""Where a request's state holds the client's certificate as DER."""


class _HeldFlow(FlowControl):
    """When a connection is read; what reads a body would resume it at any time.

    While `is_held` nothing is to be read: there is enough that waits.
    """

    is_held = False

    def hold(self) -> None:
        """Read nothing, whoever wants to, until `is_held` is False again."""
        self.is_held = True
        self.pause_reading()

    def resume_reading(self) -> None:
        """Read on, where that is not held up."""
        if self.read_paused and not self.is_held:
            super().resume_reading()


class BoundedHttpProtocol(WriteTimeoutProtocol):
    """Answers 431 and closes when a request's head is over REQUEST_HEAD_BYTES_MAX or REQUEST_HEADERS_MAX.

    Answers 408 and closes when a head is not whole after REQUEST_HEAD_S_MAX, or a request after REQUEST_S_MAX. A
    request that comes in one read costs no timer. Bytes are counted as they arrive, so that bound is exact to one read
    of the socket.

    Of requests that a client sends before it has the answers to those before them, one is parsed ahead and the others
    stay unparsed, at most PIPELINE_BYTES of them parsed in one go, and nothing is read behind them: what nobody answers
    yet takes neither the time of others nor memory.

    What comes with a body and is no data of it (trailers, extensions of chunks) is dropped, and bounded like a head:
    from one piece of data to the next, or to the end.
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
        """Goes on with the slot of the handshake that comes before."""
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
        if len(data) <= PIPELINE_BYTES and not (self._behind or self.pipeline or self.transport.is_closing()):
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
            end = at + max(PIPELINE_BYTES, self._body_left())
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
        """Counts bytes that bring no data, and parses."""
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
            if self._bare_bytes > REQUEST_HEAD_BYTES_MAX:
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
        if len(self.headers) > REQUEST_HEADERS_MAX:
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
            self._timer = self.loop.call_later(REQUEST_HEAD_S_MAX, self._look)

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
        left_s = self._began_at + REQUEST_S_MAX - self.loop.time()
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
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FRONT_DRAIN_S_MAX,
    )


class TlsAcceptor:
    """Accepts connections on one socket and makes HTTP of those whose handshake succeeds. Belongs to an event loop."""

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
                await asyncio.sleep(ACCEPT_PAUSE_S)
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
                ssl_handshake_timeout=TLS_HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S_MAX,
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
