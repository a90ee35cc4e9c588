"""The keys of an issuer: found by its discovery document, fetched again when they are old or one is missing.

While the issuer is away the keys that are known stay. Source:
https://openid.net/specs/openid-connect-discovery-1_0.html, RFC 7517
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import jwt
import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import BuilderError, PyreqwestError

from headgate.auth.configuration import check_url, is_loopback_url
from headgate.auth.errors import AuthFileError, CredentialsRefusedError, IssuerUnavailableError
from headgate.observe.metrics import ISSUER_FETCHES
from headgate_api.errors import HeadgateError
from headgate_api.limits import (
    ISSUER_ANSWER_BYTES_MAX,
    ISSUER_FETCH_S_MAX,
    ISSUER_KEYS_MAX,
    ISSUER_REFETCH_S_MIN,
    ISSUER_REFRESH_S,
)

_log = structlog.get_logger(__name__)
_WELL_KNOWN: Final = "/.well-known/openid-configuration"
_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
ALGORITHMS: Final = _RSA | frozenset(_CURVES.values()) | {"EdDSA"}
"""What a signature may be made with: nothing with a shared secret, and never `none`."""
_RSA_BITS: Final = range(2_048, 8_193)
_PUBLIC_MEMBERS: Final = frozenset({"kty", "n", "e", "crv", "x", "y"})

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
Fetch = Callable[[str], Awaitable[object]]
"""The JSON at a URL; raises IssuerFailedError."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A key with what it may be used for; its name may be empty, its thumbprint tells it from every other key."""

    kid: str
    algorithms: frozenset[str]
    key: PublicKey
    thumbprint: str


