"""What all objects of the API share: how they are written, metadata, a status with conditions, durations. Pure.

JSON names are camelCase.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

UNKNOWN_FIELDS: Final = {"x-kubernetes-preserve-unknown-fields": True}
"""Of a schema that says nothing of its fields."""
JsonObject = dict[str, Any]
"""A decoded JSON object whose meaning another room knows (`spec.filter`) or which is about to be decoded."""
NO_MEMBERS: Final[dict[str, Any]] = msgspec.field(default_factory=dict)
"""The default of a field that is an object."""


def doc(description: str, *, required: bool = False, **schema: object) -> msgspec.Meta:
    """What `kubectl explain` shows of a field, and what else OpenAPI says of it."""
    return msgspec.Meta(description=description, extra_json_schema=schema or None, extra={"required": required})


class ApiStruct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Written as Kubernetes writes: camelCase, what is empty is left out.

    They hold no cycles, and ten thousand of them would stop the event loop beside when garbage is collected.
    """


class ManagedFields(ApiStruct, frozen=True):
    """Which fields a manager owns."""

    manager: str = ""
    operation: str = ""  # `Apply` or `Update`
    api_version: str = ""
    time: str = ""  # RFC 3339, of his last write
    fields_type: str = ""
    fields_v1: msgspec.Raw = msgspec.Raw(b"{}")  # the fields as a tree, in JSON: only server-side apply reads it
    subresource: str = ""  # nothing but the object itself is written by clients


class Metadata(ApiStruct, frozen=True):
    """`metadata`, as far as it is kept. Times are RFC 3339, whole seconds, UTC."""

    name: Annotated[str, doc("Name, unique in the namespace; a DNS-1123 subdomain.")] = ""
    generate_name: Annotated[str, doc("Prefix of a name that the server makes up, when name is left out.")] = ""
    namespace: Annotated[str, doc("Namespace; any DNS-1123 label, it need not be created.")] = ""
    uid: Annotated[str, doc("Unique in time and space; given by the server.")] = ""
    resource_version: Annotated[str, doc("Changes with every write; given by the server.")] = ""
    """Decimal text of the store's counter at the last change of the object."""
    generation: Annotated[int, doc("Grows with every change of spec; given by the server.")] = 0
    creation_timestamp: Annotated[str, doc("Given by the server.", format="date-time")] = ""
    deletion_timestamp: Annotated[
        str, doc("When it was deleted; it goes with its last finalizer.", format="date-time")
    ] = ""
    deletion_grace_period_seconds: Annotated[int | None, doc("Always 0: nothing but finalizers delays a deletion.")] = (
        None
    )
    labels: Annotated[dict[str, str], doc("Names and values to select by.")] = {}
    annotations: Annotated[dict[str, str], doc("Names and values for programs and people.")] = {}
    finalizers: Annotated[
        tuple[str, ...],
        doc("Who has something to do before a deleted object goes.", **{"x-kubernetes-list-type": "set"}),
    ] = ()
    managed_fields: Annotated[
        tuple[ManagedFields, ...],
        doc("Who owns which fields; written by the server.", items=UNKNOWN_FIELDS | {"type": "object"}),
    ] = ()

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}"


class ApiObject(ApiStruct, frozen=True):
    """What every kind has beside `spec` and `status`."""

    api_version: str
    kind: str
    metadata: Metadata


class Condition(ApiStruct, frozen=True):
    """One statement about an object."""

    type: Annotated[str, doc("What the statement is about.", required=True)]
    status: Annotated[str, doc("True, False or Unknown.", required=True)]
    severity: Annotated[str, doc("Empty for an error; Warning or Info do not keep the object from being Ready.")] = ""
    last_transition_time: Annotated[str, doc("When the status last changed.", format="date-time")] = ""
    reason: Annotated[str, doc("Why, in one word.")] = ""
    message: Annotated[str, doc("Why, in a sentence.")] = ""


class ObjectStatus(ApiStruct, frozen=True):
    """`status`, which the reconciler alone writes."""

    observed_generation: Annotated[int, doc("The generation that the conditions are about.")] = 0
    conditions: Annotated[
        tuple[Annotated[Condition, doc("One statement about the object.")], ...],
        doc("What is fine and what is not."),
    ] = ()


# --- conditions -----------------------------------------------------------------------------------
# How they are made, what Ready is of them, and since when each holds.


TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"


def warning(type_: str, reason: str, message: str) -> Condition:
    """False, but the object may be Ready all the same."""
    return Condition(type=type_, status=FALSE, severity="Warning", reason=reason, message=message)


def info(type_: str, reason: str, message: str) -> Condition:
    """False because somebody wants it so."""
    return Condition(type=type_, status=FALSE, severity="Info", reason=reason, message=message)


def false(type_: str, reason: str, message: str) -> Condition:
    """False, with the reason: what needs it is not Ready."""
    return Condition(type=type_, status=FALSE, reason=reason, message=message)


def summary(needed: Sequence[Condition]) -> Condition:
    """Ready: False when anything is False, else Unknown when anything is Unknown; with the reason of the first one."""
    for status in (FALSE, UNKNOWN):
        for condition in needed:
            if condition.status == status:
                return Condition(type="Ready", status=status, reason=condition.reason, message=condition.message)
    return Condition(type="Ready", status=TRUE)


def timed(conditions: Sequence[Condition], before: tuple[Condition, ...], now: str) -> tuple[Condition, ...]:
    """Each condition with the time at which its status last changed, ordered by type as Knative does."""
    last: Mapping[str, Condition] = {condition.type: condition for condition in before}
    found = []
    for condition in sorted(conditions, key=lambda condition: condition.type):
        old = last.get(condition.type)
        kept = old is not None and old.status == condition.status and old.last_transition_time
        found.append(msgspec.structs.replace(condition, last_transition_time=kept or now))
    return tuple(found)


# --- durations ------------------------------------------------------------------------------------
# ISO 8601 durations, as `spec.delivery` has them.

# Years and months have no length in seconds, so they are not accepted.
_DURATION = re.compile(
    r"P(?=[\dT])(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:[.,]\d{1,9})?)S)?)?",
    re.ASCII,
)
_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


def duration_s(text: str) -> float:
    """Seconds, not negative, of an ISO 8601 duration such as `PT0.2S` or `P1D`; ValueError's message has an example."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("must be an ISO 8601 duration of weeks, days, hours, minutes or seconds, such as PT0.2S")
    return sum(float(count.replace(",", ".")) * _SECONDS[unit] for unit, count in found.groupdict("0").items())
