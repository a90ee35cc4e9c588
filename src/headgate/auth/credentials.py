"""What a client shows of itself: a token, a certificate, an address."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headgate.auth.errors import CredentialsRefusedError
from headgate.limits import TOKEN_BYTES_MAX

AUTHORIZATION: Final = b"authorization"
"""The header that a token comes in."""
_SCHEME: Final = b"bearer "


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one request shows.

    Attributes:
        authorization: Values of the header `Authorization`, in order.
        certificate: The client's certificate, which TLS has verified, as DER; empty without one.
        address: Where the request comes from.
    """

    authorization: tuple[bytes, ...] = ()
    certificate: bytes = b""
    address: str = ""


def bearer_token(values: Iterable[bytes]) -> bytes:
    """The token in the headers `Authorization`; empty without such a header.

    Raises:
        CredentialsRefusedError: There are several headers, another scheme, or no token of a size that is taken.
    """
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
