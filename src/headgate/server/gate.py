"""The gate in front of a server that stops: only its own dispatcher comes in, with the replies of subscribers.

A reply that cannot be stored is a failed delivery, so the front goes on storing until the dispatcher has ended.
Everybody else is told to come back later.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.auth.context import shows_token
from headgate.errors import UnavailableError
from headgate.ingress.problem import send_problem
from headgate.server.health import PATHS


class ServerStoppingError(UnavailableError):
    """The server is on its way down."""

    code = "stopping"

    def __init__(self) -> None:
        super().__init__("the server is stopping", hint="try again in a few seconds")


class Gate:
    """An ASGI application before another one; open until it is closed.

    Args:
        app: What answers.
        token: What the dispatcher shows.
    """

    def __init__(self, app: ASGIApp, token: bytes) -> None:
        self._app = app
        self._token = token
        self._closed = False

    def close(self) -> None:
        """From here on only the dispatcher's requests, and those about health, are answered."""
        self._closed = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if (
            not self._closed
            or scope["type"] != "http"
            or scope["path"] in PATHS
            or shows_token(scope["headers"], self._token)
        ):
            await self._app(scope, receive, send)
            return
        await send_problem(send, ServerStoppingError(), (b"connection", b"close"))
