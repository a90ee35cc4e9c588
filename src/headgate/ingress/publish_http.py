"""The publish URI `/{namespace}/{broker}` as a raw ASGI application.

Every event of every producer passes here, so a request that is accepted makes as few objects as possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.auth.context import ENTRY, USER, shows_token
from headgate.auth.event_policies import EventForbiddenError
from headgate.auth.user import ANONYMOUS
from headgate.event.hops import HOPS_HEADER, NO_LINEAGE, REPLY_HEADER, ROOT_HEADER, Lineage, outside_root
from headgate.event.trace import TRACEPARENT, TRACESTATE, context
from headgate.ingress.errors import HeadersTooLargeError, MethodNotAllowedError, TooManyHopsError, send_problem
from headgate.ingress.intake import NO_TRACE, Intake, count_refusal
from headgate.ingress.partitions import NEW, Stored
from headgate.ingress.publish_quota import PublishQuotaError, delay_refusal
from headgate.objects.kinds.egress import published_broker
from headgate.objects.kinds.specs import ServedBroker
from headgate.shares import FairPlaces
from headgate_api import limits
from headgate_api.errors import EventTooLargeError, HeadgateError, InvalidInputError
from headgate_api.event.http import BATCH_JSON, decode_request
from headgate_api.event.json_text import is_light
from headgate_api.event.names import namespace_of

_ALLOW: Final = (b"allow", b"POST, OPTIONS")
_EMPTY: Final = (b"content-length", b"0")
_CLOSE: Final = (b"connection", b"close")
_ACCEPTED: Final[Message] = {"type": "http.response.start", "status": 202, "headers": [_EMPTY]}
_NO_BODY: Final[Message] = {"type": "http.response.body", "body": b""}
_HOPS: Final = HOPS_HEADER.encode()
_ROOT: Final = ROOT_HEADER.encode()
_REPLY: Final = REPLY_HEADER.encode()
_ROOT_TEXT: Final = re.compile(rb"[!-~]{1,%d}" % limits.ROOT_CHARS_MAX)
_TRACEPARENT: Final = TRACEPARENT.encode()
_TRACESTATE: Final = TRACESTATE.encode()
_CONTENT_LENGTH: Final = b"content-length"
_CONTENT_TYPE: Final = b"content-type"
_BODIES: Final = "bodies"
_BATCH_PREFIX: Final = BATCH_JSON.encode()
_READ: Final = frozenset([_CONTENT_LENGTH, _CONTENT_TYPE, _HOPS, _REPLY, _ROOT, _TRACEPARENT, _TRACESTATE])
"""Headers that are read before the event is decoded."""

Headers = Sequence[tuple[bytes, bytes]]


class Ingress:
    """Accepts events: 202 means that they are on disk.

    A batch is accepted or refused whole. Only when its events have keys of several partitions can a failing disk leave
    a part of it stored: the answer is 503 then, and the producer's retry stores the whole. `fallback` takes every
    request that is not for a publish URI. The server's own deliveries show the `token`; empty: none are its own.
    """

    def __init__(self, intake: Intake, fallback: ASGIApp, token: bytes = b"") -> None:
        self._intake = intake
        self._fallback = fallback
        self._token = token
        self._bodies = FairPlaces(_BODIES, "BODIES_READING_BYTES_MAX", limits.BODIES_READING_BYTES_MAX, "bytes")
        """Those that come in pieces, until they are there."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            broker = published_broker(scope["path"])
            if broker:
                await self._answer(broker, scope, receive, send)
                return
        await self._fallback(scope, receive, send)

    async def _answer(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = self._intake.clock_s()
        headers: Headers = scope["headers"]
        try:
            broker = self._intake.broker(path)
            if scope["method"] != "POST":
                await self._answer_other(scope["method"], headers, send)
                return
            stored = await self._publish(broker, scope, receive, started_s)
        except PublishQuotaError as error:
            refused = error.with_traceback(None)  # which holds the body
        except HeadgateError as error:
            if isinstance(error, EventForbiddenError) and ENTRY in scope:
                scope[ENTRY].refused(error.message)
            await _refuse(error, send)
            return
        else:
            if stored is not None:
                await send(_ACCEPTED if stored is NEW else _accepted(stored))
                await send(_NO_BODY)
            return
        await delay_refusal()
        await _refuse(refused, send)

    async def _publish(self, broker: ServedBroker, scope: Scope, receive: Receive, started_s: float) -> Stored | None:
        """Reads, checks and stores the events of a request; None when the client left before it had sent them."""
        headers: Headers = scope["headers"]
        head_bytes = 0
        known: dict[bytes, bytes] = {}
        for name, value in headers:
            head_bytes += len(name) + len(value)
            if name in _READ:
                known[name] = value
        if head_bytes > limits.REQUEST_HEAD_BYTES_MAX:
            raise HeadersTooLargeError(f"the headers must not be larger than {limits.REQUEST_HEAD_BYTES_MAX} bytes")
        is_batch = known.get(_CONTENT_TYPE, b"")[: len(_BATCH_PREFIX)].lower() == _BATCH_PREFIX
        limit_bytes = limits.BATCH_BYTES_MAX if is_batch else limits.EVENT_BYTES_MAX
        declared = known.get(_CONTENT_LENGTH, b"")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > limit_bytes):
            _refuse_size(limit_bytes)
        self._intake.check_quota(broker)  # before anything of the body is waited for
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body: bytes | None = message.get("body", b"")
        if message.get("more_body", False):
            namespace, sender = namespace_of(broker.identity), scope.get(USER, ANONYMOUS).name
            with self._bodies.held(namespace, sender, len(body or b"")) as grow:
                body = await _read_on(body or b"", receive, limit_bytes, grow)
        if body is None:
            return None
        if len(body) > limit_bytes:
            _refuse_size(limit_bytes)
        self._intake.check_quota(broker)
        if is_light(body):
            events = decode_request(headers, body)
        else:
            sender = scope.get(USER, ANONYMOUS).name
            decode = partial(decode_request, headers, body)
            events = await self._intake.decoded(broker, sender, decode, len(body))
        if events:
            if self._intake.knows_senders:
                user = scope.get(USER, ANONYMOUS)
                await self._intake.admit(broker, events, user, is_reply=_REPLY in known)
            return await self._intake.store(
                broker,
                events,
                head_bytes + len(body),
                started_s=started_s,
                lineage=self._lineage(broker, scope, known) if known.get(_HOPS) else NO_LINEAGE,
                trace=_trace(known) if _TRACEPARENT in known else NO_TRACE,
            )
        return NEW

    def _lineage(self, broker: ServedBroker, scope: Scope, known: Mapping[bytes, bytes]) -> Lineage:
        root = known.get(_ROOT, b"")
        if root and not _ROOT_TEXT.fullmatch(root):
            raise InvalidInputError(f"the header {ROOT_HEADER} must be 1 to {limits.ROOT_CHARS_MAX} visible characters")
        hops = _hops(known[_HOPS])
        if not hops:
            return NO_LINEAGE
        if not root or shows_token(scope["headers"], self._token):
            return Lineage(hops, root.decode())
        sender = scope.get(USER, ANONYMOUS).name
        return Lineage(hops, outside_root(root.decode(), sender, namespace_of(broker.identity)))

    async def _answer_other(self, method: str, headers: Headers, send: Send) -> None:
        """Answers what is not POST: OPTIONS is CloudEvents' webhook handshake, everything else is refused."""
        if method != "OPTIONS":
            raise MethodNotAllowedError(
                f"{method} is not allowed on a publish URI", hint="POST a CloudEvent, or ask with OPTIONS"
            )
        answer = [_ALLOW, _EMPTY]
        for name, value in headers:
            if name == b"webhook-request-origin":
                answer += [(b"webhook-allowed-origin", value), (b"webhook-allowed-rate", b"*")]
                break
        await send({"type": "http.response.start", "status": 200, "headers": answer})
        await send(_NO_BODY)


