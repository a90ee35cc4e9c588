"""Kubernetes' `AuthenticationConfiguration`: which issuers of tokens are believed, and how their claims are read.

Source: https://kubernetes.io/docs/reference/config-api/apiserver-config.v1/
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from headgate.auth.errors import AuthFileError
from headgate.auth.static_tokens import read_text
from headgate_api.limits import ISSUER_RULES_MAX, ISSUERS_MAX, OBJECT_DEPTH_MAX, OBJECT_NODES_MAX
from headgate_api.yaml_text import YamlLimits, YamlTextError, only_document

KIND: Final = "AuthenticationConfiguration"
VERSIONS: Final = ("apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1")
_HINT: Final = "docs/howto/authenticate.md has an example"
_EXTRA_KEY: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[a-z0-9._%/-]+")
_RESERVED: Final = ("kubernetes.io", "k8s.io")
_YAML: Final = YamlLimits(OBJECT_DEPTH_MAX, OBJECT_NODES_MAX, merges=False)
_POLICIES: Final = ("", "MatchAny")


class _Part(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of the document; what it does not know is refused, as a rule that is not heard would admit too many."""


class ClaimOrExpression(_Part, frozen=True):
    """Where a value of the user comes from: a claim with a prefix before it, or CEL."""

    claim: str = ""
    prefix: str | None = None
    expression: str = ""

    @property
    def is_set(self) -> bool:
        return bool(self.claim or self.expression)


class ExtraMapping(_Part, frozen=True):
    """A further value of the user."""

    key: str
    value_expression: str


class ClaimMappings(_Part, frozen=True):
    """How claims become a user."""

    username: ClaimOrExpression
    groups: ClaimOrExpression = ClaimOrExpression()
    uid: ClaimOrExpression = ClaimOrExpression()
    extra: tuple[ExtraMapping, ...] = ()


class ClaimRule(_Part, frozen=True):
    """A rule that a token's claims must keep."""

    claim: str = ""
    required_value: str = ""
    expression: str = ""
    message: str = ""


class UserRule(_Part, frozen=True):
    """A rule that the user must keep whom a token stands for."""

    expression: str
    message: str = ""


class IssuerSettings(_Part, frozen=True):
    """Who issues tokens, and for whom."""

    url: str
    audiences: tuple[str, ...]
    discovery_url: str = msgspec.field(default="", name="discoveryURL")
    certificate_authority: str = ""
    audience_match_policy: str = ""
    egress_selector_type: str = ""


class JwtSettings(_Part, frozen=True):
    """One issuer with its rules."""

    issuer: IssuerSettings
    claim_mappings: ClaimMappings
    claim_validation_rules: tuple[ClaimRule, ...] = ()
    user_validation_rules: tuple[UserRule, ...] = ()


class _Anonymous(_Part, frozen=True):
    enabled: bool = True
    conditions: tuple[dict[str, str], ...] = ()


class _Document(_Part, frozen=True):
    api_version: str
    kind: str
    jwt: tuple[JwtSettings, ...] = ()
    anonymous: _Anonymous | None = None


def read(path: Path) -> tuple[JwtSettings, ...]:
    """The issuers that a file names, their CEL not compiled yet; AuthFileError names the field that cannot be used."""
    text = read_text(path, "--authentication-config", _HINT)
    try:
        document = msgspec.convert(only_document(text.encode(), _YAML), _Document)
        _check(document)
    except (YamlTextError, ValueError) as error:
        raise AuthFileError(f"--authentication-config {path}: {error}", hint=_HINT) from error
    return document.jwt


