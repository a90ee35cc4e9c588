"""The issuers that are trusted, made of the file that names them."""

from __future__ import annotations

from pathlib import Path

from headgate.auth.claims import ClaimMapper
from headgate.auth.configuration import read
from headgate.auth.errors import AuthFileError
from headgate.auth.issuer_client import IssuerClient
from headgate.auth.issuer_keys import IssuerKeys
from headgate.auth.json_web_tokens import TrustedIssuer


def trusted_issuers(path: Path) -> tuple[TrustedIssuer, ...]:
    """The issuers of an `AuthenticationConfiguration`; nothing is fetched yet.

    Raises:
        AuthFileError: The file cannot be used.
    """
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
