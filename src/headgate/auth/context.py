"""Where a request's user is: in the ASGI scope, a context variable of gRPC, between processes in a header.

A front never passes that header on from outside.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

import msgspec

from headgate.auth.audit import AuditEntry
from headgate.auth.user import ANONYMOUS, User

USER: Final = "headgate.user"
"""Key of the user in the ASGI scope."""
ENTRY: Final = "headgate.audit"
"""Key of the request's `AuditEntry` in the ASGI scope; not there while nothing is recorded."""
USER_HEADER: Final = b"headgate-user"
"""Header, or metadata, between the processes of a server."""
TOKEN_HEADER: Final = "headgate-token"
"""Shows a front that a request is the dispatcher's: its lineage counts, and it is answered while the server stops."""
_TOKEN: Final = TOKEN_HEADER.encode()

current_user: Final = ContextVar("user", default=ANONYMOUS)
"""The user of the gRPC call that is being answered."""
current_entry: Final[ContextVar[AuditEntry | None]] = ContextVar("entry", default=None)
"""What the audit log will have of the gRPC call that is being answered; None while nothing is recorded."""

_decoder: Final = msgspec.json.Decoder(tuple[str, tuple[str, ...], str, dict[str, tuple[str, ...]], str])


def shows_token(headers: Iterable[tuple[bytes, bytes]], token: bytes) -> bool:
    """Whether a request is this server's own dispatcher's; never where the token is empty."""
    shown = [value for name, value in headers if name == _TOKEN]
    return bool(token) and len(shown) == 1 and hmac.compare_digest(shown[0], token.hex().encode())


def header_of(user: User) -> bytes:
    """A user for `USER_HEADER`."""
    whole = (user.name, user.groups, user.uid, dict(user.extra), user.ceiling)
    return base64.b64encode(msgspec.json.encode(whole))


def user_of(header: bytes) -> User:
    """The user that another process of this server passed on; ValueError for none."""
    return User(*_decoder.decode(base64.b64decode(header, validate=True)))
