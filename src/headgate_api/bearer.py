"""The token that a client shows: from a file, which is read again when it changes."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from headgate_api.errors import InvalidInputError
from headgate_api.limits import TOKEN_BYTES_MAX


class TokenSource:
    """A token, from a text or a file, empty for none. Any thread may ask. Errors name the `option` of the file."""

    def __init__(self, text: str = "", path: str | Path = "", *, option: str = "--token-file") -> None:
        self._option = option
        self._text = _checked(text, "the token") if text else ""
        self._path = Path(path) if str(path) and not text else None
        self._state: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._text or self._path is not None)

    def token(self) -> str:
        """The token as it is now; empty without one. Raises InvalidInputError where the file holds none."""
        if self._path is not None:
            try:
                found = self._path.stat()
                state = (found.st_ino, found.st_size, found.st_mtime_ns)
                if state != self._state:
                    with self._path.open("rb") as file:
                        text = file.read(TOKEN_BYTES_MAX + 2).decode("ascii")
                    self._text = _checked(text.strip(), f"{self._option} {self._path}")
                    self._state = state
            except OSError as error:
                raise InvalidInputError(
                    f"{self._option} {self._path} cannot be read: {error.strerror}",
                    hint="give a file that holds a token",
                ) from error
            except UnicodeDecodeError as error:
                raise InvalidInputError(
                    f"{self._option} {self._path} holds no token", hint="write the token as one line of ASCII"
                ) from error
        return self._text

    def header(self, host: str, *, is_tls: bool) -> str:
        """The header `Authorization` for a server; empty without a token.

        Raises InvalidInputError where the file holds no token, or the token would go over a network in the clear.
        """
        if not self:
            return ""
        if not is_tls and not is_here(host):
            raise InvalidInputError(
                f"the token would go to {host} where others can read it",
                hint="use https://: a token is sent over plain HTTP only on this machine",
            )
        return f"Bearer {self.token()}"


def _checked(token: str, what: str) -> str:
    if not token or len(token) > TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInputError(
            f"{what} holds no token", hint=f"write it as one line of ASCII, at most {TOKEN_BYTES_MAX} characters"
        )
    return token


def is_here(host: str) -> bool:
    """Whether an address or a name of a host is of this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
