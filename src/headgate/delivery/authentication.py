"""What an attempt carries so that its receiver knows who sends it: headers, tokens, signatures, certificates.

Secrets are read when they are first needed, and again once they have changed. Nothing is sent without what the rules
ask for: an attempt whose Secret is missing fails, and is tried again.

Signatures are those of Standard Webhooks 1.0: HMAC-SHA256 over id, time and body, one for each secret.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from headgate.auth.user import subject_of
from headgate.delivery.post import PostOptions, Transport
from headgate.delivery.retry import CREDENTIALS, Clocks, Outcome
from headgate.delivery.tokens import Identity, IdentityTokens, Tokens
from headgate.delivery.webhook_handshake import ORIGIN, Handshakes
from headgate.objects.kinds.credentials import ClientTls, CredentialsError, DeliveryCredentials, credentials_of
from headgate.objects.kinds.routing import Target
from headgate.objects.store.secret_store import SecretTable
from headgate_api import limits
from headgate_api.errors import UnavailableError
from headgate_api.event.model import Event
from headgate_api.objects.kinds import AuthSpec, Secret

_ID_BYTES = 18


def message_id(event: Event, more: str = "") -> str:
    """The id of what is sent: the same for every attempt, and without a dot, which separates what is signed.

    `more` tells another sending of the same event apart, such as a replay.
    """
    name = "\0".join((event.source, event.id, more)).encode()
    return "msg_" + base64.urlsafe_b64encode(blake2b(name, digest_size=_ID_BYTES).digest()).decode()


def batch_id(body: bytes) -> str:
    """The id of several events that are sent at once: another one when they are not the same events."""
    return "msg_" + base64.urlsafe_b64encode(blake2b(body, digest_size=_ID_BYTES).digest()).decode()


def signed(keys: Sequence[bytes], id_: str, time_s: int, body: bytes) -> list[tuple[str, str]]:
    """The headers `webhook-id`, `webhook-timestamp` and `webhook-signature`. `time_s` counts from 1970."""
    text = b"%b.%d.%b" % (id_.encode(), time_s, body)
    made = (base64.b64encode(hmac.digest(key, text, "sha256")).decode() for key in keys)
    signatures = " ".join(f"v1,{one}" for one in made)
    return [("webhook-id", id_), ("webhook-timestamp", str(time_s)), ("webhook-signature", signatures)]


_UNAUTHORIZED: Final = 401
Headers = Sequence[tuple[str, str]]


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
        return cls.of(
            target.namespace, target.delivery.auth, target.subscriber_ca, _identity(target, target.subscriber_audience)
        )

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
        headers: Headers,
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
        if credentials.oauth is None and access.identity is None:
            return await self._transport.post(url, sent, body, timeout_s, ready.options)
        try:
            if access.identity is not None:
                token = await self._identities.get(access.identity)
                return await self._post_by(token, url, sent, body, timeout_s, ready.options)
            assert credentials.oauth is not None
            token = await self._tokens.get(credentials.oauth)
            outcome = await self._post_by(token, url, sent, body, timeout_s, ready.options)
            if outcome.status == _UNAUTHORIZED and self._tokens.refused(credentials.oauth, token):
                token = await self._tokens.get(credentials.oauth)
                outcome = await self._post_by(token, url, sent, body, timeout_s, ready.options)
        except CredentialsError as error:
            return Outcome(0, CREDENTIALS, str(error))
        return outcome

    async def _post_by(
        self, token: str, url: str, headers: Headers, body: bytes, timeout_s: float, options: PostOptions | None
    ) -> Outcome:
        bearer = ("authorization", f"Bearer {token}")
        return await self._transport.post(url, [*headers, bearer], body, timeout_s, options)

    async def _read(self, access: Access) -> _Ready | Outcome:
        """What the Secrets hold now; kept until one of the namespace changes."""
        epoch = self._epoch
        found = await asyncio.to_thread(self._found, access)
        if epoch == self._epoch and not isinstance(found, _Unavailable):
            if self._count >= limits.CREDENTIALS_KEPT_MAX:
                self._forget(frozenset(self._known))
            kept = self._known.setdefault(access.namespace, {})
            self._count += access not in kept
            kept[access] = found
        return found.outcome if isinstance(found, _Unavailable) else found

    def _secret(self, namespace: str, name: str) -> Secret | None:
        return self._secrets.get(namespace, name) if self._secrets is not None else None

    def _found(self, access: Access) -> _Ready | Outcome | _Unavailable:
        credentials = DeliveryCredentials()
        if access.auth is not None:
            try:
                credentials = credentials_of(access.auth, lambda name: self._secret(access.namespace, name))
            except CredentialsError as error:
                return Outcome(0, CREDENTIALS, str(error))
            except UnavailableError as error:
                return _Unavailable(Outcome(0, CREDENTIALS, f"SecretUnreadable: {error.message}"))
        tls = ClientTls(access.ca_certs, credentials.identity)
        names = {name for name, _ in credentials.headers}
        if credentials.oauth is not None or access.identity is not None:
            names.add("authorization")
        if credentials.signing:
            names |= {"webhook-id", "webhook-timestamp", "webhook-signature"}
        options = PostOptions(tls=tls) if tls != ClientTls() else None
        return _Ready(credentials, options, frozenset(names))


@dataclass(frozen=True, slots=True)
class _Unavailable:
    """The store could not be asked: the next attempt asks again."""

    outcome: Outcome
