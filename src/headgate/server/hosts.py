"""The check of a request's head before anything reads it: host, origin, and how its body is transferred.

A web page may make its visitor's browser send requests to a server without authentication on loopback. A page whose
own name has come to mean 127.0.0.1 (DNS rebinding) reads the answers, but the request says that name in `Host`. Any
page may POST to another site, but its browser says so in `Origin` and `Sec-Fetch-Site`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.objects.kinds.egress import address_of
from headgate.observe.metrics import REQUESTS_REFUSED
from headgate.server.listening import addresses_of
from headgate.server.refusals import send_refusal
from headgate.settings import Settings
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.limits import HOSTS_KEPT_MAX

ANY: Final = "*"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOKED_AT: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"transfer-encoding"})
_OWN_SITES: Final = frozenset({b"none", b"same-origin"})
_HOST: Final = re.compile(r"(?P<name>[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{0,5})?")


class HostHeaderError(InvalidInputError):
    """HTTP/1.1 wants one `Host` header with a host."""

    code = "host-header"


class MisdirectedError(HeadgateError):
    """The request was sent to a name that is not this server's."""

    code = "misdirected"
    http_status = 421


class CrossSiteError(HeadgateError):
    """A browser sent the request on behalf of another site."""

    code = "cross-site"
    http_status = 403


class TransferCodingError(HeadgateError):
    """The body has a transfer coding other than chunked."""

    code = "transfer-coding"
    http_status = 501


class Hosts:
    """The names of this server: what it listens on, and those `allowed`: `*.NAME` for all below it, `*` for any."""

    def __init__(self, *listens: str, allowed: Iterable[str] = ()) -> None:
        own = [one.lower() for one in listens]
        self._names = {"localhost", *own, socket.gethostname().lower(), *allowed}
        self._endings = tuple(name[1:] for name in self._names if name.startswith("*."))
        self._any_name = ANY in self._names
        bound = map(address_of, own)
        self._any_address = any(address is not None and address.is_unspecified for address in bound)
        self._known: set[bytes] = set()

    @classmethod
    def of(cls, settings: Settings) -> Hosts:
        listens = [address.host for address in addresses_of(settings) if not address.is_grpc]
        named = [urlsplit(url).hostname for url in (settings.public_url, settings.advertise)]
        return cls(*listens, allowed=[*settings.allowed_hosts, *(name for name in named if name)])

    def check(self, value: bytes) -> None:
        """Raises where a `Host` header does not mean this server; one that did costs a look into a set from then on."""
        if value in self._known:
            return
        if (found := _HOST.fullmatch(value.decode("latin-1").lower())) is None:
            raise HostHeaderError("the header Host holds no host")
        name = found["name"].strip("[]").rstrip(".")
        if not self._is_own(name):
            raise MisdirectedError(
                f"{name[:253]!r} is no name of this server", hint="headgate serve --allowed-host adds a name"
            )
        if len(self._known) >= HOSTS_KEPT_MAX:
            self._known.clear()
        self._known.add(value)

    def _is_own(self, name: str) -> bool:
        if self._any_name or name in self._names or name.endswith(self._endings):
            return True
        address = address_of(name)
        # A page cannot have an address of somebody else for its name, and who listens on all of a machine's addresses
        # is reached by any of them, and by those that are translated to them.
        return address is not None and (address.is_loopback or self._any_address)


class HostCheck:
    """An ASGI application before another one: answers by itself what was not meant for this server."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except HeadgateError as error:
                REQUESTS_REFUSED.labels(error.code).inc()
                await send_refusal(error, scope, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        given: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in _LOOKED_AT:
                # The parser undoes `chunked` and leaves any other coding in the body, where nobody would know of it.
                if name == b"transfer-encoding" and value.strip(b" \t").lower() != b"chunked":
                    raise TransferCodingError(
                        "the header Transfer-Encoding names a coding other than chunked",
                        hint="send the body without compression",
                    )
                if name == b"host" and name in given:
                    raise HostHeaderError("there are two headers Host")
                given[name] = value
        host, origin, site = given.get(b"host"), given.get(b"origin"), given.get(b"sec-fetch-site")
        if host is not None:
            self._hosts.check(host)
        elif scope["http_version"] == "1.1":
            raise HostHeaderError("a request of HTTP/1.1 has a header Host")
        if scope["method"] not in _READS:
            if site is not None and site not in _OWN_SITES:
                raise CrossSiteError("the request was made by a page of another site")
            if origin is not None and origin.lower().partition(b"://")[2] != (host or b"").lower():
                raise CrossSiteError("the request was made by a page of another origin")
