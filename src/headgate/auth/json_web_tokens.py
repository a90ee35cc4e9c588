"""JSON Web Tokens: read strictly, believed when a known issuer has signed them for us.

What a token says about its own key (`jku`, `jwk`, `x5u`, `x5c`) is never looked at. Source: RFC 7515, 7519, 8725.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt

from headgate.auth.configuration import ClaimRule, JwtSettings, UserRule, read
from headgate.auth.errors import AuthFileError, CredentialsRefusedError
from headgate.auth.event_policies import bound
from headgate.auth.issuer_keys import ALGORITHMS, IssuerClient, IssuerKey, IssuerKeys
from headgate.auth.user import User, authenticated, checked
from headgate.filter.cel.engine import Activation, Environment, Expression
from headgate.filter.cel.errors import EvaluationError, FilterError
from headgate_api.event.json_text import AmbiguousJsonError, MalformedJsonError, check_depth, parse
from headgate_api.limits import CLOCK_SKEW_S, FILTER_CHARACTERS_MAX, TOKEN_BYTES_MAX

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
        except jwt.InvalidSignatureError:
            continue
        except jwt.ExpiredSignatureError:
            raise CredentialsRefusedError("expired", "the token has expired") from None
        except jwt.ImmatureSignatureError:
            raise CredentialsRefusedError("not-yet-valid", "the token is not valid yet") from None
        except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError) as error:
            if isinstance(error, jwt.MissingRequiredClaimError) and error.claim == "exp":
                raise CredentialsRefusedError("claims", "the token has no expiry") from None
            raise CredentialsRefusedError("audience", "the token is meant for somebody else") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise CredentialsRefusedError("malformed", "the token breaks a rule of JSON Web Tokens") from None
        return key
    raise CredentialsRefusedError("signature", "the token's signature is wrong")


def _header(header: Mapping[str, Any]) -> tuple[str, str]:
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


# --- claims ---------------------------------------------------------------------------------------
# From the claims of a token to a user, by the mappings and rules of its issuer. Pure.

Claims = Mapping[str, Any]
"""What a token says, from JSON."""

_ENVIRONMENT: Final = Environment.of_maps("claims", "user")
_CALLED: Final = re.compile(r"""'[^']*'|"[^"]*"|((?:\b(?:sets|ip)\.)?\w+)(?=\s*\()""", re.ASCII)
"""A function, and not what a text in quotes holds."""
_LACKING: Final = re.compile(
    r"find|findAll|isSorted|sum|min|max|indexOf|lastIndexOf|flatten|slice|sort|distinct|range|reverse|sets(\..*)?|url|isURL"
    r"|get(Scheme|Host|Hostname|Port|EscapedPath|Query)|quantity|isQuantity|ip|isIP|ip\.isCanonical|cidr|isCIDR|family"
    r"|containsIP|containsCIDR|masked|prefixLength|semver|isSemver|format|named"
)
"""Functions that Kubernetes offers here and cel-cpp's libraries do not have."""


_Rule = tuple[Expression, str]
"""What must be true, and what is said where it is not."""


