"""How people sign in at the console: the issuer that their browser is sent to, if there is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from headgate.auth.configuration import JwtSettings
from headgate.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class SignIn:
    """What the console says of signing in: whether the server knows users at all, and the console's id at the issuer.

    `issuer` is the URL of the OpenID provider; empty where a token is pasted.
    """

    available: bool = False
    issuer: str = ""
    client_id: str = ""

    @property
    def origin(self) -> str:
        """Scheme, host and port of the issuer; empty without one."""
        split = urlsplit(self.issuer)
        return f"{split.scheme}://{split.netloc}" if self.issuer else ""

    def json(self) -> bytes:
        """As the console reads it."""
        said = {"available": self.available, "issuer": self.issuer, "clientId": self.client_id}
        return msgspec.json.encode(said)


def sign_in_of(issuers: Iterable[JwtSettings], client_id: str, *, available: bool) -> SignIn:
    """How people sign in, by the issuers whose tokens the server believes.

    A token for the console has its `client_id` as an audience; empty where the console has none.

    Raises:
        InvalidInputError: No issuer makes tokens for this client.
    """
    if not client_id:
        return SignIn(available)
    for one in issuers:
        if client_id in one.issuer.audiences:
            return SignIn(available, one.issuer.url, client_id)
    raise InvalidInputError(
        f"HEADGATE_CONSOLE_CLIENT_ID: no issuer of --authentication-config has the audience {client_id!r}",
        hint="add the client's id to the audiences of its issuer: docs/howto/console.md",
    )