async def _read_on(first: bytes, receive: Receive, limit_bytes: int, grow: Callable[[int], None]) -> bytes | None:
    """Reads a body that comes in pieces, each of which needs room; None when the client leaves before its end."""
    pieces = [first]
    size_bytes = len(first)
    while True:
        if size_bytes > limit_bytes:
            _refuse_size(limit_bytes)
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        pieces.append(piece)
        size_bytes += len(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)  # which is no longer under way
        grow(len(piece))


def _hops(value: bytes) -> int:
    """The hop count that another broker's delivery, or a reply, came with."""
    if not value.isdigit() or len(value) > 9:
        raise InvalidInputError(f"the header {HOPS_HEADER} must be a number")
    hops = int(value)
    if hops > limits.HOPS_MAX:
        raise TooManyHopsError(
            f"the event has been through {hops - 1} brokers one after the other, more than {limits.HOPS_MAX - 1}",
            hint="two triggers send each other's events in a circle: change one filter",
        )
    return hops


def _trace(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return context(headers[_TRACEPARENT].decode("latin-1"), headers.get(_TRACESTATE, b"").decode("latin-1"))


def _accepted(stored: Stored) -> Message:
    """The answer of a broker that stores events once: where the event is, or how many were there before."""
    headers = [_EMPTY, (b"headgate-duplicates", b"%d" % stored.before)]
    if stored.place is not None:
        headers.append((b"headgate-position", b"%d:%d" % stored.place))
    return {"type": "http.response.start", "status": 202, "headers": headers}


def _refuse_size(limit_bytes: int) -> NoReturn:
    raise EventTooLargeError(f"the body must not be larger than {limit_bytes} bytes")


async def _refuse(error: HeadgateError, send: Send) -> None:
    headers = [_ALLOW] if error.http_status == 405 else []
    if error.http_status in (413, 431) or error.code == _BODIES:
        headers.append(_CLOSE)  # the rest of the body is not read
    count_refusal(error)
    await send_problem(send, error, *headers)
