"""Errors of requests to publish, beside those of invalid events, and their problem details (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.types import Send

from headgate.auth.event_policies import EventForbiddenError
from headgate_api.errors import (
    EventError,
    FatalError,
    HeadgateError,
    InvalidInputError,
    OverloadedError,
    TooLargeError,
    UnavailableError,
)
from headgate_api.limits import RETRY_AFTER_OVERLOAD_S, RETRY_AFTER_UNAVAILABLE_S


class BrokerReplacedError(UnavailableError):
    """The broker of a stream has been deleted, and another one has its name: the next stream is of that one."""

    code = "broker-replaced"


class StoredEventFormatError(FatalError):
    """The log's events are in another version's format."""

    code = "event-format"


class MethodNotAllowedError(HeadgateError):
    """The publish URI takes POST and OPTIONS only."""

    code = "method-not-allowed"
    http_status = 405


class TooManyHopsError(InvalidInputError):
    """The event has been through HOPS_MAX brokers: it runs in a circle."""

    code = "too-many-hops"


class HeadersTooLargeError(TooLargeError):
    """All headers of the request together are over REQUEST_HEAD_BYTES_MAX."""

    code = "headers-too-large"
    http_status = 431


class PartlyStoredError(UnavailableError):
    """Of a batch that was split by partition key one part is stored and another is not: send the whole again."""

    code = "partly-stored"


CONTENT_TYPE: Final = b"application/problem+json"


class ProblemDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a refusal."""

    type: str  # "urn:headgate:problem:" and the code
    title: str  # the status in words
    status: int
    detail: str
    code: str
    attribute: str = ""  # the CloudEvents attribute that breaks a rule, or "data"
    index: int | None = None  # the event's position in its batch
    hint: str = ""


def problem(error: HeadgateError) -> ProblemDetails:
    """Describes an error to the client that caused it."""
    status = error.http_status
    attribute = error.attribute if isinstance(error, EventError) else ""
    index = error.index if isinstance(error, EventError | EventForbiddenError) else None
    return ProblemDetails(
        f"urn:headgate:problem:{error.code}",
        HTTPStatus(status).phrase,
        status,
        error.message,
        error.code,
        attribute,
        index,
        error.hint,
    )


def retry_after_s(error: HeadgateError) -> int | None:
    """Seconds after which the same request may succeed, None when it never will."""
    if not error.retriable:
        return None
    if isinstance(error, OverloadedError):
        return error.retry_after_s or RETRY_AFTER_OVERLOAD_S
    return RETRY_AFTER_UNAVAILABLE_S


async def send_problem(send: Send, error: HeadgateError, *headers: tuple[bytes, bytes]) -> None:
    """Answers a request with an error: its problem details, and when to come back."""
    wait_s = retry_after_s(error)
    later = [(b"retry-after", str(wait_s).encode())] if wait_s is not None else []
    await send_body(send, error.http_status, CONTENT_TYPE, msgspec.json.encode(problem(error)), *later, *headers)


async def send_body(send: Send, status: int, content_type: bytes, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Answers a request with a whole body."""
    head = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
