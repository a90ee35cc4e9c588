"""Refuses deliveries on paths that are no broker's: an event's body shall never be a request to the server's own API.

The policy for URLs (`control/egress.py`) refuses the addresses that this server knows to be its own. A proxy, or a port
that is mapped, gives it others. Every delivery of a broker carries the hop count, so this one look tells them all.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.errors import HeadgateError
from headgate.event.hops import HOPS_HEADER
from headgate.ingress.problem import send_problem

_HOPS: Final = HOPS_HEADER.encode()


class DeliveryRefusedError(HeadgateError):
    """A delivery came to a path that takes no events."""

    code = "delivery-refused"
    http_status = 403

    def __init__(self) -> None:
        super().__init__(
            f"this path takes no events, and the header {HOPS_HEADER} says that this is one",
            hint="a subscriber is a program or a broker (/{namespace}/{broker}), never a broker's API",
        )


class NoDeliveries:
    """An ASGI application before another one that takes no events.

    Args:
        app: What answers everything else.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http" or not any(name == _HOPS for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        await send_problem(send, DeliveryRefusedError(), (b"connection", b"close"))
