"""What can go wrong with an object? Errors that the API words as Kubernetes does."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.control.objects import Kind
from headgate.errors import ConflictError, HeadgateError, InvalidInputError, NotFoundError


@dataclass(frozen=True, slots=True)
class Cause:
    """One field that breaks a rule.

    Attributes:
        field: Path from the object's root: `spec.filter.expression`.
        reason: Kubernetes' word for the rule: `FieldValueRequired`, `FieldValueInvalid`, ...
        message: The rule and the value, without the path.
    """

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(field: str, detail: str) -> Cause:
    """The field is missing or empty."""
    return Cause(field, "FieldValueRequired", f"Required value: {detail}")


def invalid(field: str, value: object, detail: str) -> Cause:
    """The field's value breaks a rule."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause(field, "FieldValueInvalid", f"Invalid value: {text}: {detail}")


def unsupported(field: str, detail: str) -> Cause:
    """The field means something in Knative that Headgate does not do; to ignore it would break its promise."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {detail}")


class InvalidObjectError(InvalidInputError):
    """An object breaks rules; every one is a cause with its field.

    Args:
        causes: At least one.
        kind: `Broker`, `Trigger` or `Subscription`.
        name: The object's name, as far as it is known.
        hint: What to do about it.
    """

    code = "invalid-object"
    http_status = 422

    def __init__(self, causes: tuple[Cause, ...], *, kind: str, name: str = "", hint: str = "") -> None:
        listed = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
        super().__init__(f'{kind}.{Kind(kind).group} "{name}" is invalid: {listed}', hint=hint)
        self.causes = causes
        self.kind = kind
        self.name = name


class MalformedObjectError(InvalidInputError):
    """The body is no object of the kind that was expected (syntax, kind, unknown field)."""

    code = "malformed-object"


class ObjectNotFoundError(NotFoundError):
    """No such object."""

    def __init__(self, kind: Kind, name: str) -> None:
        super().__init__(f'{kind.resource} "{name}" not found')
        self.kind = kind
        self.name = name


class AlreadyExistsError(ConflictError):
    """Create met an object of that name."""

    code = "already-exists"

    def __init__(self, kind: Kind, name: str) -> None:
        super().__init__(f'{kind.resource} "{name}" already exists')
        self.kind = kind
        self.name = name


class StaleObjectError(ConflictError):
    """The object is not the one (uid, resourceVersion) that the caller read; worded as Kubernetes words it."""

    code = "stale"

    def __init__(self, kind: Kind, name: str, detail: str = "") -> None:
        detail = detail or (
            "the object has been modified; please apply your changes to the latest version and try again"
        )
        super().__init__(f'Operation cannot be fulfilled on {kind.resource} "{name}": {detail}')
        self.kind = kind
        self.name = name


class QuotaError(HeadgateError):
    """The store holds as many objects of a kind as it may."""

    code = "quota"
    http_status = 403


class ExpiredError(HeadgateError):
    """The changes since the given resourceVersion are no longer kept: list again."""

    code = "expired"
    http_status = 410
