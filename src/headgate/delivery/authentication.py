"""What an attempt carries so that its receiver knows who sends it: headers, tokens, signatures, certificates.

Secrets are read when they are first needed, and again once they have changed. Nothing is sent without what the rules
ask for: an attempt whose Secret is missing fails, and is tried again.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

import jwt
import msgspec

from headgate.auth.user import subject_of
from headgate.delivery.post import PostOptions, RequestHeaders, Transport
from headgate.delivery.retry import CREDENTIALS, Clocks, Outcome
from headgate.delivery.webhook_handshake import ORIGIN, Handshakes
from headgate.objects.kinds.credentials import (
    ClientTls,
    CredentialsError,
    DeliveryCredentials,
    OAuthClient,
    credentials_of,
)
from headgate.objects.kinds.routing import Target
from headgate.objects.store.secret_store import SecretTable
from headgate.objects.store.signing_keys import ALGORITHM, SigningKey, SigningKeys
from headgate.observe.logs import tell_failure
from headgate_api import limits
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.event.model import Event
from headgate_api.objects.kinds import AuthSpec, Secret

# --- tokens ---------------------------------------------------------------------------------------
# An OAuth server is asked by client credentials (RFC 6749, section 4.4). Its URL is a person's like any other: it is
# asked through the same policy, without redirects, bounded in time and bytes. Of its answer only an error's name is
# told. A trigger's own token is a JSON Web Token, which a receiver checks by the server's key set, as those of any
# OpenID provider. The subject is the service account that Knative would make for the trigger.

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
        """A token that has not expired; who asks at the same time shares the request. Raises CredentialsError."""
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


# --- requests -------------------------------------------------------------------------------------

_ID_BYTES: Final = 18
_UNAUTHORIZED: Final = 401


def message_id(event: Event, more: str = "") -> str:
    """The id of what is sent: the same for every attempt. `more` tells another sending of the event apart, a replay."""
    return batch_id("\0".join((event.source, event.id, more)).encode())


def batch_id(body: bytes) -> str:
    """The same of a batch. It has no dot, which separates what is signed."""
    return "msg_" + base64.urlsafe_b64encode(blake2b(body, digest_size=_ID_BYTES).digest()).decode()


def signed(keys: Sequence[bytes], id_: str, time_s: int, body: bytes) -> list[tuple[str, str]]:
    """The headers of Standard Webhooks 1.0, with an HMAC-SHA256 by each key. `time_s` counts from 1970."""
    text = b"%b.%d.%b" % (id_.encode(), time_s, body)
    made = (base64.b64encode(hmac.digest(key, text, "sha256")).decode() for key in keys)
    signatures = " ".join(f"v1,{one}" for one in made)
    return [("webhook-id", id_), ("webhook-timestamp", str(time_s)), ("webhook-signature", signatures)]


class Access(NamedTuple):
    """How requests to one place authenticate."""

    namespace: str  # of the Secrets
    auth: AuthSpec | None
    ca_certs: str = ""  # CA of the place, as PEM, beside the system's; empty for none
    identity: Identity | None = None

    @classmethod
    def of(
        cls, namespace: str, auth: AuthSpec | None, ca_certs: str, identity: Identity | None = None
    ) -> Access | None:
        """None where there is nothing to add to a request."""
        return cls(namespace, auth, ca_certs, identity) if auth is not None or ca_certs or identity else None

    @classmethod
    def to_subscriber(cls, target: Target) -> Access | None:
        identity = _identity(target, target.subscriber_audience)
        return cls.of(target.namespace, target.delivery.auth, target.subscriber_ca, identity)

    @classmethod
    def to_sink(cls, target: Target) -> Access | None:
        """Of requests to its dead-letter sink, which is never shown what is for the subscriber."""
        rules = target.delivery
        identity = _identity(target, rules.dead_letter_audience)
        return cls.of(target.namespace, rules.dead_letter_auth, rules.dead_letter_ca, identity)


def _identity(target: Target, audience: str) -> Identity | None:
    return Identity(subject_of(target.name), audience) if audience else None


@dataclass(frozen=True, slots=True)
class _Ready:
    credentials: DeliveryCredentials
    options: PostOptions | None
    names: frozenset[str]


class RequestAuthentication:
    """Makes requests that authenticate. Lives on one event loop."""

    def __init__(
        self,
        transport: Transport,
        secrets: SecretTable | None,
        clocks: Clocks,
        identities: IdentityTokens | None = None,
    ) -> None:
        self._transport = transport
        self._secrets = secrets
        self._clocks = clocks
        self._tokens = Tokens(transport, clocks)
        self._identities = identities or IdentityTokens(None, "", clocks)
        self._known: dict[str, dict[Access, _Ready | Outcome]] = {}
        self._count = 0
        self._epoch = 0
        self._version = -1

    async def refresh(self) -> None:
        """Forget what Secrets held that have changed."""
        if self._secrets is None:
            return
        self._version, namespaces = await asyncio.to_thread(self._secrets.changed, self._version)
        if namespaces is None:
            self._forget(frozenset(self._known))
        elif namespaces:
            self._forget(namespaces)

    def _forget(self, namespaces: frozenset[str]) -> None:
        self._epoch += 1
        for namespace in namespaces:
            self._count -= len(self._known.pop(namespace, ()))

    async def post(
        self,
        access: Access,
        id_: str,
        url: str,
        headers: RequestHeaders,
        body: bytes,
        timeout_s: float,
        handshakes: Handshakes | None = None,
        rate_per_s: float | None = None,
    ) -> Outcome:
        """One attempt, see `Transport.post`; `id_` is what is signed as the id of the message.

        `timeout_s` is for the request alone: a token has a time of its own. With `handshakes` the receiver is asked
        first, about `rate_per_s` requests; None for no bound.
        """
        ready = self._known.get(access.namespace, {}).get(access)
        if ready is None:
            ready = await self._read(access)
        if isinstance(ready, Outcome):
            return ready
        if handshakes is not None:
            refusal = await handshakes.refusal(url, rate_per_s, ready.options, timeout_s)
            if refusal is not None:
                return refusal
            headers = [*(one for one in headers if one[0] != ORIGIN), (ORIGIN, handshakes.origin)]
        credentials = ready.credentials
        sent = [header for header in headers if header[0] not in ready.names] if ready.names else list(headers)
        sent += credentials.headers
        if credentials.signing:
            sent += signed(credentials.signing, id_, self._clocks.now_us() // 1_000_000, body)

        async def post(token: str = "") -> Outcome:
            bearer = [("authorization", f"Bearer {token}")] if token else []
            return await self._transport.post(url, sent + bearer, body, timeout_s, ready.options)

        try:
            if access.identity is not None:
                return await post(await self._identities.get(access.identity))
            if credentials.oauth is None:
                return await post()
            token = await self._tokens.get(credentials.oauth)
            outcome = await post(token)
            if outcome.status == _UNAUTHORIZED and self._tokens.refused(credentials.oauth, token):
                outcome = await post(await self._tokens.get(credentials.oauth))
        except CredentialsError as error:
            return Outcome(0, CREDENTIALS, str(error))
        return outcome

    async def _read(self, access: Access) -> _Ready | Outcome:
        """What the Secrets hold now; kept until one of the namespace changes."""
        epoch = self._epoch
        try:
            found = await asyncio.to_thread(self._found, access)
        except UnavailableError as error:  # the store could not be asked: the next attempt asks again
            return Outcome(0, CREDENTIALS, f"SecretUnreadable: {error.message}")
        if epoch == self._epoch:
            if self._count >= limits.CREDENTIALS_KEPT_MAX:
                self._forget(frozenset(self._known))
            kept = self._known.setdefault(access.namespace, {})
            self._count += access not in kept
            kept[access] = found
        return found

    def _secret(self, namespace: str, name: str) -> Secret | None:
        return self._secrets.get(namespace, name) if self._secrets is not None else None

    def _found(self, access: Access) -> _Ready | Outcome:
        credentials = DeliveryCredentials()
        if access.auth is not None:
            try:
                credentials = credentials_of(access.auth, lambda name: self._secret(access.namespace, name))
            except CredentialsError as error:
                return Outcome(0, CREDENTIALS, str(error))
        tls = ClientTls(access.ca_certs, credentials.identity)
        names = {name for name, _ in credentials.headers}
        if credentials.oauth is not None or access.identity is not None:
            names.add("authorization")
        if credentials.signing:
            names |= {"webhook-id", "webhook-timestamp", "webhook-signature"}
        options = PostOptions(tls=tls) if tls != ClientTls() else None
        return _Ready(credentials, options, frozenset(names))