class ClaimMapper:
    """Makes users of claims; `at`, such as `jwt[0]`, is a place in the file. AuthFileError for CEL that is wrong."""

    def __init__(self, settings: JwtSettings, at: str) -> None:
        mappings = settings.claim_mappings
        self._mappings = mappings
        self._expressions = {
            name: _compiled(one.expression, f"{at}.claimMappings.{name}.expression")
            for name, one in (("username", mappings.username), ("groups", mappings.groups), ("uid", mappings.uid))
            if one.expression
        }
        self._extra = {
            one.key: _compiled(one.value_expression, f"{at}.claimMappings.extra[{number}].valueExpression")
            for number, one in enumerate(mappings.extra)
        }
        self._required = {rule.claim: rule.required_value for rule in settings.claim_validation_rules if rule.claim}
        self._claim_rules = _rules(settings.claim_validation_rules, f"{at}.claimValidationRules")
        self._user_rules = _rules(settings.user_validation_rules, f"{at}.userValidationRules")

    def user_of(self, claims: Claims) -> User:
        """The user of a token that is otherwise good; CredentialsRefusedError when its claims break a rule."""
        for name, value in self._required.items():
            if claims.get(name) != value or not isinstance(claims.get(name), str):
                raise CredentialsRefusedError("claims", f"the claim {name!r} does not have the value that is required")
        given = Activation({"claims": claims, "user": {}}, _ENVIRONMENT)
        for rule in self._claim_rules:
            _hold(rule, given, "claims")
        user = authenticated(
            self._name(claims, given),
            self._groups(claims, given),
            self._uid(claims, given),
            {key: values for key, one in self._extra.items() if (values := _texts(one, given, f"extra {key}"))},
        )
        if problem := checked(user):
            raise CredentialsRefusedError("claims", f"the token {problem}")
        if self._user_rules:
            extra = {key: list(values) for key, values in user.extra.items()}
            shown = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra}
            given = Activation({"claims": {}, "user": shown}, _ENVIRONMENT)
            for rule in self._user_rules:
                _hold(rule, given, "user")
        return user

    def _name(self, claims: Claims, given: Activation) -> str:
        mapping = self._mappings.username
        if mapping.expression:
            name = _value(self._expressions["username"], given, "username")
        else:
            name = claims.get(mapping.claim)
            if mapping.claim == "email" and claims.get("email_verified", True) is not True:
                raise CredentialsRefusedError("claims", "the address of e-mail in the token is not verified")
        if not isinstance(name, str) or not name:
            raise CredentialsRefusedError("claims", "the claim that names the user is missing, empty or no text")
        return (mapping.prefix or "") + name

    def _uid(self, claims: Claims, given: Activation) -> str:
        mapping = self._mappings.uid
        if not mapping.is_set:
            return ""
        uid = _value(self._expressions["uid"], given, "uid") if mapping.expression else claims.get(mapping.claim)
        if not isinstance(uid, str):
            raise CredentialsRefusedError("claims", "the claim that holds the uid is missing or no text")
        return uid

    def _groups(self, claims: Claims, given: Activation) -> tuple[str, ...]:
        mapping = self._mappings.groups
        if mapping.expression:
            return _texts(self._expressions["groups"], given, "groups")
        found = claims.get(mapping.claim) if mapping.claim else None
        return tuple((mapping.prefix or "") + text for text in _as_texts(found, "groups"))


def _rules(rules: Sequence[ClaimRule | UserRule], at: str) -> list[_Rule]:
    return [
        (_compiled(rule.expression, f"{at}[{number}]"), rule.message)
        for number, rule in enumerate(rules)
        if isinstance(rule, UserRule) or rule.expression
    ]


def _hold(rule: _Rule, given: Activation, reason: str) -> None:
    expression, message = rule
    try:
        held = expression.plain_value(given)
    except EvaluationError:
        held = False
    if held is not True:
        raise CredentialsRefusedError(reason, "the token breaks a rule of the server", hint=message)


def _value(expression: Expression, given: Activation, name: str) -> object:
    try:
        return expression.plain_value(given)
    except EvaluationError as error:
        raise CredentialsRefusedError("claims", f"the token does not say the {name}") from error


def _texts(expression: Expression, given: Activation, name: str) -> tuple[str, ...]:
    found = _value(expression, given, name)
    return tuple(_as_texts([] if found == "" else found, name))


def _as_texts(found: object, name: str) -> list[str]:
    if found is None:
        return []
    texts = [found] if isinstance(found, str) else found
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise CredentialsRefusedError("claims", f"the claim for {name} is neither a text nor a list of texts")
    return [one for one in texts if one]


def _compiled(text: str, field: str) -> Expression:
    if not text.strip() or len(text) > FILTER_CHARACTERS_MAX:
        raise AuthFileError(f"{field}: an expression has 1 to {FILTER_CHARACTERS_MAX} characters", hint="write CEL")
    try:
        return _ENVIRONMENT.compile(text)
    except FilterError as error:
        says, hint = error.reason, error.hint or "claims.sub is a claim of the token"
        lacking = next(filter(_LACKING.fullmatch, _CALLED.findall(text)), None)
        if lacking is not None:
            says, hint = f"Kubernetes has the function {lacking!r}, Headgate does not", "write it in another way"
        raise AuthFileError(f"{field}: {says}", hint=hint) from error
