"""The gate in front of a server that stops: only its own dispatcher comes in, with the replies of subscribers.

A reply that cannot be stored is a failed delivery, so the front goes on storing until the dispatcher has ended.
Everybody else is told to come back later.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.delivery.replies import TOKEN_HEADER
from headgate.errors import UnavailableError
from headgate.ingress.problem import CONTENT_TYPE, encode_problem, problem
from headgate.limits import RETRY_AFTER_UNAVAILABLE_S
from headgate.server.health import PATHS


class ServerStoppingError(UnavailableError):
    """The server is on its way down."""

    code = "stopping"

    def __init__(self) -> None:
        super().__init__("the server is stopping", hint="try again in a few seconds")


_STOPPING: Final = encode_problem(problem(ServerStoppingError()))


class Gate:
    """An ASGI application before another one; open until it is closed.

    Args:
        app: What answers.
        token: What the dispatcher shows.
    """

    def __init__(self, app: ASGIApp, token: bytes) -> None:
        self._app = app
        self._token = token.hex().encode()
        self._closed = False

    def close(self) -> None:
        """From here on only the dispatcher's requests, and those about health, are answered."""
        self._closed = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if not self._closed or scope["type"] != "http" or scope["path"] in PATHS or self._is_own(scope):
            await self._app(scope, receive, send)
            return
        headers = [
            (b"content-type", CONTENT_TYPE),
            (b"retry-after", str(RETRY_AFTER_UNAVAILABLE_S).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": _STOPPING})

    def _is_own(self, scope: Scope) -> bool:
        shown = [value for name, value in scope["headers"] if name == TOKEN_HEADER.encode()]
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._token)
