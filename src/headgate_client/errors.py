"""The client's errors, and gRPC's statuses as errors."""

from __future__ import annotations

from typing import Final

import grpc
from grpc import aio

from headgate_api.errors import (
    ConflictError,
    HeadgateError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
)
from headgate_api.rpc.errors import ERROR, HINT, STATUS_LOST
from headgate_api.rpc.headgate_pb2 import Problem

_Status = grpc.StatusCode
_ERRORS: Final[dict[grpc.StatusCode, type[HeadgateError]]] = {
    _Status.INVALID_ARGUMENT: InvalidInputError,
    _Status.UNAUTHENTICATED: UnauthenticatedError,
    _Status.NOT_FOUND: NotFoundError,
    _Status.ABORTED: ConflictError,
    _Status.RESOURCE_EXHAUSTED: OverloadedError,
    _Status.UNAVAILABLE: UnavailableError,
}
# Statuses that the peer has not sent: the connection broke, or the server was stopped.
_BROKEN: Final = frozenset([_Status.UNAVAILABLE, _Status.CANCELLED, _Status.UNKNOWN])
_TOO_LARGE: Final = ("larger than max", "size exceeds")
"""In the details that gRPC itself gives with RESOURCE_EXHAUSTED: a message, or metadata, over a limit of either side.
That stays so, unlike the number of calls, which gRPC, or a proxy, refuses with the same status."""

_HANDSHAKES: Final = (
    ("is not in peer certificate", "name the server as its certificate does"),
    ("Hostname Verification Check failed", "name the server as its certificate does"),
    ("CERTIFICATE_VERIFY_FAILED", "cacert= (HEADGATE_CACERT) names the CA that signed the server's certificate"),
    ("WRONG_VERSION_NUMBER", "this port speaks no TLS: HOST:PORT without https://"),
    ("CERTIFICATE_REQUIRED", "client_cert= and client_key= show a certificate of a CA that the server knows"),
)
"""What gRPC says of a failed handshake, and what to do."""


class ServerError(HeadgateError):
    """Something went wrong in the server, or it sent something that this client does not understand."""

    code = "server"


class DisconnectedError(UnavailableError):
    """There is no server, or the connection to it broke."""

    code = "disconnected"


class HandshakeError(HeadgateError):
    """The server or this client does not accept the other's certificate: trying again does not help."""

    code = "handshake"


class RefusedError(HeadgateError):
    """Events that the server will never store; none of their request was stored.

    `first` and `last` are the sequences of the request's events.
    """

    code = "refused"

    def __init__(self, message: str, *, hint: str = "", first: int, last: int) -> None:
        super().__init__(message, hint=hint)
        self.first = first
        self.last = last


class ProducerNameTakenError(ConflictError):
    """Somebody else publishes under this producer's name, so the server would take our events for theirs."""

    code = "producer-name-taken"


class SequenceUnknownError(ConflictError):
    """The server has forgotten this producer's numbers: what is sent again may be stored a second time.

    What was acknowledged is stored. Of what was not, nobody knows; a producer made anew with `first` sends it.
    """

    code = "sequence-unknown"


class ClosedError(HeadgateError):
    """It was closed by its own user."""

    code = "closed"


def error_of(error: aio.AioRpcError, target: str) -> HeadgateError:
    """The error that ended a call to the server at `target`."""
    status, details = error.code(), error.details() or ""
    metadata = {name: value for name, value in error.trailing_metadata() or () if isinstance(value, str)}
    code = metadata.get(ERROR)
    if code is None and (status in _BROKEN or details == STATUS_LOST):
        # A message that was under way when the call ended: gRPC keeps its own error, not the server's.
        for said, hint in _HANDSHAKES:
            if said in details:
                return HandshakeError(f"no TLS connection to {target}: {details}", hint=hint)
        why = "the call was broken off" if details == STATUS_LOST else details or status.name
        return DisconnectedError(
            f"no connection to {target}: {why}",
            hint="is `headgate serve` running, is this the address that its --grpc says, does it speak TLS "
            "(https://HOST:PORT), and does it demand a client certificate?",
        )
    if code is None and status is _Status.UNIMPLEMENTED:
        return ServerError(f"{target} does not answer like Headgate: {details}", hint="the port is that of --grpc")
    kind = _ERRORS.get(status, ServerError)
    if code is None:  # gRPC itself, or something on the way, has made it
        is_busy = status is _Status.RESOURCE_EXHAUSTED and not any(text in details for text in _TOO_LARGE)
        kind = OverloadedError if is_busy else ServerError
    failure = kind(details or status.name, hint=metadata.get(HINT, ""))
    if code is not None:
        failure.code = code
    return failure


def refusal_of(problem: Problem, first: int, last: int) -> RefusedError:
    """Why a request's events were not stored."""
    refused = RefusedError(problem.detail, hint=problem.hint, first=first, last=last)
    refused.code = problem.code or refused.code
    return refused
