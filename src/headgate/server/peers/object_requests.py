"""The way of a write to the control process that leads, whichever server of the deployment it came to."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.backend.kafka.objects import leader_of
from headgate.objects.api import discovery
from headgate.objects.api.reviews_api import WEBHOOK
from headgate.objects.store.database import NotLeaderError, StoreUnavailableError
from headgate.objects.store.store import Store
from headgate.server.peers import local_http
from headgate.server.peers.local_http import FORWARDED, LocalResponse, PartUnavailableError
from headgate.server.peers.servers import PeerServers, while_owner
from headgate.settings import Settings
from headgate_api.errors import UnavailableError
from headgate_api.limits import LEADER_ANSWER_S_MAX, OBJECT_CACHE_LAG_S_MAX

VERSION: Final = b"headgate-resource-version"
"""A header of the leader's answer to a write: the newest resourceVersion behind it."""
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ASKED_HERE: Final = (f"/apis/{discovery.AUTHORIZATION}/", f"/apis/{discovery.AUTHENTICATION}/", WEBHOOK)
_BACKTEST: Final = "/backtest"
"""Paths that take a POST and change nothing: how they begin, and how one ends."""
_LOOK_S: Final = 0.01
"""Between two looks whether the cache has read a write."""
_LEADER_LOOK_S: Final = 0.25
"""Between two looks whether another process leads than the one that is asked."""


class NoLeaderError(NotLeaderError):
    """No control process leads now."""

    code = "no-leader"

    def __init__(self) -> None:
        super().__init__("no control process leads now, so nothing can be written", hint="try again in a few seconds")


class LeaderSilentError(UnavailableError):
    """The server that leads has not answered."""

    code = "leader-silent"

    def __init__(self, leader: str) -> None:
        super().__init__(
            f"{leader}, which leads, does not answer",
            hint="try again in a few seconds; a change may be stored all the same: read the object",
        )


class NotPassedOnError(NotLeaderError):
    """A write cannot be passed on to the leader on behalf of its client."""

    code = "not-passed-on"

    def __init__(self, leader: str) -> None:
        super().__init__(
            "this server does not lead, and it cannot show the leader its client's certificate",
            hint=f"send the change to {leader}, which leads",
        )


class ObjectRequests:
    """An ASGI application for the API of objects: reads are answered here, writes by the server that leads.

    A write's answer waits until this server has read what it changed: who writes here reads it here, and its fronts
    know a new broker. Where there is no control process `here` the leader answers reads, too.
    """

    def __init__(self, settings: Settings, peers: PeerServers, store: Store, here: ASGIApp | None) -> None:
        self._cache = settings.data / "control.db"
        self._peers = peers
        self._own_url = peers.own_url
        self._store = store
        self._here = here

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_forwarded = any(name == FORWARDED for name, _ in scope["headers"])
        if self._here is not None and not _is_write(scope):
            await self._here(scope, receive, send)
            return
        leader = await asyncio.to_thread(leader_of, self._cache)
        if self._here is not None and (is_forwarded or leader == self._own_url):
            await self._here(scope, receive, self._telling(send))
        elif is_forwarded or leader in ("", self._own_url):
            raise NoLeaderError
        else:
            await self._pass_on(leader, scope, receive, send)

    async def _pass_on(self, leader: str, scope: Scope, receive: Receive, send: Send) -> None:
        if (shown := self._peers.shown(scope)) is None:
            raise NotPassedOnError(leader)
        if (request := await local_http.whole_request(scope, receive)) is None:
            return
        request = dataclasses.replace(request, headers=(*request.headers, *shown, (FORWARDED, b"1")))
        answered = asyncio.Event()

        async def before(response: LocalResponse) -> None:
            answered.set()
            await self._read_it(response)

        async def leads() -> bool:
            return answered.is_set() or await asyncio.to_thread(leader_of, self._cache) == leader

        passing = local_http.pass_on(self._peers.place(leader), request, receive, send, before, LEADER_ANSWER_S_MAX)
        try:
            await while_owner(passing, _LEADER_LOOK_S, leads)
        except PartUnavailableError as error:
            raise LeaderSilentError(leader) from error

    async def _read_it(self, response: LocalResponse) -> None:
        """Waits until this server's cache has what the answer is about, OBJECT_CACHE_LAG_S_MAX at most."""
        version = dict(response.headers).get(VERSION, b"")
        if not version.isdigit():
            return
        deadline = time.monotonic() + OBJECT_CACHE_LAG_S_MAX
        with contextlib.suppress(StoreUnavailableError):
            while await asyncio.to_thread(self._store.counters.version) < int(version) and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(self._store.tell_of_brokers)

    def _telling(self, send: Send) -> Send:
        """Adds to an answer up to where the cache of who asks must have read."""

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < local_http.REDIRECTED:
                version = await asyncio.to_thread(self._store.counters.version)
                MutableHeaders(scope=message)[VERSION.decode()] = str(version)
            await send(message)

        return tell


def _is_write(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] not in _READS and not path.startswith(_ASKED_HERE) and not path.endswith(_BACKTEST)
