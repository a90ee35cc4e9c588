"""HTTP/1.1 connections to subscribers: opened when there is none, a request at a time, kept a while for the next one.

httptools parses; what is here surrounds a parser (RFC 9112): bounds, time, what ends a body, what may be used again.
"""

from __future__ import annotations

import asyncio
import os
import select
import ssl
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

import httptools

from headgate.objects.kinds.credentials import ClientTls, CredentialsError
from headgate_api.limits import ANSWER_HEAD_BYTES_MAX, ANSWER_HEADERS_MAX, ROUTES_KEPT_MAX

Headers = list[tuple[bytes, bytes]]
_JOINED_BYTES_MAX: Final = 64 << 10
"""A larger body is not copied behind its head."""
_TIMER_S: Final = 0.001
"""What timers of event loops are exact to."""
_CLOSED: Final = "the connection was closed before the answer was whole"


class RequestFailedError(Exception):
    """There is no answer to a request; `reason` is that of an `Outcome`."""

    def __init__(self, reason: str, detail: str, *, unsent: bool = False, left_s: float = 0.0) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.unsent = unsent  # there was no connection to send by
        self.left_s = left_s  # for the same request by a new connection; 0 where none may be tried


class AnswerSink(Protocol):
    """Takes an answer as it comes."""

    def begin(self, status: int, headers: Headers) -> None:
        """Status and header lines, names as they were sent."""

    def add(self, piece: bytes) -> bool:
        """A piece of the body; False when no more of it is wanted, and the connection is not used again."""


