"""Tokens that attempts carry: those of OAuth 2.0 servers, and those by which a trigger shows who it is.

An OAuth server is asked by client credentials (RFC 6749, section 4.4), and a token is kept until it expires. A token
endpoint is a URL of a person like any other: it is asked through the same policy, without redirects, bounded in time
and bytes. Nothing of its answer but an error's name is told.

A trigger's own token is a JSON Web Token that this server signs for one audience. A receiver checks it by the server's
key set, as those of any OpenID provider. The subject is the service account that Knative would make for the trigger.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

import jwt
import msgspec

from headgate.delivery.post import PostOptions, Transport
from headgate.delivery.retry import Clocks, Outcome
from headgate.objects.kinds.credentials import CredentialsError, OAuthClient
from headgate.objects.store.signing_keys import ALGORITHM, SigningKey, SigningKeys
from headgate.observe.logs import tell_failure
from headgate_api import limits
from headgate_api.errors import HeadgateError

_ERROR: Final = re.compile(r"[a-z_]{1,64}", re.ASCII)
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,16384}", re.ASCII)
_EARLY: Final = 0.1
"""The part of a token's life in which the next one is asked for."""


class _Granted(msgspec.Struct, frozen=True):
    """The answer (RFC 6749, section 5.1)."""

    access_token: str
    token_type: str
    expires_in: int | float | str | None = None


class _Refused(msgspec.Struct, frozen=True):
    """The answer (RFC 6749, section 5.2)."""

    error: str = ""


@dataclass(slots=True)
class _Kept:
    """What is known of one client's token."""

    value: str  # the token; empty while there is none
    problem: str
    got_at: float  # when it was asked for, monotonic seconds
    until: float  # when it is asked for again, monotonic seconds


class Tokens:
    """Tokens of all clients. Lives on one event loop."""

    def __init__(self, transport: Transport, clocks: Clocks) -> None:
        self._transport = transport
        self._clocks = clocks
        self._kept: OrderedDict[OAuthClient, _Kept] = OrderedDict()
        self._asking: dict[OAuthClient, asyncio.Task[_Kept]] = {}

    async def get(self, client: OAuthClient) -> str:
        """A token that has not expired; who asks at the same time for the same one shares the request.

        Raises CredentialsError when there is none; it is asked for again after OAUTH_RETRY_S.
        """
        kept = self._kept.get(client)
        if kept is None or self._clocks.now() >= kept.until:
            task = self._asking.get(client)
            if task is None:
                task = self._asking[client] = asyncio.create_task(self._ask(client))
                task.add_done_callback(lambda done: self._asked(client, done))
            kept = await asyncio.shield(task)
        if kept.problem:
            raise CredentialsError("TokenNotGranted", kept.problem)
        return kept.value

    def refused(self, client: OAuthClient, token: str) -> bool:
        """A subscriber refused a token: forget it, once in OAUTH_REFUSED_S at most; whether there will be another."""
        kept = self._kept.get(client)
        if kept is None or kept.value != token:
            return True  # somebody else was faster
        if self._clocks.now() - kept.got_at < limits.OAUTH_REFUSED_S:
            return False
        del self._kept[client]
        return True

    def _asked(self, client: OAuthClient, task: asyncio.Task[_Kept]) -> None:
        self._asking.pop(client, None)
        tell_failure(task, "asking for a token failed")

    async def _ask(self, client: OAuthClient) -> _Kept:
        options = PostOptions(tls=client.tls, kept_bytes=limits.OAUTH_ANSWER_BYTES_MAX)
        outcome = await self._transport.post(client.url, client.headers, client.body, limits.OAUTH_S_MAX, options)
        now = self._clocks.now()
        value, problem, life_s = _read(outcome)
        if problem:
            kept = _Kept("", f"{client.url}: {problem}", now, now + limits.OAUTH_RETRY_S)
        else:
            kept = _Kept(value, "", now, now + life_s * (1.0 - _EARLY))
        self._kept[client] = kept
        while len(self._kept) > limits.OAUTH_TOKENS_MAX:
            self._kept.popitem(last=False)
        return kept


def _read(outcome: Outcome) -> tuple[str, str, float]:
    """The token, or why there is none; and how long it lives, in seconds."""
    if outcome.reason:
        return "", f"{outcome.reason}: {outcome.detail}", 0.0
    if outcome.status != 200:
        return "", f"status {outcome.status}{_error_of(outcome.body)}", 0.0
    try:
        granted = msgspec.json.decode(outcome.body, type=_Granted)
        life_s = float(granted.expires_in) if granted.expires_in is not None else limits.OAUTH_LIFE_S_DEFAULT
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        return "", "the answer is no token", 0.0
    if granted.token_type.lower() != "bearer":
        return "", "the answer is no bearer token", 0.0
    if not _TOKEN.fullmatch(granted.access_token):
        return "", "the token cannot stand in a header", 0.0
    return granted.access_token, "", min(max(life_s, limits.OAUTH_RETRY_S), limits.OAUTH_LIFE_S_MAX)


def _error_of(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body, type=_Refused).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return f" {error}" if _ERROR.fullmatch(error) else ""


_KEY_S: Final = 60.0
"""How long a key is used before the store is asked for it again."""
_RENEWED: Final = 0.8
"""The part of a token's life after which the next one is made."""


class Identity(NamedTuple):
    """Who a token is of, and for."""

    subject: str
    audience: str


class IdentityTokens:
    """Tokens of all triggers. Lives on one event loop."""

    def __init__(self, signer: SigningKeys | None, issuer: str, clocks: Clocks) -> None:
        self._signer = signer
        self._issuer = issuer
        self._clocks = clocks
        self._key: SigningKey | None = None
        self._key_until = float("-inf")
        self._kept: OrderedDict[Identity, tuple[str, str, float]] = OrderedDict()

    async def get(self, identity: Identity) -> str:
        """A token that has a while to live. Raises CredentialsError without a key to sign it by."""
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
            key = await asyncio.to_thread(self._signer.current) if self._signer is not None else None
        except HeadgateError as error:
            raise CredentialsError("NoSigningKey", error.message) from error
        if key is None:
            raise CredentialsError("NoSigningKey", "there is no key yet to sign tokens by")
        return key
