"""The namespaces that a user may see: those in which he may list triggers or brokers.

    GET /apis/headgate.dev/v1/selfsubjectnamespaces

A console offers these. Who may list them everywhere is told so, and every namespace that there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.auth.routes import EVENTING
from headgate.auth.rules import Attributes
from headgate.auth.user import User
from headgate.control.grants import Grants
from headgate.control.http import json_response
from headgate.control.objects import OWN_API_VERSION
from headgate.control.queries import user_of
from headgate.control.store import Store
from headgate.limits import SEEN_NAMESPACES_MAX

_LISTED: Final = tuple(Attributes("list", EVENTING, name) for name in ("triggers", "brokers"))


class SeenNamespaces(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer.

    Attributes:
        all: Whether the user may list triggers and brokers everywhere.
        namespaces: By name, at most SEEN_NAMESPACES_MAX.
        more: Whether there are more.
    """

    all: bool = msgspec.field(name="all")
    namespaces: list[str]
    more: bool = False


class SeenNamespacesApi:
    """The handler.

    Args:
        store: The objects.
        grants: Knows who may do what.
    """

    def __init__(self, store: Store, grants: Grants) -> None:
        self._store = store
        self._grants = grants

    def routes(self) -> Iterator[Route]:
        """Where it answers."""
        yield Route(f"/apis/{OWN_API_VERSION}/selfsubjectnamespaces", self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        return json_response(await run_in_threadpool(self._seen, user_of(request)))

    def _seen(self, user: User) -> SeenNamespaces:
        authorizer = self._grants.authorizer
        sees_all = all(authorizer.allowed(user, wanted).allowed for wanted in _LISTED)
        names = [one.metadata.name for one in self._store.namespaces.all()[0]]
        if not sees_all:
            # Rule by rule: the decisions that are remembered are for requests, and there may be many namespaces.
            names = [
                name
                for name in names
                if any(
                    rule.allows(wanted._replace(namespace=name))
                    for rule in authorizer.rules_of(user, name)
                    for wanted in _LISTED
                )
            ]
        return SeenNamespaces(sees_all, names[:SEEN_NAMESPACES_MAX], len(names) > SEEN_NAMESPACES_MAX)