class HttpConnection(asyncio.Protocol):
    """A connection that a pool has opened; it calls `released` when it may take another request."""

    __slots__ = (  # a thousand are in use at a time
        *("_answer", "_bare_bytes", "_done", "_ends_by_close", "_ends_s", "_fires_s", "_headers", "_in_body"),
        *("_is_large_by_tls", "_loop", "_opened", "_parser", "_released", "_timeout_s", "_timer", "_transport"),
        "idle_since_s",
    )

    def __init__(self, released: Callable[[HttpConnection], None], opened: set[HttpConnection]) -> None:
        self._released = released
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        # A folded line and a bare LF are taken as RFC 9112, 5.2 and 2.2, say it. Then values may hold control
        # characters, too: who needs a value looks at it.
        self._parser.set_dangerous_leniencies(lenient_headers=True, lenient_optional_cr_before_lf=True)
        self._answer: AnswerSink | None = None
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._headers: Headers = []
        self._timer: asyncio.TimerHandle | None = None
        self._fires_s = 0.0
        self.idle_since_s = 0.0  # loop time at which the last answer was whole; 0 before the first one

    def send(self, head: bytes, body: bytes, answer: AnswerSink, timeout_s: float) -> asyncio.Future[None]:
        """Sends a request; `head` ends with the empty line, `timeout_s` is from now to the answer's end.

        The future is done when the answer is whole or no more of it is wanted; it holds a RequestFailedError when there
        is no whole answer, and the connection is closed. Who stops to wait for it calls `break_off`.
        """
        self._answer = answer
        self._bare_bytes = 0
        self._in_body = False
        is_large = len(body) > _JOINED_BYTES_MAX
        self._is_large_by_tls = is_large and self._transport.get_extra_info("ssl_object") is not None
        done = self._done = self._loop.create_future()
        self._timeout_s = timeout_s
        self._ends_s = self._loop.time() + timeout_s
        if self._timer is None or self._fires_s > self._ends_s:
            self._wait(timeout_s)
        if is_large:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)
        return done

    def break_off(self, done: asyncio.Future[None]) -> None:
        """Nobody waits for a request's answer any more: closes the connection if it has not come."""
        if self._done is done and self._answer is not None:
            self._answer = None
            self._transport.abort()

    def is_usable(self, probed: bool) -> bool:
        """Whether a request may be sent here; `probed` asks the system what the peer did that is not heard yet."""
        if self._transport.is_closing():
            return False
        if not probed:
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Closes it at once; a request that is under way fails."""
        self._transport.abort()

    # --- asyncio's side -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._opened.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed; some bodies end by that."""
        if self._answer is not None:
            if exc is None and self._in_body and self._ends_by_close:
                self._finish()
            else:
                is_unheard = self.idle_since_s > 0 and not (self._bare_bytes or self._in_body)
                left_s = self._ends_s - self._loop.time() if is_unheard else 0.0
                self._fail("connection", f"{_CLOSED}: {exc}" if exc is not None else _CLOSED, left_s)
        if self._timer is not None:
            self._timer.cancel()
        del self._parser  # which refers to this
        self._opened.discard(self)

    def eof_received(self) -> None:
        """The peer sends nothing more: what is left of the request would be sent for as long as the peer likes."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parses; bytes that bring nothing of a body are bounded, exact to one read."""
        if self._answer is None:
            self._transport.abort()  # nobody asked: no later answer could be told from this
            return
        self._bare_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("protocol", "the answer changes to another protocol")
        except httptools.HttpParserError as error:
            self._fail("protocol", f"the answer is not HTTP: {error}")
        else:
            if self._bare_bytes > ANSWER_HEAD_BYTES_MAX:
                self._fail("protocol", f"the answer's headers are over {ANSWER_HEAD_BYTES_MAX} bytes")

    # --- the parser's side ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins; to no request when it comes right behind another one."""
        if self._answer is None:
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line, or a trailer, which nobody reads."""
        if self._in_body:
            return
        self._headers.append((name, value))
        if len(self._headers) > ANSWER_HEADERS_MAX:
            self._fail("protocol", f"the answer has more than {ANSWER_HEADERS_MAX} headers")

    def on_headers_complete(self) -> None:
        """The head is whole; that of an interim answer (1xx) counts for nothing."""
        headers, self._headers = self._headers, []
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None:
            return
        self._in_body = True
        self._ends_by_close = _ends_by_close(headers)
        self._answer.begin(status, headers)

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        if self._answer is not None and not self._answer.add(body):
            self._finish()
            self._transport.abort()

    def on_message_complete(self) -> None:
        if not self._in_body or self._answer is None:
            return
        self._finish()
        if self._transport.get_write_buffer_size() or (self._is_large_by_tls and self._parser.get_status_code() >= 300):
            # The answer came before the whole request was sent, which nobody reads any more. TLS does not say how much
            # of a large one is unsent: who refuses one may have done so without reading it.
            self._transport.abort()
        elif self._parser.should_keep_alive():
            self.idle_since_s = self._loop.time()
            self._released(self)
        else:
            self._transport.abort()  # `close` would wait for TLS: the peer could keep the socket for half a minute

    # --- inside ---------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._answer = None
        self._in_body = False
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, reason: str, detail: str, left_s: float = 0.0) -> None:
        if self._answer is None:
            return
        self._answer = None
        self._transport.abort()
        if not self._done.done():
            self._done.set_exception(RequestFailedError(reason, detail, left_s=left_s))

    def _wait(self, left_s: float) -> None:
        """One timer for many requests, as most end early: making and breaking off one for each costs as a write."""
        if self._timer is not None:
            self._timer.cancel()
        self._fires_s = self._loop.time() + left_s
        self._timer = self._loop.call_later(left_s, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        if self._answer is None:
            return
        left_s = self._ends_s - self._loop.time()
        if left_s >= _TIMER_S:
            self._wait(left_s)
        else:
            self._fail("timeout", f"no whole answer within {self._timeout_s:.3g} s")


def _ends_by_close(headers: Headers) -> bool:
    """Whether a body goes on until the connection is closed: no length, and not in chunks (RFC 9112, section 6.3)."""
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-length" or (lower == b"transfer-encoding" and b"chunked" in value.lower()):
            return False
    return True


IDLE_CONNECTION_S: Final = 4.0
"""Shorter than the 5 s after which Node.js and uvicorn close one: a POST into a closing connection is sent twice."""
_PROBED_AFTER_S: Final = 0.5
"""A connection that was idle for longer is looked at before it is used: no server closes one earlier."""
_SWEEP_S: Final = 1.0
_UNKNOWN_CA: Final = frozenset(
    {
        "certificate signature failure",
        "self-signed certificate",
        "self-signed certificate in certificate chain",
        "unable to get local issuer certificate",
        "unable to verify the first certificate",
    }
)
"""OpenSSL's words for a certificate whose CA it does not know."""


