"""Errors over gRPC: one table from HTTP statuses to gRPC's, and the metadata that goes with a status."""

from __future__ import annotations

from typing import Final

from grpc import StatusCode

from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.rpc.headgate_pb2 import Problem

ERROR: Final = "headgate-error"
"""Metadata at the end of a failed call: the error's code, as in the problem documents over HTTP."""
HINT: Final = "headgate-hint"
"""Metadata at the end of a failed call: what to do about it."""
STATUS_LOST: Final = "Internal error from Core"
"""The details that gRPC for Python gives its caller when a write met a call that was ending, instead of the status that
the server has sent (grpc/grpc#36066); a server never sends that text."""

_DETAIL_CHARS_MAX: Final = 4_096
_HINT_CHARS_MAX: Final = 1_024
"""Both go in headers, of which clients take 8 KiB."""
_STATUSES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.ABORTED,
    413: StatusCode.INVALID_ARGUMENT,
    415: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    429: StatusCode.RESOURCE_EXHAUSTED,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
}


class ProtocolError(InvalidInputError):
    """What a client sends does not follow the service's rules."""

    code = "protocol"


def status(error: HeadgateError) -> tuple[StatusCode, str, tuple[tuple[str, str], ...]]:
    """The status of a call that an error ends, its details, and the metadata behind it."""
    code = _STATUSES.get(error.http_status, StatusCode.INTERNAL)
    metadata = [(ERROR, error.code)]
    if error.hint:
        metadata.append((HINT, _header(error.hint)))
    return code, error.message[:_DETAIL_CHARS_MAX], tuple(metadata)


def problem(error: HeadgateError) -> Problem:
    """An error as a stream reports it that refuses a request and goes on."""
    return Problem(code=error.code, detail=error.message, hint=error.hint, retriable=error.retriable)


def _header(text: str) -> str:
    """Headers are printable ASCII in one line."""
    return " ".join(text.split()).encode("ascii", "backslashreplace").decode()[:_HINT_CHARS_MAX]
