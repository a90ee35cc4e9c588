"""Problem details (RFC 9457) of a refused request."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from headgate.errors import HeadgateError, OverloadedError
from headgate.event.errors import EventError
from headgate.limits import RETRY_AFTER_OVERLOAD_S, RETRY_AFTER_UNAVAILABLE_S

CONTENT_TYPE: Final = b"application/problem+json"


class ProblemDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a refusal.

    Attributes:
        type: "urn:headgate:problem:" and the code.
        title: The status in words.
        status: The HTTP status.
        detail: What was wrong and where.
        code: Names the error for machines.
        attribute: The CloudEvents attribute that breaks a rule, or "data".
        index: The event's position in its batch.
        hint: What to do about it.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    attribute: str = ""
    index: int | None = None
    hint: str = ""


def problem(error: HeadgateError) -> ProblemDetails:
    """Describes an error to the client that caused it."""
    status = error.http_status
    attribute, index = (error.attribute, error.index) if isinstance(error, EventError) else ("", None)
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
    return RETRY_AFTER_OVERLOAD_S if isinstance(error, OverloadedError) else RETRY_AFTER_UNAVAILABLE_S


encode_problem = msgspec.json.Encoder().encode
