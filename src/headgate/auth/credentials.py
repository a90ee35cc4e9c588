"""What a client shows of itself: a token, a certificate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from headgate.auth.errors import CredentialsRefusedError
from headgate.auth.user import User, authenticated, checked
from headgate_api.limits import TOKEN_BYTES_MAX

AUTHORIZATION: Final = b"authorization"
"""The header that a token comes in."""
_SCHEME: Final = b"bearer "


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one request shows: headers `Authorization` in order, a certificate that TLS has verified (DER)."""

    authorization: tuple[bytes, ...] = ()
    certificate: bytes = b""
    address: str = ""


def bearer_token(values: Iterable[bytes]) -> bytes:
    """The token in the headers `Authorization`; empty without such a header, CredentialsRefusedError for a bad one."""
    found = list(values)
    if not found:
        return b""
    if len(found) > 1:
        raise CredentialsRefusedError("scheme", "there are several headers Authorization")
    value = found[0]
    if value[: len(_SCHEME)].lower() != _SCHEME:
        raise CredentialsRefusedError("scheme", "the header Authorization has another scheme than Bearer")
    token = value[len(_SCHEME) :].strip(b" ")
    if len(token) > TOKEN_BYTES_MAX:
        raise CredentialsRefusedError("malformed", f"the token is over {TOKEN_BYTES_MAX} bytes")
    if not token or not token.isascii() or b" " in token:
        raise CredentialsRefusedError("malformed", "the header Authorization holds no token")
    return token


# --- certificates ---------------------------------------------------------------------------------
# As Kubernetes reads them: the common name is the user, organizations are groups. TLS has verified them before.
# Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates


_KEPT: Final = 4_096
"""Certificates whose user is remembered: as many as one client has connections."""


@lru_cache(_KEPT)
def user_of_certificate(der: bytes) -> User | None:
    """The user that a certificate names; None without a common name, CredentialsRefusedError for a bad subject."""
    try:
        subject = x509.load_der_x509_certificate(der).subject
        names = [str(one.value) for one in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        groups = [str(one.value) for one in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    except (ValueError, x509.UnsupportedGeneralNameType) as error:
        raise CredentialsRefusedError("certificate", "the subject of the certificate cannot be read") from error
    if len(names) > 1:
        raise CredentialsRefusedError("certificate", "the subject of the certificate has several common names")
    if not names or not names[0]:
        return None
    problem = checked(user := authenticated(names[0], tuple(groups)))
    if problem:
        raise CredentialsRefusedError("certificate", f"the certificate {problem}")
    return user


@lru_cache(_KEPT)
def der_of(pem: bytes) -> bytes:
    """The first certificate of a text in PEM format, as DER; empty when there is none."""
    try:
        return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    except ValueError:
        return b""
