"""Refusals of requests before any application of the server sees them, as the path's own application would answer."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.types import Scope, Send

from headgate.control.kube_status import failure_of
from headgate.control.publish_uri import RESERVED_NAMESPACES
from headgate.errors import HeadgateError
from headgate.ingress.problem import retry_after_s, send_body, send_problem

_CLOSE: Final = (b"connection", b"close")


async def send_refusal(error: HeadgateError, scope: Scope, send: Send, *headers: tuple[bytes, bytes]) -> None:
    """Answers with an error and closes the connection: the API with a `Status`, anything else with problem details."""
    if scope["path"].lstrip("/").partition("/")[0] not in RESERVED_NAMESPACES:
        await send_problem(send, error, _CLOSE, *headers)
        return
    wait_s = retry_after_s(error)
    later = [(b"retry-after", str(wait_s).encode())] if wait_s is not None else []
    body = msgspec.json.encode(failure_of(error))
    await send_body(send, error.http_status, b"application/json", body, _CLOSE, *later, *headers)
