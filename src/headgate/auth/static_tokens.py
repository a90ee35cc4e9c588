"""Tokens from a file: Kubernetes' columns, of each token only its hash.

A line is `sha256:HASH,user,uid,"group1,group2"`; uid and groups may be missing. The hash is not salted or slow: the
tokens are 32 random bytes, which nobody guesses.
Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#static-token-file
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from headgate.auth.errors import AuthFileError
from headgate.auth.user import AUTHENTICATED, User, authenticated, checked
from headgate.observe.metrics import TOKEN_FILES
from headgate_api.limits import AUTH_FILE_BYTES_MAX, STATIC_TOKENS_MAX

PREFIX: Final = "headgate_"
"""Begins every token that Headgate makes, so that a search for secrets finds it."""
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_COLUMNS_MAX: Final = 4
_LINE: Final = 'sha256:HASH,user,uid,"group1,group2"'
_ID_DIGITS: Final = 12
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A line of the file, with the SHA-256 of the token."""

    digest: bytes
    user: User

    @property
    def id(self) -> str:
        """The first digits of the hash: names the line without giving away the token."""
        return self.digest.hex()[:_ID_DIGITS]

    @property
    def groups(self) -> list[str]:
        return [group for group in self.user.groups if group != AUTHENTICATED]


def digest_of(token: bytes) -> bytes:
    """The hash by which a token is known."""
    return hashlib.sha256(token).digest()


def new_token() -> str:
    """A token that nobody has: 256 random bits."""
    return PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


def parse(text: str, place: str) -> tuple[StaticToken, ...]:
    """The tokens of a file's text; empty lines, and those that begin with `#`, are passed over."""
    found: dict[bytes, StaticToken] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        at = f"{place}, line {number}"
        token = _token(line, at)
        if token.digest in found:
            raise AuthFileError(f"{at}: this token is in the file already", hint="write one line for each token")
        found[token.digest] = token
        if len(found) > STATIC_TOKENS_MAX:
            problem = f"{place}: there are more than {STATIC_TOKENS_MAX} tokens"
            raise AuthFileError(problem, hint="use an issuer of tokens")
    return tuple(found.values())


def line_of(token: StaticToken) -> str:
    """The line of a token, with its end."""
    text = io.StringIO()
    columns = [f"sha256:{token.digest.hex()}", token.user.name, token.user.uid, ",".join(token.groups)]
    csv.writer(text, lineterminator="\n").writerow(columns)
    return text.getvalue()


def read(path: Path) -> tuple[StaticToken, ...]:
    """The tokens of a file."""
    return parse(read_text(path, "--token-auth-file", "headgate token create makes one"), str(path))


def read_text(path: Path, option: str, hint: str) -> str:
    """A file as text; AuthFileError, which names the option, when it cannot be read, is too large or no UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(AUTH_FILE_BYTES_MAX + 1)
        if len(content) > AUTH_FILE_BYTES_MAX:
            raise AuthFileError(f"{option} {path} is over {AUTH_FILE_BYTES_MAX} bytes", hint=hint)
        return content.decode()
    except OSError as error:
        raise AuthFileError(f"{option} {path} cannot be read: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise AuthFileError(f"{option} {path} is no text in UTF-8", hint=hint) from error


class TokenFile:
    """The tokens in force. `look` is for one thread at a time; `user_of` for any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._judged = self._seen = state_of(path)
        self._users = _by_digest(read(path))

    def user_of(self, digest: bytes) -> User | None:
        return self._users.get(digest)

    def look(self) -> None:
        """Takes up a file that has changed and stays so since the last look; the old tokens stay if it is wrong."""
        state = state_of(self._path)
        if state == self._judged:
            return
        if state != self._seen:
            self._seen = state  # perhaps somebody is still writing
            return
        self._judged = state
        try:
            self._users = _by_digest(read(self._path))
        except AuthFileError as error:
            TOKEN_FILES.labels("refused").inc()
            _log.error("file of tokens not taken up, the old tokens stay", error=error.message, hint=error.hint)
        else:
            TOKEN_FILES.labels("loaded").inc()
            _log.info("file of tokens taken up", tokens=len(self._users))


def _by_digest(tokens: Iterable[StaticToken]) -> Mapping[bytes, User]:
    return {token.digest: token.user for token in tokens}


def _token(line: str, place: str) -> StaticToken:
    try:
        (columns,) = csv.reader([line], strict=True)
    except (csv.Error, ValueError) as error:
        raise AuthFileError(f"{place}: {error}", hint=_LINE) from error
    columns = [column.strip() for column in columns]
    if not 2 <= len(columns) <= _COLUMNS_MAX:
        raise AuthFileError(f"{place}: a line has 2 to 4 columns", hint=_LINE)
    if not _HASH.fullmatch(columns[0]):
        raise AuthFileError(
            f"{place}: the first column is no hash of a token",
            hint="write sha256: and 64 hexadecimal digits, as of `printf %s TOKEN | sha256sum`",
        )
    name, uid, listed = [*columns[1:], "", ""][:3]
    groups = tuple(group.strip() for group in listed.split(",") if group.strip())
    user = authenticated(name, groups, uid)
    if problem := checked(user):
        raise AuthFileError(f"{place}: the line {problem}", hint=_LINE)
    return StaticToken(bytes.fromhex(columns[0].removeprefix("sha256:")), user)


def state_of(path: Path) -> tuple[int, ...]:
    """What changes whenever a file does; empty while it cannot be seen."""
    try:
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    except OSError:
        return ()
