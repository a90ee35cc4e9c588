"""Requests that are refused before any application of the server sees them."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.auth.context import shows_token
from headgate.event.hops import HOPS_HEADER
from headgate.ingress.errors import retry_after_s, send_body, send_problem
from headgate.objects.kinds.egress import RESERVED_NAMESPACES
from headgate.objects.kinds.kube_status import failure_of
from headgate.server.health import PATHS
from headgate.server.parts import Role
from headgate_api.errors import HeadgateError, UnavailableError

_CLOSE: Final = (b"connection", b"close")


async def send_refusal(error: HeadgateError, scope: Scope, send: Send, *headers: tuple[bytes, bytes]) -> None:
    """Answers with an error and closes the connection: the API with a `Status`, anything else with problem details."""
    if scope["path"].lstrip("/").partition("/")[0] not in RESERVED_NAMESPACES:
        await send_problem(send, error, _CLOSE, *headers)
        return
    wait_s = retry_after_s(error)
    later = [(b"retry-after", str(wait_s).encode())] if wait_s is not None else []
    body = msgspec.json.encode(failure_of(error))
    await send_body(send, error.http_status, b"application/json", body, _CLOSE, *later, *headers)


class RoleAbsentError(HeadgateError):
    """The server has no process of the role that would answer."""

    code = "role-absent"
    http_status = 501

    def __init__(self, role: Role) -> None:
        hint = f"ask a server of the deployment that has it: headgate serve --role {role}"
        super().__init__(f"this server has no {role} that answers", hint=hint)


class RoleAbsent:
    """An ASGI application in the place of a role that the server does not have."""

    def __init__(self, role: Role) -> None:
        self._role = role

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise RoleAbsentError(self._role)


# --- deliveries -----------------------------------------------------------------------------------
# Of an event the body shall never be a request to the server's own API. The policy for URLs refuses addresses that the
# server knows to be its own; a proxy or a mapped port gives it others. But each delivery carries the hop count.

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
    """An ASGI application before another one that takes no events."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not any(name == _HOPS for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        await send_problem(send, DeliveryRefusedError(), _CLOSE)


# --- gate -----------------------------------------------------------------------------------------
# A reply that cannot be stored is a failed delivery, so a front that stops goes on storing for its dispatcher, until
# that has ended. Everybody else is told to come back later.


class ServerStoppingError(UnavailableError):
    """The server is on its way down."""

    code = "stopping"

    def __init__(self) -> None:
        super().__init__("the server is stopping", hint="try again in a few seconds")


class Gate:
    """An ASGI application before another one; open until it is closed."""

    def __init__(self, app: ASGIApp, token: bytes) -> None:
        self._app = app
        self._token = token
        self._closed = False

    def close(self) -> None:
        self._closed = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            not self._closed
            or scope["type"] != "http"
            or scope["path"] in PATHS
            or shows_token(scope["headers"], self._token)
        ):
            await self._app(scope, receive, send)
            return
        await send_problem(send, ServerStoppingError(), _CLOSE)
