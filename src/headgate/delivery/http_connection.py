"""One HTTP/1.1 connection to a subscriber: a request at a time, its answer parsed as it comes (RFC 9112).

httptools (llhttp, the parser of Node.js) parses; what is here is what surrounds a parser: bounds, time, what ends a
body, and whether the connection may take another request.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from headgate.limits import ANSWER_HEAD_BYTES_MAX, ANSWER_HEADERS_MAX

Headers = list[tuple[bytes, bytes]]
_JOINED_BYTES_MAX: Final = 64 << 10
"""A larger body is not copied behind its head."""
_TIMER_S: Final = 0.001
"""What timers of event loops are exact to."""
_CLOSED: Final = "the connection was closed before the answer was whole"


class RequestFailedError(Exception):
    """There is no answer to a request.

    Args:
        reason: As of an `Outcome`: `refused`, `certificate`, `tls`, `connection`, `timeout` or `protocol`.
        detail: What happened.
        unsent: Whether there was no connection to send by.
        left_s: Seconds that are left for the same request by a new connection; 0 where none may be tried.
    """

    def __init__(self, reason: str, detail: str, *, unsent: bool = False, left_s: float = 0.0) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.unsent = unsent
        self.left_s = left_s


class AnswerSink(Protocol):
    """Takes an answer as it comes."""

    def begin(self, status: int, headers: Headers) -> None:
        """Status and header lines, names as they were sent."""

    def add(self, piece: bytes) -> bool:
        """A piece of the body; False when no more of it is wanted, and the connection is not used again."""


class HttpConnection(asyncio.Protocol):
    """A connection that a pool has opened.

    Args:
        released: Called when the connection may take another request.
        opened: Holds it while it is open.

    Attributes:
        idle_since_s: Loop time at which the last answer was whole; 0 before the first one.
    """

    __slots__ = (
        "_answer",
        "_bare_bytes",
        "_done",
        "_ends_by_close",
        "_ends_s",
        "_fires_s",
        "_headers",
        "_in_body",
        "_is_large_by_tls",
        "_loop",
        "_opened",
        "_parser",
        "_released",
        "_timeout_s",
        "_timer",
        "_transport",
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
        self.idle_since_s = 0.0

    def send(self, head: bytes, body: bytes, answer: AnswerSink, timeout_s: float) -> asyncio.Future[None]:
        """Sends a request. Who stops to wait for the future calls `break_off`.

        Args:
            head: Request line and header lines, with the empty line.
            body: As long as the head says.
            answer: Takes what comes.
            timeout_s: From now to the answer's end.

        Returns:
            Done when the answer is whole, or no more of it is wanted; holds a RequestFailedError when there is no whole
            answer, and the connection is closed.
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
        """Whether a request may be sent here, as far as is known.

        Args:
            probed: Ask the system too: what the peer did meanwhile may not have been heard yet.
        """
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
        """The connection stands, TLS included."""
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
        """A piece of the body."""
        self._bare_bytes = 0
        if self._answer is not None and not self._answer.add(body):
            self._finish()
            self._transport.abort()

    def on_message_complete(self) -> None:
        """The answer is whole."""
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
