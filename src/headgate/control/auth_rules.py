"""Validation of `spec.delivery.auth` and of CA certificates. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cryptography import x509

from headgate.control.auth_spec import AuthSpec, SecretReference
from headgate.control.errors import Cause, forbidden, invalid, not_one_of, required
from headgate.control.secret_rules import KEY, KEY_RULE
from headgate.limits import CA_CERTS_BYTES_MAX, OAUTH_SCOPES_MAX

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}", re.ASCII)
"""A header's name (RFC 9110)."""
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}", re.ASCII)
"""RFC 6749, section 3.3."""
_AUDIENCE_CHARS_MAX: Final = 2_048
_TAKEN: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host"}
    | {"keep-alive", "prefer", "proxy-authorization", "proxy-connection", "te", "trailer", "traceparent", "tracestate"}
    | {"transfer-encoding", "upgrade", "user-agent"}
)
_TAKEN_PREFIXES: Final = ("ce-", "headgate-", "webhook-")
CLIENT_AUTHENTICATIONS: Final = ("basic", "body")


def auth_causes(at: str, auth: AuthSpec | None) -> Iterator[Cause]:
    """What is wrong with an `auth`, its token URL left aside.

    Args:
        at: Its path: `spec.delivery.auth`.
        auth: None for none.
    """
    if auth is None:
        return
    bearers = [name for name in ("bearer", "basic", "oauth2") if getattr(auth, name) is not None]
    for name in bearers[1:]:
        yield forbidden(f"{at}.{name}", f"{bearers[0]} writes the header Authorization already: leave one of them out")
    for name in ("bearer", "basic", "client_certificate", "signature"):
        if (part := getattr(auth, name)) is not None:
            camel = "clientCertificate" if name == "client_certificate" else name
            yield from _reference_causes(f"{at}.{camel}.secretRef", part.secret_ref)
    if auth.header is not None:
        yield from _reference_causes(f"{at}.header.secretRef", auth.header.secret_ref)
        yield from _header_causes(f"{at}.header.name", auth.header.name, has_authorization=bool(bearers))
    if auth.oauth2 is not None:
        where, oauth = f"{at}.oauth2", auth.oauth2
        yield from _reference_causes(f"{where}.secretRef", oauth.secret_ref)
        yield from not_one_of(
            f"{where}.clientAuthentication", oauth.client_authentication or None, CLIENT_AUTHENTICATIONS
        )
        yield from ca_causes(f"{where}.CACerts", oauth.ca_certs)
        if len(oauth.scopes) > OAUTH_SCOPES_MAX:
            yield invalid(f"{where}.scopes", len(oauth.scopes), f"must have at most {OAUTH_SCOPES_MAX} scopes")
        for scope in oauth.scopes[:OAUTH_SCOPES_MAX]:
            if not _SCOPE.fullmatch(scope):
                yield invalid(f"{where}.scopes", scope, "a scope has 1 to 256 printable characters and no space")
        yield from audience_causes(f"{where}.audience", oauth.audience)


def _reference_causes(at: str, reference: SecretReference) -> Iterator[Cause]:
    if not reference.name:
        yield required(f"{at}.name", "the name of a Secret of the trigger's namespace")
    elif not _NAME.fullmatch(reference.name):
        yield invalid(f"{at}.name", reference.name[:253], "must be the name of a Secret")
    if reference.key and not KEY.fullmatch(reference.key):
        yield invalid(f"{at}.key", reference.key[:253], KEY_RULE)


def _header_causes(at: str, name: str, *, has_authorization: bool) -> Iterator[Cause]:
    lower = name.lower()
    if not name:
        yield required(at, "the header's name, such as X-Api-Key")
    elif not _TOKEN.fullmatch(name):
        yield invalid(at, name[:128], "must be the name of an HTTP header")
    elif lower in _TAKEN or lower.startswith(_TAKEN_PREFIXES):
        yield forbidden(at, f"{name} is a header of the delivery itself")
    elif lower == "authorization" and has_authorization:
        yield forbidden(at, "the header Authorization is written already: leave one of them out")


def ca_causes(at: str, pem: str) -> Iterator[Cause]:
    """What is wrong with CA certificates; nothing with none."""
    if not pem:
        return
    if len(pem) > CA_CERTS_BYTES_MAX:
        yield Cause(at, "FieldValueTooLong", f"Too long: may not be more than {CA_CERTS_BYTES_MAX} bytes")
        return
    try:
        x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        yield Cause(at, "FieldValueInvalid", "Invalid value: must be certificates in PEM format")


def audience_causes(at: str, audience: str) -> Iterator[Cause]:
    """What is wrong with an audience; nothing with none."""
    if len(audience) > _AUDIENCE_CHARS_MAX or not audience.isprintable():
        detail = f"must have at most {_AUDIENCE_CHARS_MAX} printable characters"
        yield invalid(at, audience[:100], detail)


def twice_causes(at: str, auth: AuthSpec | None, audience: str) -> Iterator[Cause]:
    """That a token for an audience and an `auth` write the same header."""
    for name in ("bearer", "basic", "oauth2") if auth is not None and audience else ():
        if getattr(auth, name) is not None:
            yield forbidden(f"{at}.{name}", "the token for the audience writes the header Authorization already")
