"""The other servers of a deployment: how this one reaches them on behalf of a client."""

from __future__ import annotations

import ssl

from starlette.types import Scope

from headgate.auth import impersonation
from headgate.auth.context import USER
from headgate.auth.credentials import AUTHORIZATION
from headgate.auth.user import ANONYMOUS
from headgate.server.kafka import instance
from headgate.server.local_http import Header, PeerAddress
from headgate.settings import ClientAuth, Settings


class PeerServers:
    """Ways to other servers, which judge a client by what it has shown here.

    Args:
        settings: This server's settings.

    Attributes:
        own_url: By which the others reach this one.
    """

    def __init__(self, settings: Settings) -> None:
        self.own_url = instance.advertised_url(settings)
        self._settings = settings
        self._tls: ssl.SSLContext | None = None

    def place(self, url: str) -> PeerAddress:
        """The address of a server that advertises a URL."""
        host, port, is_tls = instance.host_and_port(url)
        if is_tls and self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._settings.tls_ca)
        return PeerAddress(host, port, self._tls if is_tls else None)

    def shown(self, scope: Scope) -> list[Header] | None:
        """What the client of a request has shown; None where another server would not know it: a certificate."""
        is_known = scope.get(USER, ANONYMOUS) is not ANONYMOUS
        found = [(name, value) for name, value in scope["headers"] if name == AUTHORIZATION]
        if self._settings.client_auth is ClientAuth.REQUIRED or (is_known and not found):
            return None
        return found + [one for one in scope["headers"] if one[0].startswith(impersonation.PREFIX)]