class IssuerKeys:
    """The keys of one issuer, whose discovery document is below `url` or at `discovery_url`; of one event loop."""

    def __init__(
        self, url: str, discovery_url: str, fetch: Fetch, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._discovery_url = discovery_url or url.rstrip("/") + _WELL_KNOWN
        self._fetch = fetch
        self._clock_s = clock_s
        self._keys: tuple[IssuerKey, ...] = ()
        self._thumbprints: frozenset[str] = frozenset()
        self._tried_s = float("-inf")
        self._has_failed = False
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str, algorithm: str) -> list[IssuerKey]:
        """The keys that may have signed a token, by the name that it gives (empty for none); at least one.

        Raises CredentialsRefusedError when there is none, IssuerUnavailableError when the issuer does not answer.
        """
        found = self._find(kid, algorithm)
        if not found:
            if self._fetching is not None or self._clock_s() - self._tried_s >= ISSUER_REFETCH_S_MIN:
                await self.refresh()
            found = self._find(kid, algorithm)
        if found:
            return found
        if self._has_failed:
            raise IssuerUnavailableError
        raise CredentialsRefusedError("key", "the issuer has no such key")

    def has(self, thumbprint: str) -> bool:
        return thumbprint in self._thumbprints

    async def refresh(self) -> None:
        """Fetches the keys; all who wait share one fetch. A failure is logged, and the old keys stay."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._refresh())
            self._fetching.add_done_callback(self._fetched)
        await asyncio.shield(self._fetching)

    async def keep(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(ISSUER_REFRESH_S if not self._has_failed else ISSUER_REFETCH_S_MIN)

    def _fetched(self, _: asyncio.Task[None]) -> None:
        self._fetching = None

    def _find(self, kid: str, algorithm: str) -> list[IssuerKey]:
        return [one for one in self._keys if algorithm in one.algorithms and (not kid or one.kid == kid)]

    async def _refresh(self) -> None:
        self._tried_s = self._clock_s()
        try:
            document = _object(await self._fetch(self._discovery_url), "the discovery document")
            if document.get("issuer") != self._url:
                raise IssuerFailedError(f"the discovery document names another issuer than {self._url}")
            place = document.get("jwks_uri")
            if not isinstance(place, str) or (not is_loopback_url(self._url) and not place.startswith("https://")):
                raise IssuerFailedError("the discovery document has no jwks_uri with https")
            check_url(place.partition("?")[0], "jwks_uri")
            keys = read_keys(await self._fetch(place))
        except (IssuerFailedError, ValueError) as error:
            ISSUER_FETCHES.labels("failed").inc()
            _log.warning("keys of an issuer cannot be fetched, the old ones stay", issuer=self._url, problem=str(error))
            self._has_failed = True
            return
        ISSUER_FETCHES.labels("fetched").inc()
        self._keys = keys
        self._thumbprints = frozenset(one.thumbprint for one in keys)
        self._has_failed = False


def read_keys(document: object) -> tuple[IssuerKey, ...]:
    """The keys of a JWK Set that can verify signatures; others are left out. IssuerFailedError for no such set."""
    listed = _object(document, "the JWK Set").get("keys")
    if not isinstance(listed, list) or len(listed) > ISSUER_KEYS_MAX:
        raise IssuerFailedError(f"the JWK Set has no list of at most {ISSUER_KEYS_MAX} keys")
    read = [_key(one) for one in listed if isinstance(one, dict)]
    return tuple(one for one in read if one is not None)


def _key(jwk: Mapping[str, Any]) -> IssuerKey | None:
    """A key; None for one that is not for signatures, too weak, or of a kind that is not taken."""
    kid, use, operations = jwk.get("kid", ""), jwk.get("use", "sig"), jwk.get("key_ops", ["verify"])
    if not isinstance(kid, str) or use != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    public = {name: jwk[name] for name in _PUBLIC_MEMBERS if isinstance(jwk.get(name), str)}
    key: object
    try:
        match public.get("kty"), public.get("crv"):
            case "RSA", _:
                key, possible = jwt.algorithms.RSAAlgorithm.from_jwk(public), _RSA
            case "EC", str(curve) if curve in _CURVES:
                key = jwt.algorithms.ECAlgorithm.from_jwk(public)
                possible = frozenset({_CURVES[curve]})
            case "OKP", "Ed25519":
                key, possible = jwt.algorithms.OKPAlgorithm.from_jwk(public), frozenset({"EdDSA"})
            case _:
                return None
    except (jwt.PyJWTError, ValueError):
        return None
    if isinstance(key, rsa.RSAPublicKey) and key.key_size not in _RSA_BITS:
        return None
    if "alg" in jwk:
        possible &= {jwk["alg"]} if isinstance(jwk["alg"], str) else set()
    if not possible or not isinstance(key, PublicKey):
        return None
    return IssuerKey(kid, possible, key, "|".join(f"{name}={public[name]}" for name in sorted(public)))


def _object(document: object, what: str) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise IssuerFailedError(f"{what} is no JSON object")
    return document


# --- client ---------------------------------------------------------------------------------------
# GET of JSON, https unless it is this machine, bounded in time and bytes.


class IssuerFailedError(HeadgateError):
    """An issuer does not answer, or with something else than it should."""

    code = "issuer-failed"


class IssuerClient:
    """Asks one issuer, known by CAs in PEM, or the system's. Belongs to an event loop once it is used."""

    def __init__(self, certificate_authority: str = "") -> None:
        builder = (
            ClientBuilder()
            .follow_redirects(False)
            .referer(False)
            .gzip(False)
            .brotli(False)
            .zstd(False)
            .deflate(False)
            .user_agent("headgate")
            .connect_timeout(timedelta(seconds=ISSUER_FETCH_S_MAX / 2))
            .timeout(timedelta(seconds=ISSUER_FETCH_S_MAX))
            .pool_max_idle_per_host(0)
        )
        try:
            if certificate_authority:
                if "-----BEGIN CERTIFICATE-----" not in certificate_authority:
                    raise ValueError("no certificate in PEM format")
                builder = builder.add_root_certificate_pem(certificate_authority.encode())
            self._client = builder.build()
        except (BuilderError, ValueError) as error:
            raise AuthFileError(
                f"issuer.certificateAuthority cannot be used: {error}", hint="give certificates in PEM format"
            ) from error

    async def get(self, url: str) -> object:
        try:
            check_url(url, "URL")
            async with (
                asyncio.timeout(ISSUER_FETCH_S_MAX),
                self._client.get(url).header("accept", "application/json").build_streamed() as response,
            ):
                if response.status != 200:
                    raise IssuerFailedError(f"{url} answers with status {response.status}")
                reader, body = response.body_reader, bytearray()
                while (chunk := await reader.read_chunk()) is not None:
                    body += bytes(chunk)
                    if len(body) > ISSUER_ANSWER_BYTES_MAX:
                        raise IssuerFailedError(f"the answer of {url} is over {ISSUER_ANSWER_BYTES_MAX} bytes")
            return msgspec.json.decode(bytes(body))
        except (PyreqwestError, ValueError, RecursionError, TimeoutError) as error:
            raise IssuerFailedError(f"{url} does not answer as an issuer does: {error}") from error

    async def close(self) -> None:
        await self._client.close()
