"""One HTTP POST to a subscriber: no redirects, no proxies, bounded in time and bytes.

Nothing is decompressed: requests ask for answers as they are, and of an answer in another coding the body counts for
nothing. Why the client is our own: docs/adr/0030-deliveries-have-an-http-client-of-their-own.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol

from headgate.delivery.http_connections import ConnectionPools, Headers, RequestFailedError
from headgate.delivery.resolver import Hop, Resolve, Routes
from headgate.delivery.retry import RETRY_AFTER_STATUSES, Answer, Outcome
from headgate.objects.kinds.credentials import ClientTls
from headgate.objects.kinds.egress import UrlPolicy
from headgate_api import limits

RequestHeaders = Sequence[tuple[str, str]]
_LOCAL: Final = UrlPolicy()
_USER_AGENT: Final = "headgate"
_LATE: Final = Outcome(0, "timeout", "no time was left after the name was resolved")
_REPLIES_OVERLOAD: Final = Outcome(200, "reply-overload", "too many replies are being received at the same time")
_REPLY_TOO_LARGE: Final = Outcome(200, "reply-malformed", f"the reply is over {limits.RESPONSE_BYTES_MAX} bytes")
_FIXED_LINES: Final = 5
"""Of a head: the request line, host, accept, accept-encoding, content-length."""
_UNREADABLE: Final = Outcome(200, "reply-malformed", "a header of the reply's event is no text in ASCII")
_CODINGS: Final = {b"content-encoding": (b"", b"identity"), b"transfer-encoding": (b"", b"chunked")}
"""Headers that say how a body is coded, with what leaves it as it is."""
_CODING_CHARS_MAX: Final = 32
_HEADER_BREAKS: Final = Outcome(0, "url", "a header has a character that would end it")
_TAKEN: Final = {status: Outcome(status) for status in range(200, 300)}


@dataclass(frozen=True, slots=True)
class PostOptions:
    """What few requests need."""

    tls: ClientTls | None = None  # what the client trusts and shows; None for the system's CAs alone
    kept_bytes: int = 0  # how much of the body of a 2xx is kept
    method: str = "POST"  # of the request; anything but POST is no delivery, and its answer no event
    kept_headers: tuple[str, ...] = ()  # names of headers of the answer that are kept, in lower case


_NO_OPTIONS: Final = PostOptions()


class Transport(Protocol):
    """What deliveries need of an HTTP client."""

    async def post(
        self, url: str, headers: RequestHeaders, body: bytes, timeout_s: float, options: PostOptions | None = None
    ) -> Outcome:
        """One attempt; never raises for what the subscriber or the network does."""


class HttpTransport:
    """The HTTP client of all deliveries; an async context manager. Without `resolve` the system resolves names."""

    def __init__(self, policy: UrlPolicy = _LOCAL, resolve: Resolve | None = None) -> None:
        self._replies_bytes = 0
        self._policy = policy
        self._resolve = resolve

    async def __aenter__(self) -> HttpTransport:
        self._clock = asyncio.get_running_loop().time
        self._pools = ConnectionPools()
        self._routes = Routes(self._policy, self._pools, self._resolve)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._routes.close()
        self._pools.close()

    async def post(
        self, url: str, headers: RequestHeaders, body: bytes, timeout_s: float, options: PostOptions | None = None
    ) -> Outcome:
        """One attempt; `timeout_s` is for all of it: name, connection, sending, the answer's last byte.

        Of a body is kept what somebody needs, the rest is read and dropped; over RESPONSE_BYTES_MAX it is cut off.
        """
        clock = self._clock
        ends, left_s = clock() + timeout_s, timeout_s
        chosen = options or _NO_OPTIONS
        route = self._routes.known(url, chosen.tls)
        if route is None:
            route = await self._routes.find(url, timeout_s, chosen.tls)
            left_s = ends - clock()
        if route.refusal is not None:
            return route.refusal
        outcome = _LATE
        hops = tuple(route.hops)
        for number, hop in enumerate(hops):
            if left_s <= 0:
                break
            # An address that is silent leaves each of the others its part of the time.
            connect_s = min(left_s, limits.CONNECT_S_MAX) / (len(hops) - number)
            outcome = await self._try(hop, headers, body, left_s, connect_s, chosen)
            # Where an address gave no connection the next one may take it.
            if not outcome.unsent:
                route.prefer(hop)
                break
            left_s = ends - clock()
        return outcome

    async def _try(
        self, hop: Hop, headers: RequestHeaders, body: bytes, timeout_s: float, connect_s: float, options: PostOptions
    ) -> Outcome:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = f"{options.method}{hop.head}content-length: {len(body)}\r\n{lines}"
        count = len(headers) + _FIXED_LINES
        if head.count("\n") != count or head.count("\r") != count or "\0" in head:
            return _HEADER_BREAKS
        if "\nuser-agent: " not in head:
            head += f"user-agent: {_USER_AGENT}\r\n"
        answer = _Answer(self, options)
        try:
            await hop.pool.send(f"{head}\r\n".encode(), body, answer, timeout_s, connect_s)
        except RequestFailedError as error:
            return Outcome(0, error.reason, _shortened(error.detail), unsent=error.unsent)
        finally:
            self._replies_bytes -= answer.reply_bytes
        return answer.outcome()

    def takes_more(self, size: int) -> bool:
        """Counts bytes of a reply that is being received; False when all of them take too much memory together."""
        self._replies_bytes += size
        return self._replies_bytes <= limits.REPLIES_READING_BYTES_MAX


class _Answer:
    __slots__ = (
        *("_body", "_headers", "_is_reply", "_kept", "_options", "_size", "_status", "_transport", "_wrong"),
        "reply_bytes",
    )

    def __init__(self, transport: HttpTransport, options: PostOptions) -> None:
        self._transport = transport
        self._options = options
        self._kept = options.kept_bytes
        self._body = bytearray()  # pieces of a byte or two would take twenty times their length
        self._size = self.reply_bytes = 0
        self._is_reply = False
        self._wrong: Outcome | None = None

    def begin(self, status: int, headers: Headers) -> None:
        self._status = status
        self._headers = headers
        if status == 200:
            self._is_reply = self._options.method == "POST" and _is_event(headers)
        if self._is_reply:
            self._kept = limits.RESPONSE_BYTES_MAX
        elif not 200 <= status < 300:
            self._kept = max(self._kept, limits.ERROR_BODY_BYTES_MAX)
        if self._kept and (coding := _coding_of(headers)):
            self._kept = 0
            detail = f"the body has the coding {coding}, and the request asked for identity"
            if self._is_reply:
                self._wrong = Outcome(200, "reply-malformed", detail)
            elif 200 <= status < 300:
                self._wrong = Outcome(status, "protocol", detail)
            else:
                self._body += detail.encode()

    def add(self, piece: bytes) -> bool:
        if self._size < self._kept:
            self._body += piece[: self._kept - self._size]
        self._size += len(piece)
        if self._is_reply:
            self.reply_bytes += len(piece)
            if not self._transport.takes_more(len(piece)):
                self._wrong = _REPLIES_OVERLOAD
                return False
        if self._size > limits.RESPONSE_BYTES_MAX:
            self._wrong = _REPLY_TOO_LARGE if self._is_reply else self._wrong
            return False
        return True

    def outcome(self) -> Outcome:
        if self._is_reply:
            headers = _event_headers(self._headers)
            if headers is None:
                return _UNREADABLE
            return self._wrong or Outcome(200, reply=Answer(headers, bytes(self._body)))
        status = self._status
        if self._wrong is not None:
            return self._wrong
        if self._options.kept_headers:
            found = ((name, _text(self._headers, name.encode())) for name in self._options.kept_headers)
            return Outcome(status, headers=tuple((name, text) for name, text in found if text))
        if not (self._kept or self._body):
            return _TAKEN.get(status) or Outcome(status)
        asked = _text(self._headers, b"retry-after") if status in RETRY_AFTER_STATUSES else ""
        return Outcome(status, retry_after=asked, body=bytes(self._body))


def _is_event(headers: Headers) -> bool:
    """Whether an answer says that it is an event: by a header that begins with ce-, or a CloudEvents media type."""
    for name, value in headers:
        if name[:3].lower() == b"ce-":
            return True
        if name.lower() == b"content-type" and value.lower().startswith(b"application/cloudevents"):
            return True
    return False


def _event_headers(headers: Headers) -> list[tuple[str, str]] | None:
    """An event's own headers, the content type at the end; None when one is no text (ASCII). Others are not judged."""
    found: list[tuple[str, str]] = []
    content_type: list[tuple[str, str]] = []
    for name, raw in headers:
        lower = name.lower()
        is_attribute = lower.startswith(b"ce-")
        if not is_attribute and (content_type or lower != b"content-type"):
            continue
        value = raw.replace(b"\t", b" ")  # which is how a folded line may go on
        if not value.isascii() or not value.decode().isprintable():
            return None
        (found if is_attribute else content_type).append((lower.decode("ascii"), value.decode()))
    return found + content_type


def _coding_of(headers: Headers) -> str:
    """How a body is coded, for people; empty when it is as it is."""
    for name, value in headers:
        known = _CODINGS.get(name.lower())
        if known is not None:
            for coding in value.lower().split(b","):
                if coding.strip() not in known:
                    return repr(coding.strip()[:_CODING_CHARS_MAX].decode("latin-1"))
    return ""


def _text(headers: Headers, name: bytes) -> str:
    """A header's first value; empty when it is not there, or is no text (ASCII)."""
    for found, value in headers:
        if found.lower() == name:
            return value.decode("ascii") if value.isascii() else ""
    return ""


def _shortened(detail: str) -> str:
    most = limits.ATTEMPT_DETAIL_CHARS_MAX
    return detail if len(detail) <= most else f"{detail[:most]}..."