def is_loopback_url(url: str) -> bool:
    """Whether a URL names this machine by an address, or as `localhost`."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_url(url: str, field: str) -> None:
    """Checks a URL that the server asks; ValueError unless it is absolute and plain, by https or of this machine."""
    found = urlsplit(url)
    if not found.hostname or found.username is not None or found.query or found.fragment:
        raise ValueError(f"{field}: {url!r} is no URL of an issuer")
    if found.scheme != "https" and not (found.scheme == "http" and is_loopback_url(url)):
        raise ValueError(f"{field}: {url!r} must begin with https://; only an issuer on loopback may have http://")


def _check(document: _Document) -> None:
    if document.kind != KIND or document.api_version not in VERSIONS:
        raise ValueError(f"apiVersion and kind must be {VERSIONS[0]} and {KIND}")
    if document.anonymous is not None and document.anonymous.enabled:
        raise ValueError("anonymous.enabled: use headgate serve --allow-anonymous")
    if not document.jwt:
        raise ValueError("jwt: there is no issuer")
    if len(document.jwt) > ISSUERS_MAX:
        raise ValueError(f"jwt: there are more than {ISSUERS_MAX} issuers")
    for number, one in enumerate(document.jwt):
        _check_issuer(one, f"jwt[{number}]")
    for field, values in (
        ("url", [one.issuer.url for one in document.jwt]),
        ("discoveryURL", [one.issuer.discovery_url for one in document.jwt if one.issuer.discovery_url]),
    ):
        if len(set(values)) < len(values):
            raise ValueError(f"jwt: two issuers have the same {field}")


def _check_issuer(one: JwtSettings, at: str) -> None:
    issuer = one.issuer
    check_url(issuer.url, f"{at}.issuer.url")
    if issuer.discovery_url:
        check_url(issuer.discovery_url, f"{at}.issuer.discoveryURL")
        if issuer.discovery_url.rstrip("/") == issuer.url.rstrip("/"):
            raise ValueError(f"{at}.issuer.discoveryURL: must not be the URL of the issuer")
    if not issuer.audiences or not all(issuer.audiences) or len(set(issuer.audiences)) < len(issuer.audiences):
        raise ValueError(f"{at}.issuer.audiences: at least one, none twice, none empty")
    if issuer.audience_match_policy not in _POLICIES:
        raise ValueError(f"{at}.issuer.audienceMatchPolicy: must be MatchAny")
    if len(issuer.audiences) > 1 and not issuer.audience_match_policy:
        raise ValueError(f"{at}.issuer.audienceMatchPolicy: must be MatchAny, as there are several audiences")
    if issuer.egress_selector_type:
        raise ValueError(f"{at}.issuer.egressSelectorType: Headgate has no egress selectors")
    lists = (issuer.audiences, one.claim_validation_rules, one.user_validation_rules, one.claim_mappings.extra)
    if any(len(each) > ISSUER_RULES_MAX for each in lists):
        raise ValueError(f"{at}: a list has more than {ISSUER_RULES_MAX} entries")
    _check_mappings(one.claim_mappings, f"{at}.claimMappings")
    for number, rule in enumerate(one.claim_validation_rules):
        if bool(rule.claim) is bool(rule.expression):
            raise ValueError(f"{at}.claimValidationRules[{number}]: a claim with requiredValue, or an expression")
    _check_email(one, at)


def _check_mappings(mappings: ClaimMappings, at: str) -> None:
    for name, one in (("username", mappings.username), ("groups", mappings.groups), ("uid", mappings.uid)):
        if one.claim and one.expression:
            raise ValueError(f"{at}.{name}: claim and expression exclude each other")
        if one.prefix is not None and not one.claim:
            raise ValueError(f"{at}.{name}.prefix: needs a claim")
    if not mappings.username.is_set:
        raise ValueError(f"{at}.username: a claim or an expression")
    for name, one in (("username", mappings.username), ("groups", mappings.groups)):
        if one.claim and one.prefix is None:
            raise ValueError(f'{at}.{name}.prefix: must be given beside a claim; "" for none')
    if mappings.uid.prefix is not None:
        raise ValueError(f"{at}.uid.prefix: a uid has no prefix")
    keys = [one.key for one in mappings.extra]
    for key in keys:
        domain = key.partition("/")[0]
        if not _EXTRA_KEY.fullmatch(key):
            raise ValueError(f"{at}.extra: the key {key!r} is no domain and path in lower case, as example.com/team")
        if domain in _RESERVED or domain.endswith(tuple(f".{one}" for one in _RESERVED)):
            raise ValueError(f"{at}.extra: the key {key!r} is Kubernetes' own")
    if len(set(keys)) < len(keys):
        raise ValueError(f"{at}.extra: a key is there twice")


def _check_email(one: JwtSettings, at: str) -> None:
    """Who takes an address of e-mail for a name says what he thinks of those that nobody has verified."""
    if "claims.email" not in re.sub(r"claims\.email_verified", "", one.claim_mappings.username.expression):
        return
    texts = [
        one.claim_mappings.username.expression,
        *(each.value_expression for each in one.claim_mappings.extra),
        *(rule.expression for rule in one.claim_validation_rules),
    ]
    if not any("claims.email_verified" in text or "claims.?email_verified" in text for text in texts):
        raise ValueError(
            f"{at}.claimMappings.username.expression: uses claims.email, so that a rule or mapping must use "
            "claims.email_verified"
        )
