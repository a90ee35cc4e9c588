"""Tokens by which a trigger shows who it is: JSON Web Tokens that this server signs for one audience each.

A receiver checks them by the server's key set, as those of any OpenID provider. The subject is the service account that
Knative would make for the trigger.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple, Protocol

import jwt

from headgate import limits
from headgate.control.credentials import CredentialsError
from headgate.control.signing_keys import ALGORITHM, SigningKey
from headgate.delivery.clock import Clocks
from headgate.errors import HeadgateError

_KEY_S: Final = 60.0
"""How long a key is used before the store is asked for it again."""
_RENEWED: Final = 0.8
"""The part of a token's life after which the next one is made."""


class Identity(NamedTuple):
    """Who a token is of, and for.

    Attributes:
        subject: Of the token.
        audience: Of the token.
    """

    subject: str
    audience: str


class Signer(Protocol):
    """What is needed of `control.signing_keys.SigningKeys`."""

    def current(self) -> SigningKey | None:
        """The key that signs now; may block."""


class NoSigner:
    """Has no key."""

    def current(self) -> SigningKey | None:
        """See `Signer`."""


class IdentityTokens:
    """Tokens of all triggers. Lives on one event loop.

    Args:
        signer: Has the key.
        issuer: URL of this server.
        clocks: Time.
    """

    def __init__(self, signer: Signer, issuer: str, clocks: Clocks) -> None:
        self._signer = signer
        self._issuer = issuer
        self._clocks = clocks
        self._key: SigningKey | None = None
        self._key_until = float("-inf")
        self._kept: OrderedDict[Identity, tuple[str, str, float]] = OrderedDict()

    async def get(self, identity: Identity) -> str:
        """A token that has a while to live.

        Raises:
            CredentialsError: There is no key to sign it by.
        """
        now = self._clocks.now()
        if self._key is None or now >= self._key_until:
            self._key = await self._current()
            self._key_until = now + _KEY_S
        kept = self._kept.get(identity)
        if kept is not None and kept[0] == self._key.id and now < kept[2]:
            return kept[1]
        issued = self._clocks.now_us() // 1_000_000
        claims = {
            "iss": self._issuer,
            "sub": identity.subject,
            "aud": [identity.audience],
            "iat": issued,
            "nbf": issued,
            "exp": issued + int(limits.IDENTITY_TOKEN_S),
        }
        token = jwt.encode(claims, self._key.pem, ALGORITHM, headers={"kid": self._key.id})
        self._kept[identity] = (self._key.id, token, now + limits.IDENTITY_TOKEN_S * _RENEWED)
        while len(self._kept) > limits.OAUTH_TOKENS_MAX:
            self._kept.popitem(last=False)
        return token

    async def _current(self) -> SigningKey:
        try:
            key = await asyncio.to_thread(self._signer.current)
        except HeadgateError as error:
            raise CredentialsError("NoSigningKey", error.message) from error
        if key is None:
            raise CredentialsError("NoSigningKey", "there is no key yet to sign tokens by")
        return key
