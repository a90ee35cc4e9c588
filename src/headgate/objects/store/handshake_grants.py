"""Permissions that subscribers gave later: the callback of the CloudEvents webhook handshake, and the table behind it.

    GET or POST /handshake/v1/allow?id=ID&key=KEY     perhaps with WebHook-Allowed-Rate

The id is the subscriber's URL, the key a code over it that only this server can make: whoever has got it may allow.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headgate.objects.store.database import Database, Table
from headgate.objects.store.server_secret import ServerSecret
from headgate_api.errors import InvalidInputError
from headgate_api.limits import HANDSHAKE_GRANT_S, HANDSHAKE_GRANTS_MAX, URL_CHARS_MAX

PATH: Final = "/handshake/v1/allow"
ANY_RATE: Final = "*"
_PURPOSE: Final = "handshakes"
_RATE_DIGITS_MAX: Final = 9


class HandshakeKeyError(InvalidInputError):
    """A callback has a key that this server did not make."""

    code = "handshake-key"
    http_status = 403


def allowed_per_s(rate: str | None) -> float | None:
    """`WebHook-Allowed-Rate`, requests a minute, as attempts a second; None for no bound. ValueError for no rate."""
    text = (rate or ANY_RATE).strip()
    if text == ANY_RATE:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > _RATE_DIGITS_MAX or not int(text):
        raise ValueError("WebHook-Allowed-Rate is neither a number above 0 nor *")
    return int(text) / 60


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission; `per_s` is the rate, None for no bound."""

    per_s: float | None


class HandshakeGrants(Table):
    """The permissions of a store."""

    def __init__(self, database: Database, secret: ServerSecret, clock_s: Callable[[], float]) -> None:
        super().__init__(database)
        self._secret = secret
        self._clock_s = clock_s

    def query(self, url: str) -> str:
        """What a callback says: `id=...&key=...`; empty while there is no secret."""
        key = self._secret.key(_PURPOSE)
        if not key:
            return ""
        id_ = base64.urlsafe_b64encode(url.encode("ascii")).decode()
        return urlencode({"id": id_, "key": _code(key, url)})

    def get(self, url: str) -> Grant | None:
        """The permission of a URL; None when there is none, or it is too old."""
        since = int(self._clock_s()) - HANDSHAKE_GRANT_S
        found = self._database.rows("SELECT rate FROM webhook_grants WHERE url = ? AND granted >= ?", (url, since))
        return Grant(allowed_per_s(found[0][0])) if found else None

    def allow(self, id_: str, key: str, rate: str | None) -> None:
        """Keep a permission; HandshakeKeyError when the key is not the one of the id."""
        try:
            url = base64.urlsafe_b64decode(id_.encode("ascii")).decode("ascii") if len(id_) <= 2 * URL_CHARS_MAX else ""
        except (binascii.Error, ValueError):
            url = ""
        own = self._secret.key(_PURPOSE)
        if not url or not own or not hmac.compare_digest(_code(own, url).encode(), key.encode()):
            raise HandshakeKeyError("the key does not fit the id", hint="use the callback as it was sent")
        try:
            allowed_per_s(rate)
        except ValueError as error:
            raise InvalidInputError(str(error)) from error
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO webhook_grants (url, rate, granted) VALUES (?, ?, ?)",
                (url, (rate or ANY_RATE).strip(), int(self._clock_s())),
            )
            connection.execute(
                "DELETE FROM webhook_grants WHERE url IN"
                " (SELECT url FROM webhook_grants ORDER BY granted DESC LIMIT -1 OFFSET ?)",
                (HANDSHAKE_GRANTS_MAX,),
            )

    def routes(self) -> Iterator[Route]:
        yield Route(PATH, self._allow, methods=["GET", "POST"])

    async def _allow(self, request: Request) -> Response:
        query, rate = request.query_params, request.headers.get("webhook-allowed-rate")
        await asyncio.to_thread(self.allow, query.get("id", ""), query.get("key", ""), rate)
        return JSONResponse({"allowed": True})


def _code(key: bytes, url: str) -> str:
    return base64.urlsafe_b64encode(hmac.digest(key, url.encode(), "sha256")).decode()
