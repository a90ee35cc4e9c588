"""Errors of objects, worded as Kubernetes words them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from headgate_api.errors import ConflictError, HeadgateError, InvalidInputError, NotFoundError
from headgate_api.limits import RBAC_TEXT_CHARS_MAX, VALUE_CHARS_MAX
from headgate_api.objects.kinds import Kind


@dataclass(frozen=True, slots=True)
class Cause:
    """One field that breaks a rule."""

    field: str  # path from the object's root: `spec.filter.expression`
    reason: str  # Kubernetes' word for the rule: `FieldValueRequired`, `FieldValueInvalid`, ...
    message: str  # the rule and the value, without the path

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(field: str, detail: str) -> Cause:
    """The field is missing or empty."""
    return Cause(field, "FieldValueRequired", f"Required value: {detail}")


def invalid(field: str, value: object, detail: str) -> Cause:
    """The field's value breaks a rule."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown(value)}: {detail}")


def not_one_of(field: str, value: str | None, known: Iterable[str]) -> Iterator[Cause]:
    """A cause when the field has a value that is none of those that are known."""
    if value is not None and value not in known:
        supported = ", ".join(f'"{name}"' for name in sorted(known))
        yield Cause(field, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {supported}')


def not_between(field: str, value: float | None, low: float, high: float, unit: str = "") -> Iterator[Cause]:
    """A cause when the field has a value that lies outside of its bounds."""
    if value is not None and not low <= value <= high:
        yield invalid(field, value, f"must be between {low:g} and {high:.0f}{unit}")


def too_many(field: str, count: int, most: int, what: str = "items") -> Iterator[Cause]:
    """A cause when a list is too long."""
    if count > most:
        yield invalid(field, count, f"must have at most {most} {what}")


def not_named(field: str, name: str, detail: str) -> Iterator[Cause]:
    """A cause when a name is missing or too long."""
    if not name:
        yield required(field, detail)
    elif len(name) > RBAC_TEXT_CHARS_MAX:
        yield invalid(field, "", f"has at most {RBAC_TEXT_CHARS_MAX} characters")


def shown(value: object) -> str:
    """A value as causes show it: text in quotes as it was written, anything else as JSON, shortened."""
    if isinstance(value, str):
        return f'"{value}"'
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return ""
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}..."


def value_at(document: object, path: str) -> object:
    """The value at a path such as `filters[0].any[1].prefix`; None when there is none."""
    value = document
    for step in path.replace("[", ".[").split("."):
        index = step[1:-1]
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list | tuple) and index.isdecimal() and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value


def forbidden(field: str, detail: str) -> Cause:
    """The field cannot be had; to ignore it would break a promise."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {detail}")


class InvalidObjectError(InvalidInputError):
    """An object breaks rules, at least one; each is a cause with its field."""

    code = "invalid-object"
    http_status = 422

    def __init__(self, causes: tuple[Cause, ...], *, kind: str, name: str = "", hint: str = "") -> None:
        listed = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
        super().__init__(f'{Kind(kind).full_name} "{name}" is invalid: {listed}', hint=hint)
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


class UnknownBrokerError(NotFoundError):
    """No broker that accepts events has this name."""

    code = "unknown-broker"


class AlreadyExistsError(ConflictError):
    """Create met an object of that name."""

    code = "already-exists"

    def __init__(self, kind: Kind, name: str, *, is_going: bool = False) -> None:
        before = "object is being deleted: " if is_going else ""
        super().__init__(f'{before}{kind.resource} "{name}" already exists')
        self.kind = kind
        self.name = name


class StaleObjectError(ConflictError):
    """The object is not the one (uid, resourceVersion) that the caller read; worded as Kubernetes words it."""

    code = "stale"

    def __init__(self, kind: Kind, name: str, detail: str) -> None:
        super().__init__(f'Operation cannot be fulfilled on {kind.resource} "{name}": {detail}')
        self.kind = kind
        self.name = name


@dataclass(frozen=True, slots=True)
class FieldConflict:
    """A field that somebody else owns."""

    owner: str  # as Kubernetes names him
    field: str  # `.spec.filter`


class ApplyConflictError(ConflictError):
    """A server-side apply changes fields that others own; worded as Kubernetes words it.

    There is at least one conflict, and those of one owner follow one another.
    """

    code = "apply-conflict"

    def __init__(self, conflicts: tuple[FieldConflict, ...]) -> None:
        if len(conflicts) == 1:
            text = f"Apply failed with 1 conflict: conflict with {conflicts[0].owner}: {conflicts[0].field}"
        else:
            owners = dict.fromkeys(conflict.owner for conflict in conflicts)
            lines = [
                line
                for owner in owners
                for line in (f"conflicts with {owner}:", *(f"- {one.field}" for one in conflicts if one.owner == owner))
            ]
            text = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
        super().__init__(text)
        self.conflicts = conflicts


class NamespaceError(HeadgateError):
    """A request about a namespace that cannot be met."""

    reason = ""
    """Kubernetes' word, where it is not that of the HTTP status."""
    problem = ""

    def __init__(self, name: str, problem: str = "") -> None:
        super().__init__(f'namespaces "{name}" {problem or self.problem}')
        self.name = name


class InvalidNamespaceError(NamespaceError):
    """Its name, a label or an annotation breaks a rule."""

    code = "invalid-namespace"
    http_status = 422


class NamespaceNotFoundError(NamespaceError):
    """Nobody created it, and nothing is in it."""

    code = "not-found"
    http_status = 404
    problem = "not found"


class NamespaceExistsError(NamespaceError):
    """Somebody created it."""

    code = "already-exists"
    http_status = 409
    reason = "AlreadyExists"
    problem = "already exists"


class NamespaceStaleError(NamespaceError):
    """It is not the one (uid, resourceVersion) that the caller read."""

    code = "stale"
    http_status = 409


class NamespaceForbiddenError(NamespaceError):
    """It is always there."""

    code = "forbidden"
    http_status = 403
    problem = "is forbidden: this namespace may not be deleted"


class InvalidOptionsError(InvalidInputError):
    """A request's parameters contradict each other or its body's type."""

    code = "invalid-options"
    http_status = 422


class QuotaError(HeadgateError):
    """The store holds as many objects of a kind as it may."""

    code = "quota"
    http_status = 403


@dataclass(frozen=True, slots=True)
class QuotaExcess:
    """A resource of which a write would use more than it may."""

    resource: str
    requested: int  # how much more the write would use
    used: int  # what the namespace uses before it
    limit: str  # as the quota says it


class ExceededQuotaError(QuotaError):
    """A namespace's quota does not allow what a write would use; worded as Kubernetes words it."""

    def __init__(self, kind: Kind, name: str, quota: str, over: tuple[QuotaExcess, ...]) -> None:
        requested = ",".join(f"{one.resource}={one.requested}" for one in over)
        used = ",".join(f"{one.resource}={one.used}" for one in over)
        limited = ",".join(f"{one.resource}={one.limit}" for one in over)
        super().__init__(
            f'{kind.resource} "{name}" is forbidden: exceeded quota: {quota}, requested: {requested}, used: {used},'
            f" limited: {limited}"
        )
        self.kind = kind
        self.name = name


class FutureVersionError(HeadgateError):
    """Nothing has the given resourceVersion yet; worded as Kubernetes words it."""

    code = "future-version"
    http_status = 504
    retriable = True

    def __init__(self, requested: int, newest: int) -> None:
        super().__init__(f"Too large resource version: {requested}, current: {newest}")


class ExpiredError(HeadgateError):
    """The changes since the given resourceVersion are no longer kept: list again."""

    code = "expired"
    http_status = 410
