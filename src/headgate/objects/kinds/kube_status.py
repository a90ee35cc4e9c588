"""Kubernetes' `Status` objects for errors and deletions."""

from __future__ import annotations

from typing import Final

import msgspec

from headgate.auth.authorizer import ForbiddenError
from headgate.filter.cel.errors import FilterError
from headgate_api.errors import HeadgateError
from headgate_api.objects.errors import (
    AlreadyExistsError,
    ApplyConflictError,
    Cause,
    ExceededQuotaError,
    ExpiredError,
    FutureVersionError,
    InvalidObjectError,
    NamespaceError,
    ObjectNotFoundError,
    StaleObjectError,
)
from headgate_api.objects.kinds import Kind, Object

_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


class StatusCause(msgspec.Struct, frozen=True, omit_defaults=True):
    """One broken rule."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the status is about; `kind` is the plural for 404 and 409, as Kubernetes has it.

    The last three are of a filter: where in its text the fault is (code points, from 0), the line with a caret below
    the place, and what to do.
    """

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0
    position: int | None = None
    caret: str = ""
    hint: str = ""


class Status(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """`v1.Status`."""

    kind: str
    api_version: str
    metadata: dict[str, str]
    status: str
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0


def failure(code: int, message: str, *, reason: str = "", details: StatusDetails | None = None) -> Status:
    """A failure with Kubernetes' word for the HTTP status."""
    word = reason or _REASONS.get(code, "InternalError")
    return Status("Status", "v1", {}, "Failure", message, word, details, code)


def failure_of(error: HeadgateError) -> Status:
    """An error as a Status; the hint follows the message."""
    is_hinted = error.hint and not isinstance(error, ExpiredError)
    message = f"{error.message} (hint: {error.hint})" if is_hinted else error.message
    details = StatusDetails(retry_after_seconds=1) if error.retriable else None
    reason = ""
    match error:
        case InvalidObjectError():
            causes = tuple(StatusCause(cause.reason, cause.message, cause.field) for cause in _hinted(error))
            details = StatusDetails(error.name, Kind(error.kind).group, error.kind, causes=causes)
        case ApplyConflictError():
            conflicts = ((one.field, f"conflict with {one.owner}") for one in error.conflicts)
            causes = tuple(StatusCause("FieldManagerConflict", text, field) for field, text in conflicts)
            details = StatusDetails(causes=causes)
        case ObjectNotFoundError() | StaleObjectError() | AlreadyExistsError() | ExceededQuotaError():
            details = StatusDetails(error.name, error.kind.group, error.kind.plural)
            reason = "AlreadyExists" if isinstance(error, AlreadyExistsError) else ""
        case ForbiddenError():
            wanted = error.wanted
            details = None if wanted.path else StatusDetails(wanted.name, wanted.group, wanted.resource)
        case NamespaceError():
            details, reason = StatusDetails(error.name, "", "namespaces"), error.reason
        case FutureVersionError():
            causes = (StatusCause("ResourceVersionTooLarge", "Too large resource version"),)
            details, reason = StatusDetails(causes=causes, retry_after_seconds=1), "Timeout"
        case FilterError():
            causes = (StatusCause("FieldValueInvalid", error.reason, error.field),)
            details = StatusDetails(causes=causes, position=error.position, caret=error.caret, hint=error.hint)
    return failure(error.http_status, message, reason=reason, details=details)


def _hinted(error: InvalidObjectError) -> tuple[Cause, ...]:
    """Kubectl shows the causes instead of the message, so the hint stands there too."""
    if not error.hint:
        return error.causes
    first, *others = error.causes
    return (Cause(first.field, first.reason, f"{first.message} (hint: {error.hint})"), *others)


def deleted(obj: Object) -> Status:
    """What a delete answers."""
    meta = obj.metadata
    kind = Kind(obj.kind)
    details = StatusDetails(meta.name, kind.group, kind.plural, meta.uid)
    return Status("Status", "v1", {}, "Success", details=details)
