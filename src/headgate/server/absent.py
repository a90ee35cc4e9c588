"""Answers for what a server of a deployment on Kafka does not do: an error that says so, and who does."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headgate.errors import HeadgateError
from headgate.server.parts import Role


class RoleAbsentError(HeadgateError):
    """The server has no process of the role that would answer."""

    code = "role-absent"
    http_status = 501

    def __init__(self, role: Role) -> None:
        hint = f"ask a server of the deployment that has it: headgate serve --role {role}"
        super().__init__(f"this server has no {role} that answers", hint=hint)


class RoleAbsent:
    """An ASGI application in the place of a role that the server does not have.

    Args:
        role: Which.
    """

    def __init__(self, role: Role) -> None:
        self._role = role

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request.

        Raises:
            RoleAbsentError: Always.
        """
        raise RoleAbsentError(self._role)

    def routes(self, routes: Iterable[Route]) -> list[Route]:
        """The same paths, answered so."""
        return [Route(route.path, self, methods=list(route.methods or ())) for route in routes]