@dataclass(slots=True, eq=False)
class ConnectionPool:
    """Connections to one address."""

    _pools: ConnectionPools
    _host: str
    _port: int
    _tls: ssl.SSLContext | None  # None for plain HTTP
    _server_name: str  # what the certificate must bear
    _idle: list[HttpConnection] = field(default_factory=list)

    async def send(self, head: bytes, body: bytes, answer: AnswerSink, timeout_s: float, connect_s: float) -> None:
        """Sends a request; `timeout_s` is for all of it. Raises RequestFailedError when there is no whole answer.

        A kept connection that ends before a byte of an answer was most likely closed by the peer before it had read the
        request: the same request goes at once into a new one.
        """
        connection = self._take()
        while True:  # twice at most: a new connection is not kept
            if connection is None:
                began_s = self._pools.loop.time()
                connection = await self._connect(min(connect_s, timeout_s))
                timeout_s = max(0.0, timeout_s - (self._pools.loop.time() - began_s))
            done = connection.send(head, body, answer, timeout_s)
            try:
                await done
                return
            except RequestFailedError as error:
                if error.left_s <= 0:
                    raise
                connection, timeout_s = None, error.left_s
            finally:
                if done.cancelled() and connection is not None:
                    connection.break_off(done)

    def close_idle(self, until_s: float) -> bool:
        """Closes connections that are idle since a loop time or longer; returns whether some are left."""
        kept = []
        for connection in self._idle:
            if connection.idle_since_s <= until_s:
                connection.close()
            else:
                kept.append(connection)
        self._idle = kept
        return bool(kept)

    def _take(self) -> HttpConnection | None:
        """The connection that was used last: those that are not needed grow old."""
        while self._idle:
            connection = self._idle.pop()
            idle_s = self._pools.loop.time() - connection.idle_since_s
            if idle_s < IDLE_CONNECTION_S and connection.is_usable(probed=idle_s > _PROBED_AFTER_S):
                return connection
            connection.close()
        return None

    async def _connect(self, timeout_s: float) -> HttpConnection:
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await self._pools.loop.create_connection(
                    self._made, self._host, self._port, ssl=self._tls, server_hostname=self._server_name or None
                )
        except TimeoutError:
            raise RequestFailedError("timeout", f"no connection within {timeout_s:.3g} s", unsent=True) from None
        except OSError as error:  # and what TLS refuses
            raise RequestFailedError(*_told(error), unsent=True) from None
        return connection

    def _made(self) -> HttpConnection:
        return HttpConnection(self._release, self._pools.opened)

    def _release(self, connection: HttpConnection) -> None:
        """Keeps as many as were in use, ATTEMPTS_MAX of all pools at most: to close and open them is dearer."""
        self._idle.append(connection)
        self._pools.has_idle(self)


class ConnectionPools:
    """The pools of all addresses. Lives on one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.opened: set[HttpConnection] = set()
        self._pools: OrderedDict[tuple[str, int, str, ssl.SSLContext | None], ConnectionPool] = OrderedDict()
        self._with_idle: set[ConnectionPool] = set()
        self._timer: asyncio.TimerHandle | None = None

    def pool(self, host: str, port: int, tls: ssl.SSLContext | None = None, server_name: str = "") -> ConnectionPool:
        """The pool of an address; one that was forgotten meanwhile works on for who has it."""
        key = (host, port, server_name, tls)
        found = self._pools.get(key)
        if found is None:
            found = self._pools[key] = ConnectionPool(self, host, port, tls, server_name)
            if len(self._pools) > ROUTES_KEPT_MAX:
                self._pools.popitem(last=False)
        else:
            self._pools.move_to_end(key)
        return found

    def has_idle(self, pool: ConnectionPool) -> None:
        self._with_idle.add(pool)
        if self._timer is None:
            self._timer = self.loop.call_later(_SWEEP_S, self._sweep)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.opened):
            connection.close()

    def _sweep(self) -> None:
        until_s = self.loop.time() - IDLE_CONNECTION_S
        self._with_idle = {pool for pool in self._with_idle if pool.close_idle(until_s)}
        self._timer = self.loop.call_later(_SWEEP_S, self._sweep) if self._with_idle else None


def _told(error: OSError) -> tuple[str, str]:
    """Why there is no connection: reason and detail of an `Outcome`. OpenSSL's words name lines of its source."""
    words = f"no connection: {error.strerror or error}"
    match error:
        case ConnectionRefusedError():
            return "refused", words
        case ssl.SSLCertVerificationError(verify_message=why):
            hint = "; if you trust its CA, give it as CACerts" if why in _UNKNOWN_CA else ""
            return "certificate", f"no connection: {why}{hint}"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE"):
            return "tls", "no connection: the host does not answer in TLS; is the URL one of http?"
        case ssl.SSLError():
            return "tls", words
        case _:
            return "connection", words


def tls_context(tls: ClientTls | None) -> ssl.SSLContext:
    """What TLS trusts and shows: the system's CAs, and what is given. Blocks for some ms; raises CredentialsError."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a CA that is no root may be trusted, too
    context.set_alpn_protocols(["http/1.1"])
    if tls is None:
        return context
    try:
        if tls.ca_certs:
            context.load_verify_locations(cadata=tls.ca_certs)
        if tls.identity:
            with _file_of(tls.identity) as path:
                context.load_cert_chain(path)
    except (OSError, ValueError):  # what it says may quote a key
        what = "certificate and key" if tls.identity else "CA certificates"
        raise CredentialsError("CertificateUnusable", f"TLS cannot use the {what}") from None
    return context


@contextmanager
def _file_of(identity: str) -> Iterator[str]:
    """A path with certificate and key, which OpenSSL takes from files alone: in memory where the system can."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("identity")
        try:
            os.write(descriptor, identity.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:  # for its owner alone
        file.write(identity.encode())
        file.flush()
        yield file.name
