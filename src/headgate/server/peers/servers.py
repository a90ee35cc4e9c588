"""The other servers of a deployment: how this one reaches them on behalf of a client."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import grpc
from grpc import aio
from starlette.types import Scope

from headgate.auth.context import USER
from headgate.auth.credentials import AUTHORIZATION
from headgate.auth.user import ANONYMOUS, IMPERSONATE, User
from headgate.server.peers import instance
from headgate.server.peers.local_grpc import CHANNEL_OPTIONS
from headgate.server.peers.local_http import Header, PartUnavailableError, PeerAddress
from headgate.server.tls import read_ca
from headgate.settings import ClientAuth, Settings
from headgate_api.limits import RPC_STREAMS_A_CONNECTION_MAX

_T = TypeVar("_T")


@dataclass(slots=True)
class _SharedChannel:
    channel: aio.Channel
    calls: int = 0


class PeerServers:
    """Ways to other servers, which judge a client by what it has shown here, and reach this one by `own_url`."""

    def __init__(self, settings: Settings) -> None:
        self.own_url = instance.advertised_url(settings)
        self._settings = settings
        self._tls: dict[bool, tuple[int, ssl.SSLContext]] = {}
        """By whether it shows a certificate, with the time of that file."""
        self._channels: defaultdict[str, list[_SharedChannel]] = defaultdict(list)

    def place(self, url: str, *, as_itself: bool = False) -> PeerAddress:
        """Where a server is; `as_itself`: this one shows its own certificate where clients must have one.

        OSError where a file of certificates cannot be read.
        """
        host, port, is_tls = instance.host_and_port(url)
        return PeerAddress(host, port, self._context(as_itself) if is_tls else None)

    def _context(self, as_itself: bool) -> ssl.SSLContext:
        settings = self._settings
        own = settings.tls_cert if as_itself and settings.client_auth is ClientAuth.REQUIRED else None
        changed_ns = own.stat().st_mtime_ns if own is not None else 0
        made_ns, context = self._tls.get(own is not None, (-1, None))
        if context is None or made_ns != changed_ns:
            context = ssl.create_default_context(cafile=settings.tls_ca)
            if own is not None:
                context.load_cert_chain(own, settings.tls_key)
            self._tls[own is not None] = changed_ns, context
        return context

    @contextmanager
    def channel(self, url: str) -> Iterator[aio.Channel]:
        """A channel to the gRPC address that a server advertises, for one call: its connection has room for it."""
        channels = self._channels[url]
        shared = next((one for one in channels if one.calls < RPC_STREAMS_A_CONNECTION_MAX), None)
        if shared is None:
            shared = _SharedChannel(self._connected(url))
            channels.append(shared)
        shared.calls += 1
        try:
            yield shared.channel
        finally:
            shared.calls -= 1

    def _connected(self, url: str) -> aio.Channel:
        scheme, _, address = url.partition("://")
        if scheme != "grpcs":
            return aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        ca = read_ca(self._settings.tls_ca).encode() if self._settings.tls_ca is not None else None
        return aio.secure_channel(address, grpc.ssl_channel_credentials(ca), options=CHANNEL_OPTIONS)

    async def close(self) -> None:
        for channels in self._channels.values():
            for one in channels:
                await one.channel.close()

    def shown(self, scope: Scope) -> list[Header] | None:
        """What the client of a request has shown; None where another server would not know it: a certificate."""
        return self.shown_by(scope.get(USER, ANONYMOUS), scope["headers"])

    def shown_by(self, user: User, headers: Iterable[Header]) -> list[Header] | None:
        """The same of a user, and the headers or the metadata of what he asks."""
        given = list(headers)
        found = [(name, value) for name, value in given if name == AUTHORIZATION]
        if self._settings.client_auth is ClientAuth.REQUIRED or (user is not ANONYMOUS and not found):
            return None
        return found + [one for one in given if one[0].startswith(IMPERSONATE)]


async def while_owner(asking: Awaitable[_T], look_s: float, is_owner: Callable[[], Awaitable[bool]]) -> _T:
    """What an owner answers; PartUnavailableError once it owns no more, which is looked at every `look_s`."""
    task = asyncio.ensure_future(asking)
    try:
        while not (await asyncio.wait([task], timeout=look_s))[0]:
            if not (await is_owner() or task.done()):
                raise PartUnavailableError
        return await task
    finally:
        task.cancel()
        await asyncio.wait([task])
