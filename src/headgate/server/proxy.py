"""Requests that another process of this server answers: passed on over its Unix socket, the answer as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from headgate.auth.context import USER, USER_HEADER, header_of
from headgate.auth.user import ANONYMOUS
from headgate.control.http import while_connected
from headgate.server.local_http import BrokenAnswerError, Header, LocalResponse, PeerAddress, requested
from headgate_api.errors import TooLargeError, UnavailableError
from headgate_api.limits import APPLY_BYTES_MAX, OBJECT_BYTES_MAX, SECRET_BODY_BYTES_MAX

FORWARDED: Final = b"headgate-forwarded"
"""A header that says that another server of the deployment has passed the request on, to the one that leads."""
_PASSED_ON: Final = frozenset(
    {b"accept", b"content-type", b"if-none-match", b"last-event-id", b"user-agent", FORWARDED}
)
_LARGER: Final = (
    (re.compile(rb"/api/v1/namespaces/[^/]+/secrets(/[^/]+)?"), SECRET_BODY_BYTES_MAX),
    (re.compile(rb"/apis/headgate\.dev/v1/namespaces/[^/]+/(trigger|subscription)applies"), APPLY_BYTES_MAX),
)
"""The paths of what may be larger than an object."""
_OF_THE_CONNECTION: Final = frozenset({b"connection", b"transfer-encoding", b"date", b"server"})


class PartUnavailableError(UnavailableError):
    """The process that would answer is not there."""

    code = "part-unavailable"

    def __init__(self) -> None:
        super().__init__("there is no answer now", hint="try again in a few seconds")


class ProcessProxy:
    """An ASGI application that passes requests on, their bodies as a whole.

    `shown` has the headers by which the other process may ask further servers for the client; None for none.
    """

    def __init__(self, socket: Path, shown: Callable[[Scope], Sequence[Header] | None] = lambda _: None) -> None:
        self._socket = socket
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await whole_request(scope, receive)
        if request is not None:
            user = scope.get(USER, ANONYMOUS)
            more = (*(self._shown(scope) or ()), *(() if user is ANONYMOUS else ((USER_HEADER, header_of(user)),)))
            await pass_on(self._socket, replace(request, headers=(*request.headers, *more)), receive, send)


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
    bytes_max = next((most for paths, most in _LARGER if paths.fullmatch(path)), OBJECT_BYTES_MAX)
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > bytes_max:
                raise TooLargeError(f"the body is over {bytes_max} bytes")
    except ClientDisconnect:  # it has died: nobody waits for an answer
        return None
    target = path + b"?" + scope["query_string"] if scope["query_string"] else path
    headers = tuple((name, value) for name, value in scope["headers"] if name in _PASSED_ON)
    return WholeRequest(request.method.encode(), target, headers, bytes(body))


async def pass_on(
    place: Path | PeerAddress,
    request: WholeRequest,
    receive: Receive,
    send: Send,
    before: Callable[[LocalResponse], Awaitable[object]] | None = None,
    patience_s: float | None = None,
) -> None:
    """Asks another process, and passes its answer on as it comes; ends when the client or the other process does.

    `before` is awaited when the answer's head has come, for which it waits `patience_s`; None: as long as the client.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            call = requested(place, request.method, request.target, request.body, request.headers)
            response = await stack.enter_async_context(call)
        except OSError as error:
            raise PartUnavailableError from error
        await while_connected(receive, _pass_on(response, send, before, patience_s))


def sent_path(scope: Scope) -> str:
    """The path of a request as it was sent: what is decoded may hold the bytes that end a request line."""
    sent: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return sent.partition(b"?")[0].decode("latin-1")


async def _pass_on(
    response: LocalResponse,
    send: Send,
    before: Callable[[LocalResponse], Awaitable[object]] | None,
    patience_s: float | None,
) -> None:
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
