"""All dispatchers as one, for the process that passes requests on: who owns what, and what they answer together.

Where they are stands behind `DispatcherReach`: in this server, or on Kafka wherever `partition_owners.py` finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.objects.api.http import JSON
from headgate.objects.store.store import Store
from headgate.outbox.shards import dispatcher_of
from headgate.rpc.wire import parsed
from headgate.server.peers import local_http
from headgate.server.peers.local_http import (
    Header,
    KeptConnections,
    PartUnavailableError,
    PeerAddress,
    ProcessProxy,
    WholeAnswer,
)
from headgate.settings import Settings
from headgate_api.limits import DISPATCHER_ANSWER_S_MAX
from headgate_api.objects.kinds import Kind, ObjectKey
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.errors import ProtocolError

_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class DispatcherQuestion:
    """What a dispatcher is asked; `target` is path and query, `body` whole JSON, empty for none."""

    method: str
    target: str
    body: bytes
    client: Request

    @classmethod
    def of(cls, request: Request, body: bytes = b"", target: str = "") -> DispatcherQuestion:
        return cls(request.method, target or local_http.sent_path(request.scope), body, request)

    @property
    def user(self) -> Sequence[Header]:
        """The header that names the client's user to a process of this server; to no other one."""
        return local_http.user_header(self.client.scope)


class DispatcherReach(Protocol):
    """How dispatchers are asked."""

    count: int

    async def ask(self, number: int, question: DispatcherQuestion) -> WholeAnswer:
        """What one of them answers; UnavailableError when it does not, or without an end."""
        ...

    def routes(self, routes: Sequence[Route]) -> list[Route]:
        """Routes that only pass on what dispatchers answer, as this server has them; what decides must not be there."""
        ...

    def subscriptions(self, group: DispatcherGroup) -> ASGIApp:
        """Passes requests about a subscription on to the dispatcher of a group that owns it, as their answers come."""
        ...


async def asked(place: Path | PeerAddress, question: DispatcherQuestion, headers: Sequence[Header]) -> WholeAnswer:
    """Asks a process; see `DispatcherReach.ask`."""
    method, target = question.method, question.target
    given = [(b"content-type", JSON.encode()), *headers] if question.body else headers
    try:
        return await local_http.ask(place, method, target, question.body, given, DISPATCHER_ANSWER_S_MAX)
    except OSError as error:
        raise PartUnavailableError from error


class LocalDispatchers:
    """The dispatchers of this server, which are all that there are; see `DispatcherReach`."""

    def __init__(self, settings: Settings, kept: KeptConnections | None = None) -> None:
        self._kept = kept
        self.count = settings.dispatchers
        self.sockets = [settings.dispatcher_socket(number) for number in range(self.count)]

    async def ask(self, number: int, question: DispatcherQuestion) -> WholeAnswer:
        return await asked(self.sockets[number], question, question.user)

    def routes(self, routes: Sequence[Route]) -> list[Route]:
        return list(routes)

    def subscriptions(self, group: DispatcherGroup) -> ASGIApp:
        return OwnerProxy([ProcessProxy(socket, self._kept) for socket in self.sockets], group)


class DispatcherGroup:
    """All dispatchers."""

    def __init__(self, reach: DispatcherReach, store: Store) -> None:
        self.count = reach.count
        self._reach = reach
        self._store = store

    async def owner(self, kind: Kind, namespace: str, name: str) -> int:
        """The dispatcher that owns a trigger or subscription; of one that does not exist any, which will say so."""
        if self.count == 1:
            return 0
        target = await asyncio.to_thread(self._store.targets.id_of, ObjectKey(kind, namespace, name))
        return 0 if target is None else dispatcher_of(target, self.count)

    async def owner_of_call(self, method: str, first: bytes) -> int:
        namespace, _, name = _subscription(method, first).partition("/")
        return await self.owner(Kind.SUBSCRIPTION, namespace, name)

    async def ask(self, number: int, question: DispatcherQuestion) -> WholeAnswer:
        return await self._reach.ask(number, question)

    async def ask_all(self, question: DispatcherQuestion) -> list[WholeAnswer]:
        return await asyncio.gather(*(self.ask(number, question) for number in range(self.count)))

    async def ask_for_one(self, question: DispatcherQuestion) -> WholeAnswer:
        """What the one that knows the thing answers, or a 404; raises where nobody knows it and one does not answer."""
        questions = (self.ask(number, question) for number in range(self.count))
        found = await asyncio.gather(*questions, return_exceptions=True)
        answers = [answer for answer in found if isinstance(answer, WholeAnswer)]
        known = next((answer for answer in answers if answer.status != _NOT_FOUND), None)
        failure = next((error for error in found if isinstance(error, BaseException)), None)
        if known is None and failure is not None:
            raise failure
        return known or answers[0]

    async def pass_to_one(self, request: Request) -> Response:
        return (await self.ask_for_one(DispatcherQuestion.of(request))).response()


def refusal(answers: Iterable[WholeAnswer]) -> Response | None:
    """The first answer that is not good, for the client; None when all are."""
    return next((answer.response() for answer in answers if not answer.is_good), None)


class OwnerProxy:
    """An ASGI application: requests about a subscription, passed on to the dispatcher that owns it."""

    def __init__(self, proxies: Sequence[ProcessProxy], group: DispatcherGroup) -> None:
        self._group = group
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = scope["path_params"]
        owner = await self._group.owner(Kind.SUBSCRIPTION, named["namespace"], named["name"])
        await self._proxies[owner](scope, receive, send)


_FIRST_MESSAGES: Final = {"Seek": pb.SeekRequest, "Stats": pb.StatsRequest, "Analyze": pb.AnalyzeRequest}


def _subscription(method: str, first: bytes) -> str:
    """The subscription that a call's first message names; empty when it names none that can be read."""
    kind = _FIRST_MESSAGES.get(method.rpartition("/")[2])
    try:
        named = parsed(pb.SubscribeRequest, first).open if kind is None else parsed(kind, first)
    except ProtocolError:
        return ""
    return str(named.subscription)
