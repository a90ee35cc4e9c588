"""JSON Web Tokens: read strictly, believed when a known issuer has signed them for us.

What the signature is checked with comes from the configuration alone; what a token says about its own key (`jku`,
`jwk`, `x5u`, `x5c`) is never looked at. Source: RFC 7515, 7519, 8725.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
from jwt.exceptions import (
    ExpiredSignatureError,
    ImmatureSignatureError,
    InvalidAudienceError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)

from headgate.auth.claims import ClaimMapper
from headgate.auth.configuration import read
from headgate.auth.errors import AuthFileError, CredentialsRefusedError
from headgate.auth.event_policies import bound
from headgate.auth.issuer_keys import ALGORITHMS, IssuerClient, IssuerKey, IssuerKeys
from headgate.auth.user import User
from headgate_api.event.json_text import AmbiguousJsonError, MalformedJsonError, check_depth, parse
from headgate_api.limits import CLOCK_SKEW_S, TOKEN_BYTES_MAX

_FORM: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt", "application/jwt"})
_KID_CHARS_MAX: Final = 1_024
_TIMES: Final = ("exp", "nbf", "iat")
_LATEST_S: Final = 253_402_300_800.0
"""The year 10000: what is later is no time."""


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    """An issuer whose tokens are believed: they name it by `url`, and are meant for one of the audiences."""

    url: str
    audiences: tuple[str, ...]
    keys: IssuerKeys
    mapper: ClaimMapper


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """A token that is believed until `ends_s`, seconds since 1970; the thumbprint is of the key that signed it."""

    user: User
    ends_s: float
    issuer: TrustedIssuer
    thumbprint: str


class TokenVerifier:
    """Verifies tokens of some issuers."""

    def __init__(self, issuers: Sequence[TrustedIssuer]) -> None:
        self._issuers = {one.url: one for one in issuers}

    async def verify(self, token: bytes) -> VerifiedToken:
        """Verifies a token; CredentialsRefusedError if it is not believed, IssuerUnavailableError as in `find`."""
        if len(token) > TOKEN_BYTES_MAX or not _FORM.fullmatch(token):
            raise CredentialsRefusedError("malformed", "the token is no signed JSON Web Token")
        head, body, signature = token.split(b".")
        algorithm, kid = _header(_json(head, "header"))
        claims = _json(body, "payload")
        _decoded(signature)
        issuer = self._issuer(claims)
        _check_types(claims)
        keys = await issuer.keys.find(kid, algorithm)
        key = _signing_key(token, keys, algorithm, issuer)
        named = claims["aud"]
        taken = {named} if isinstance(named, str) else set(named)
        user = bound(issuer.mapper.user_of(claims), taken.intersection(issuer.audiences))
        return VerifiedToken(user, float(claims["exp"]), issuer, key.thumbprint)

    def _issuer(self, claims: Mapping[str, Any]) -> TrustedIssuer:
        named = claims.get("iss")
        found = self._issuers.get(named) if isinstance(named, str) else None
        if found is None:
            raise CredentialsRefusedError("issuer", "the token's issuer is not trusted")
        return found


def _signing_key(token: bytes, keys: Sequence[IssuerKey], algorithm: str, issuer: TrustedIssuer) -> IssuerKey:
    """The key that has signed a token, whose times and audience are checked with it."""
    for key in keys:
        try:
            jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=issuer.audiences,
                issuer=issuer.url,
                leeway=CLOCK_SKEW_S,
                options={"require": ["exp", "iss", "aud"], "verify_jti": False},
            )
        except InvalidSignatureError:
            continue
        except ExpiredSignatureError:
            raise CredentialsRefusedError("expired", "the token has expired") from None
        except ImmatureSignatureError:
            raise CredentialsRefusedError("not-yet-valid", "the token is not valid yet") from None
        except (InvalidAudienceError, MissingRequiredClaimError) as error:
            if isinstance(error, MissingRequiredClaimError) and error.claim == "exp":
                raise CredentialsRefusedError("claims", "the token has no expiry") from None
            raise CredentialsRefusedError("audience", "the token is meant for somebody else") from None
        except (PyJWTError, ValueError, TypeError):
            raise CredentialsRefusedError("malformed", "the token breaks a rule of JSON Web Tokens") from None
        return key
    raise CredentialsRefusedError("signature", "the token's signature is wrong")


def _header(header: Mapping[str, Any]) -> tuple[str, str]:
    """The algorithm and the name of the key."""
    algorithm, kid, kind = header.get("alg"), header.get("kid", ""), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise CredentialsRefusedError("algorithm", "the token's algorithm is not one that is taken")
    if "crit" in header or "b64" in header or "zip" in header or "enc" in header:
        raise CredentialsRefusedError("header", "the token's header demands what this server does not do")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise CredentialsRefusedError("header", "the token is of another type")
    if not isinstance(kid, str) or len(kid) > _KID_CHARS_MAX:
        raise CredentialsRefusedError("header", "the token's key has no usable name")
    return algorithm, kid


def _check_types(claims: Mapping[str, Any]) -> None:
    """Refuses claims of types that a library would convert."""
    for name in _TIMES:
        value = claims.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LATEST_S:
            raise CredentialsRefusedError("malformed", f"the claim {name} is no time")
    if not isinstance(claims.get("sub", ""), str):
        raise CredentialsRefusedError("malformed", "the claim sub is no text")
    audience = claims.get("aud", "")
    if not isinstance(audience, str) and not (
        isinstance(audience, list) and all(isinstance(one, str) for one in audience)
    ):
        raise CredentialsRefusedError("malformed", "the claim aud is neither a text nor a list of texts")


def _json(part: bytes, what: str) -> Mapping[str, Any]:
    text = _decoded(part)
    try:
        check_depth(text)
        found = parse(text)
    except (MalformedJsonError, AmbiguousJsonError, RecursionError):
        raise CredentialsRefusedError("malformed", f"the token's {what} is no unambiguous JSON") from None
    if not isinstance(found, dict):
        raise CredentialsRefusedError("malformed", f"the token's {what} is no JSON object")
    return found


def _decoded(part: bytes) -> bytes:
    """Base64url as RFC 7515 has it: no padding, and no bits that mean nothing."""
    try:
        found = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except ValueError:
        raise CredentialsRefusedError("malformed", "the token is no Base64") from None
    if base64.urlsafe_b64encode(found).rstrip(b"=") != part:
        raise CredentialsRefusedError("malformed", "the token is no Base64")
    return found


def trusted_issuers(path: Path) -> tuple[TrustedIssuer, ...]:
    """The issuers of an `AuthenticationConfiguration`; nothing is fetched yet."""
    found = []
    for number, one in enumerate(read(path)):
        try:
            client = IssuerClient(one.issuer.certificate_authority)
            mapper = ClaimMapper(one, f"jwt[{number}]")
        except AuthFileError as error:
            raise AuthFileError(f"--authentication-config {path}: {error.message}", hint=error.hint) from error
        keys = IssuerKeys(one.issuer.url, one.issuer.discovery_url, client.get)
        found.append(TrustedIssuer(one.issuer.url, one.issuer.audiences, keys, mapper))
    return tuple(found)
