"""Errors of authentication: why nobody can be told to have made a request."""

from __future__ import annotations

from typing import Final

from headgate_api.errors import InvalidInputError, OverloadedError, UnauthenticatedError, UnavailableError

REALM: Final = "headgate"


class CredentialsRefusedError(UnauthenticatedError):
    """Nobody can be told to make the request, by a `reason` of `TOKENS_REFUSED`; no token is in the message."""

    def __init__(self, reason: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason

    @property
    def challenge(self) -> str:
        """The header `WWW-Authenticate` (RFC 6750)."""
        if self.reason == "anonymous":
            return f'Bearer realm="{REALM}"'
        kind = "invalid_request" if self.reason == "scheme" else "invalid_token"
        return f'Bearer realm="{REALM}", error="{kind}", error_description="{self.message}"'


class IssuerUnavailableError(UnavailableError):
    """The issuer of a token does not answer, and the token's key is not known yet."""

    code = "issuer-unavailable"
    reason = "unavailable"

    def __init__(self) -> None:
        super().__init__("the keys of the token's issuer cannot be had now", hint="try again in a few seconds")


class SlowedError(OverloadedError):
    """An address has shown too many credentials that were refused; in `wait_s` it is heard again."""

    code = "too-many-refusals"
    reason = "slowed"

    def __init__(self, wait_s: float) -> None:
        self.retry_after_s = max(1, int(wait_s + 0.999))
        hint = f"try again in {self.retry_after_s} s"
        super().__init__("too many requests from this address were refused", hint=hint)


class AuthFileError(InvalidInputError):
    """A file of tokens or of issuers cannot be used."""

    code = "auth-file"
