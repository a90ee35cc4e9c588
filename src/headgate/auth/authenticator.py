"""Who makes a request: by a client certificate, which is looked at first, a token of an issuer, or a token from a file.

A token that was verified is remembered until it expires, its key or line is gone, or TOKEN_CACHED_S_MAX have passed.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headgate.auth.credentials import Credentials, bearer_token, user_of_certificate
from headgate.auth.errors import CredentialsRefusedError, IssuerUnavailableError, SlowedError
from headgate.auth.json_web_tokens import TokenVerifier, TrustedIssuer
from headgate.auth.lockout import RefusalCounter
from headgate.auth.static_tokens import TokenFile, digest_of
from headgate.auth.user import ANONYMOUS, User
from headgate.observe.metrics import TOKENS_REFUSED, TOKENS_VERIFIED
from headgate_api.limits import AUTH_WATCH_S, CLOCK_SKEW_S, TOKEN_CACHED_S_MAX, TOKENS_CACHED_MAX

_NOT_COUNTED: Final = frozenset({"anonymous", "unavailable", "slowed"})
"""Refusals that say nothing about somebody who tries credentials."""


@dataclass(slots=True)
class _Known:
    """A token that was verified, and is verified again at `until_s`; it is of the file (`digest`) or of an issuer."""

    user: User
    until_s: float
    digest: bytes = b""
    issuer: TrustedIssuer | None = None
    thumbprint: str = ""


class Authenticator:
    """Finds out who makes a request. Belongs to an event loop. `clock_s` is since 1970, `steady_s` of any clock."""

    def __init__(
        self,
        tokens: TokenFile | None = None,
        issuers: tuple[TrustedIssuer, ...] = (),
        *,
        allow_anonymous: bool = False,
        clock_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._issuers = issuers
        self._verifier = TokenVerifier(issuers)
        self._allow_anonymous = allow_anonymous
        self._clock_s = clock_s
        self._steady_s = steady_s
        # By the SHA-256 of a header `Authorization`: what is kept in memory admits nobody.
        self._known: dict[bytes, _Known] = {}
        self._refusals = RefusalCounter(clock_s=steady_s)

    def recall(self, authorization: bytes) -> User | None:
        """The user of a header `Authorization` that was verified before and still holds; None: `authenticate` knows.

        The value is the only one of its request, which shows no certificate. Every request passes here, so this makes
        no objects but the digest.
        """
        known = self._known.get(hashlib.sha256(authorization).digest())
        if known is not None and self._steady_s() < known.until_s and self._holds(known):
            return known.user
        return None

    async def authenticate(self, credentials: Credentials) -> User:
        """Who makes a request; CredentialsRefusedError, IssuerUnavailableError or SlowedError."""
        try:
            return await self._authenticate(credentials)
        except (CredentialsRefusedError, IssuerUnavailableError, SlowedError) as error:
            TOKENS_REFUSED.labels(error.reason).inc()
            if error.reason not in _NOT_COUNTED:
                self._refusals.count(credentials.address)
            raise

    async def keep(self) -> None:
        """Keeps the file of tokens and the issuers' keys fresh; never ends."""
        works = [one.keys.keep() for one in self._issuers]
        if self._tokens is not None:
            works.append(self._watch(self._tokens))
        await asyncio.gather(asyncio.Event().wait(), *works)

    async def _authenticate(self, credentials: Credentials) -> User:
        if credentials.certificate and (user := user_of_certificate(credentials.certificate)) is not None:
            return user
        token = bearer_token(credentials.authorization)
        if not token:
            if self._allow_anonymous:
                return ANONYMOUS
            hint = "send a token (Authorization: Bearer)"
            raise CredentialsRefusedError("anonymous", "the request does not say who makes it", hint=hint)
        shown = credentials.authorization[0]
        user = self.recall(shown)
        if user is not None:
            return user
        key = hashlib.sha256(shown).digest()
        if self._known.pop(key, None) is None:  # one that was good before is tried again, whatever others there do
            self._refusals.check(credentials.address)
        known = await self._verify(token)
        self._remember(key, known)
        return known.user

    def _holds(self, known: _Known) -> bool:
        """Whether what a known token rests on is still there: its key, or its line."""
        if known.issuer is not None:
            return known.issuer.keys.has(known.thumbprint)
        return self._tokens is not None and self._tokens.user_of(known.digest) is known.user

    async def _verify(self, token: bytes) -> _Known:
        digest = digest_of(token)
        user = self._tokens.user_of(digest) if self._tokens is not None else None
        if user is not None:
            TOKENS_VERIFIED.labels("token").inc()
            return _Known(user, self._steady_s() + TOKEN_CACHED_S_MAX, digest)
        if not self._issuers:
            raise CredentialsRefusedError("unknown", "the token is not known")
        found = await self._verifier.verify(token)
        TOKENS_VERIFIED.labels("jwt").inc()
        left_s = min(found.ends_s + CLOCK_SKEW_S - self._clock_s(), TOKEN_CACHED_S_MAX)
        return _Known(found.user, self._steady_s() + left_s, b"", found.issuer, found.thumbprint)

    def _remember(self, key: bytes, known: _Known) -> None:
        while len(self._known) >= TOKENS_CACHED_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = known

    async def _watch(self, tokens: TokenFile) -> None:
        while True:
            await asyncio.sleep(AUTH_WATCH_S)
            await asyncio.to_thread(tokens.look)
