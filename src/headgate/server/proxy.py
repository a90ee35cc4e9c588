"""Requests that another process of this server answers: passed on over its Unix socket, the answer as it comes."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from headgate.auth.context import USER, USER_HEADER, header_of
from headgate.auth.user import ANONYMOUS
from headgate.control.http import while_connected
from headgate.errors import TooLargeError, UnavailableError
from headgate.limits import OBJECT_BYTES_MAX, SECRET_BODY_BYTES_MAX
from headgate.server.local_http import LocalResponse, requested

_PASSED_ON: Final = frozenset({b"accept", b"content-type", b"if-none-match", b"last-event-id", b"user-agent"})
_SECRETS: Final = re.compile(rb"/api/v1/namespaces/[^/]+/secrets(/[^/]+)?")
"""The paths of objects that may be larger than others."""
_OF_THE_CONNECTION: Final = frozenset({b"connection", b"transfer-encoding", b"date", b"server"})


class PartUnavailableError(UnavailableError):
    """The process that would answer is not there."""

    code = "part-unavailable"

    def __init__(self) -> None:
        super().__init__("there is no answer now", hint="try again in a few seconds")


class ProcessProxy:
    """An ASGI application that passes requests on, their bodies as a whole.

    Args:
        socket: Of the process that answers.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; ends when the client or the other process does.

        Raises:
            PartUnavailableError: The other process does not answer.
            TooLargeError: The body is too large for any request that is passed on.
        """
        request = Request(scope, receive)
        path = sent_path(scope).encode("latin-1")
        bytes_max = SECRET_BODY_BYTES_MAX if _SECRETS.fullmatch(path) else OBJECT_BYTES_MAX
        body = bytearray()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    raise TooLargeError(f"the body is over {bytes_max} bytes")
        except ClientDisconnect:  # it has died: nobody waits for an answer
            return
        target = path + b"?" + scope["query_string"] if scope["query_string"] else path
        headers = [(name, value) for name, value in scope["headers"] if name in _PASSED_ON]
        user = scope.get(USER, ANONYMOUS)
        if user is not ANONYMOUS:
            headers.append((USER_HEADER, header_of(user)))
        async with contextlib.AsyncExitStack() as stack:
            try:
                call = requested(self._socket, request.method.encode(), target, bytes(body), headers)
                response = await stack.enter_async_context(call)
            except OSError as error:
                raise PartUnavailableError from error
            await while_connected(receive, _pass_on(response, send))


def sent_path(scope: Scope) -> str:
    """The path of a request as it was sent: what is decoded may hold the bytes that end a request line."""
    sent: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return sent.partition(b"?")[0].decode("latin-1")


async def _pass_on(response: LocalResponse, send: Send) -> None:
    try:
        status = await response.head()
    except (EOFError, OSError) as error:
        raise PartUnavailableError from error
    headers = [(name, value) for name, value in response.headers if name not in _OF_THE_CONNECTION]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    # If the other process breaks off, so does this answer: what came must not pass for the whole.
    with contextlib.suppress(EOFError):
        async for body in response.pieces():
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
