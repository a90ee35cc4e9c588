"""The way of a write to the control process that leads, from any other server of the deployment."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
import time
from collections.abc import Callable
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.control.commit import NotLeaderError
from headgate.control.database import StoreUnavailableError
from headgate.control.discovery import AUTHORIZATION
from headgate.control.store import Store
from headgate.control.webhook import PATH as WEBHOOK
from headgate.limits import OBJECT_CACHE_LAG_S_MAX
from headgate.server.kafka.instance import host_and_port
from headgate.server.local_http import LocalResponse, PeerAddress
from headgate.server.proxy import FORWARDED, pass_on, whole_request
from headgate.settings import Settings
from headgate.store.kafka.cache import leader_of

VERSION: Final = b"headgate-resource-version"
"""A header of the leader's answer to a write: the newest resourceVersion behind it."""
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ASKED_HERE: Final = (f"/apis/{AUTHORIZATION}/", WEBHOOK)
"""Paths that take a POST and change nothing."""
_LOOK_S: Final = 0.01
_CREDENTIALS: Final = b"authorization"


class NoLeaderError(NotLeaderError):
    """No control process leads now."""

    code = "no-leader"

    def __init__(self) -> None:
        super().__init__("no control process leads now, so nothing can be written", hint="try again in a few seconds")


class LeaderProxy:
    """An ASGI application that passes requests on to the server whose control process leads.

    The answer is passed on once this server has read what the write has changed: who writes here, reads it here.

    Args:
        settings: The server's settings.
        own_url: The URL that this server advertises.
        store: This server's cache.
    """

    def __init__(self, settings: Settings, own_url: str, store: Store) -> None:
        self._cache = settings.data / "control.db"
        self._own_url = own_url
        self._store = store
        self._settings = settings
        self._tls: ssl.SSLContext | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request.

        Raises:
            NoLeaderError: There is no leader, or it does not lead any more.
            PartUnavailableError: The leader does not answer.
        """
        given = dict(scope["headers"])
        url = await asyncio.to_thread(leader_of, self._cache)
        if not url or url == self._own_url or FORWARDED in given:
            raise NoLeaderError
        request = await whole_request(scope, receive)
        if request is None:
            return
        more = [(FORWARDED, b"1")]
        if _CREDENTIALS in given:
            more.append((_CREDENTIALS, given[_CREDENTIALS]))
        request = dataclasses.replace(request, headers=(*request.headers, *more))
        await pass_on(self._place(url), request, receive, send, self._read_it)

    def _place(self, url: str) -> PeerAddress:
        host, port, is_tls = host_and_port(url)
        if is_tls and self._tls is None:
            self._tls = _trusting(self._settings)
        return PeerAddress(host, port, self._tls if is_tls else None)

    async def _read_it(self, response: LocalResponse) -> None:
        """Waits until this server's cache has what the answer is about, OBJECT_CACHE_LAG_S_MAX at most."""
        version = dict(response.headers).get(VERSION, b"")
        if not version.isdigit():
            return
        deadline = time.monotonic() + OBJECT_CACHE_LAG_S_MAX
        with contextlib.suppress(StoreUnavailableError):
            while await asyncio.to_thread(self._store.version) < int(version) and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(self._store.tell_of_brokers)


class LeaderOnly:
    """An ASGI application before the API: reads are answered here, writes here only while this process leads.

    Args:
        app: The API.
        leads: Whether this process leads.
        proxy: To the one that does.
        store: The objects.
    """

    def __init__(self, app: ASGIApp, leads: Callable[[], bool], proxy: LeaderProxy, store: Store) -> None:
        self._app = app
        self._leads = leads
        self._proxy = proxy
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http" or not is_write(scope):
            await self._app(scope, receive, send)
        elif self._leads():
            await self._app(scope, receive, self._telling(send))
        else:
            await self._proxy(scope, receive, send)

    def _telling(self, send: Send) -> Send:
        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                version = await asyncio.to_thread(self._store.version)
                MutableHeaders(scope=message)[VERSION.decode()] = str(version)
            await send(message)

        return tell


def is_write(scope: Scope) -> bool:
    """Whether a request of the API may change objects."""
    return scope["method"] not in _READS and not scope["path"].startswith(_ASKED_HERE)


def _trusting(settings: Settings) -> ssl.SSLContext:
    """What other servers are known by: the CA of the settings, or those of the system; and how they know this one."""
    context = ssl.create_default_context(cafile=settings.tls_ca)
    if settings.tls_cert is not None:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context
