"""The TLS of a client: which CAs it trusts, which certificate it shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import grpc

from headgate.errors import InvalidInputError

_SCHEMES: Final = {"https://": True, "http://": False}


def address_of(target: str, *, is_tls: bool) -> tuple[str, bool]:
    """HOST:PORT of a target, and whether TLS is spoken there.

    Args:
        target: HOST:PORT, perhaps with `https://` or `http://` before it.
        is_tls: What a target without scheme means.

    Raises:
        InvalidInputError: It is something else.
    """
    scheme, is_secure = next(((one, tls) for one, tls in _SCHEMES.items() if target.startswith(one)), ("", is_tls))
    address = target.removeprefix(scheme).rstrip("/")
    if not address or "/" in address:
        raise InvalidInputError(
            f"{target!r} is no HOST:PORT", hint="the address that `headgate serve --grpc` has, with https:// for TLS"
        )
    if scheme == "http://" and is_tls:
        raise InvalidInputError(f"{target} is without TLS, and certificates are given", hint="https://HOST:PORT")
    return address, is_secure


def channel_credentials(cacert: str | Path, client_cert: str | Path, client_key: str | Path) -> grpc.ChannelCredentials:
    """Credentials from files in PEM format.

    Args:
        cacert: The CAs that are trusted; empty for HEADGATE_CACERT, else those that gRPC brings.
        client_cert: The certificate to show; empty for HEADGATE_CLIENT_CERT, else none.
        client_key: Its key; empty for HEADGATE_CLIENT_KEY.

    Raises:
        InvalidInputError: A file cannot be read, or the certificate or the key is missing.
    """
    trusted = _content("cacert", cacert)
    certificate, key = _content("client_cert", client_cert), _content("client_key", client_key)
    if (certificate is None) is not (key is None):
        raise InvalidInputError("client_cert and client_key go together", hint="two files in PEM format")
    return grpc.ssl_channel_credentials(trusted, key, certificate)


def _content(name: str, path: str | Path) -> bytes | None:
    chosen = str(path) or os.environ.get(f"HEADGATE_{name.upper()}", "")
    if not chosen:
        return None
    try:
        content = Path(chosen).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{name} {chosen} cannot be read: {error.strerror}", hint="a PEM file") from error
    if b"-----BEGIN" not in content:
        raise InvalidInputError(f"{name} {chosen} is not in PEM format", hint="it begins with -----BEGIN")
    return content
