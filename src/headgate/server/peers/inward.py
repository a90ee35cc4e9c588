"""The way from a dispatcher into this server's own brokers: the fronts' Unix sockets, whatever clients speak.

Replies go this way, and events for a broker of this server, where its address is not plain HTTP: they need no
certificate and pass no proxy. Whatever the way, they show the token that fronts know the server's processes by.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from headgate.auth.context import TOKEN_HEADER, USER_HEADER, current_user, header_of
from headgate.delivery.post import HttpTransport, PostOptions, Transport
from headgate.delivery.retry import RETRY_AFTER_STATUSES, Outcome
from headgate.objects.kinds.egress import UrlPolicy, UrlRefusedError
from headgate.server.peers.local_http import ask
from headgate.settings import Settings
from headgate_api import limits

_Headers = Sequence[tuple[str, str]]


class InwardTransport:
    """A transport into the server itself, by the sockets of its fronts, the preferred one first."""

    def __init__(self, sockets: Sequence[Path]) -> None:
        self._sockets = sockets

    async def post(
        self, url: str, headers: _Headers, body: bytes, timeout_s: float, options: PostOptions | None = None
    ) -> Outcome:
        """See `Transport`; of the URL the path counts, and options do not. The user of the attempt goes with it."""
        target = _target(url)
        sent = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        sent.append((USER_HEADER, header_of(current_user.get())))
        outcome = Outcome(0, "connection", "there is no front", unsent=True)
        try:
            async with asyncio.timeout(timeout_s):
                for socket in self._sockets:
                    outcome = await _posted(socket, target, sent, body)
                    if not outcome.unsent:
                        break
        except TimeoutError:
            return Outcome(0, "timeout", f"no answer within {timeout_s:g} s")
        return outcome


class OwnTransport:
    """A transport into the server that shows whose requests these are; clients cannot."""

    def __init__(self, way: Transport, token: bytes) -> None:
        self._way = way
        self._shown = (TOKEN_HEADER, token.hex())

    async def post(
        self, url: str, headers: _Headers, body: bytes, timeout_s: float, options: PostOptions | None = None
    ) -> Outcome:
        return await self._way.post(url, [*headers, self._shown], body, timeout_s, options)


class SplitTransport:
    """Sends what is for this server's own brokers inward, and everything else by `outward`, which judges by itself."""

    def __init__(self, policy: UrlPolicy, inward: Transport, outward: Transport) -> None:
        self._inward = inward
        self._outward = outward
        self._inside = lru_cache(limits.ROUTES_KEPT_MAX)(lambda url: inside(policy, url))

    def post(
        self, url: str, headers: _Headers, body: bytes, timeout_s: float, options: PostOptions | None = None
    ) -> Coroutine[Any, Any, Outcome]:
        """See `Transport`. The caller awaits the chosen way itself, for one more await is paid by each delivery."""
        if inside := self._inside(url):
            return self._inward.post(inside, headers, body, timeout_s)
        return self._outward.post(url, headers, body, timeout_s, options)


def inward_of(settings: Settings, preferred: int) -> InwardTransport | None:
    """The way to the fronts of this server, the preferred one first; None where its own address is plain HTTP."""
    if settings.is_reached_plain:
        return None
    numbers = [(preferred + number) % settings.fronts for number in range(settings.fronts)]
    return InwardTransport([settings.front_inward(number) for number in numbers])


@contextlib.asynccontextmanager
async def transports(
    policy: UrlPolicy, token: bytes, inward: Transport | None, outward: Transport | None
) -> AsyncIterator[tuple[Transport, Transport]]:
    """The ways into this server (`inward` None: plain HTTP) and to receivers (`outward` None: the real client)."""
    async with contextlib.AsyncExitStack() as stack:
        way = inward if inward is not None else await stack.enter_async_context(HttpTransport())
        own = OwnTransport(way, token)
        if outward is None:
            outward = SplitTransport(policy, own, await stack.enter_async_context(HttpTransport(policy)))
        yield own, outward


def inside(policy: UrlPolicy, url: str) -> str:
    """The URL, as it is read, when it is that of a broker of this server; else nothing."""
    try:
        found = policy.check(url)
    except UrlRefusedError:
        return ""
    return found.url if found.trusted else ""


def _target(url: str) -> str:
    rest = url.partition("://")[2].partition("#")[0]
    return f"/{rest.partition('/')[2]}"


async def _posted(socket: Path, target: str, headers: list[tuple[bytes, bytes]], body: bytes) -> Outcome:
    try:
        answer = await ask(socket, "POST", target, body, headers)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        return Outcome(0, "connection", str(error), unsent=True)
    except OSError as error:
        return Outcome(0, "connection", str(error))
    if answer.is_good:
        return Outcome(answer.status)
    asked = answer.headers.get(b"retry-after", b"") if answer.status in RETRY_AFTER_STATUSES else b""
    body = answer.body[: limits.ERROR_BODY_BYTES_MAX]
    return Outcome(answer.status, retry_after=asked.decode("latin-1"), body=body)
