"""Server-side tables for kubectl, with Knative's columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from headgate.objects.kinds.credentials import size_bytes
from headgate.objects.kinds.specs import TYPE_DEFAULT
from headgate.objects.kinds.status import ready_of
from headgate_api.objects.kinds import (
    Broker,
    ClusterRole,
    ClusterRoleBinding,
    Condition,
    EventPolicy,
    EventType,
    Kind,
    Metadata,
    Object,
    RbacRole,
    ResourceQuota,
    RoleBinding,
    Secret,
    Trigger,
)
from headgate_api.plain_words import age


class Column(msgspec.Struct, frozen=True):
    """A column; priority 1 is for `-o wide` only."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


class PartialObject(msgspec.Struct, frozen=True, rename="camel"):
    """An object without spec and status."""

    kind: str
    api_version: str
    metadata: Metadata


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cells in the columns' order, and the object or its metadata."""

    cells: tuple[str, ...]
    object: PartialObject | Object | None = None


_NAME: Final = Column("Name", format="name", description="Name of the object")
_AGE: Final = Column("Age", description="Time since creation")
_READY: Final = (
    _AGE,
    Column("Ready", description="Whether all that the object needs is there"),
    Column("Reason", description="Why it is not ready"),
)
_WARNINGS: Final = Column("Warnings", description="What goes wrong although it is ready")
_FILTER: Final = Column("Filter", description="Which events it wants", priority=1)
_CREATED: Final = Column("Created At", description="When it was made")
_ROLE_COLUMNS: Final = (_NAME, _CREATED)
_BINDING_COLUMNS: Final = (
    _NAME,
    Column("Role", description="Whose rights it gives"),
    _AGE,
    Column("Users", description="Users who get them", priority=1),
    Column("Groups", description="Groups whose users get them", priority=1),
    Column("ServiceAccounts", description="Service accounts that get them", priority=1),
)
COLUMNS: Final[dict[Kind, tuple[Column, ...]]] = {
    Kind.BROKER: (_NAME, Column("URL", description="Where it accepts events"), *_READY),
    Kind.TRIGGER: (
        _NAME,
        Column("Broker", description="Whose events it wants"),
        Column("Subscriber_URI", description="Where its events go"),
        *_READY,
        _WARNINGS,
        _FILTER,
    ),
    Kind.SUBSCRIPTION: (
        _NAME,
        Column("Broker", description="Whose events it wants"),
        Column("Type", description="How consumers share it"),
        *_READY,
        _WARNINGS,
        _FILTER,
    ),
    Kind.EVENT_POLICY: (_NAME, *_READY, Column("From", description="Who may send", priority=1), _FILTER),
    Kind.EVENT_TYPE: (
        _NAME,
        Column("Type", description="The events' type"),
        Column("Source", description="The events' source"),
        Column("Schema", description="Where the schema of their data is"),
        Column("Reference Name", description="Where the events are"),
        Column("Reference Kind", description="What that is"),
        Column("Description", description="What they are"),
        Column("Ready", description="Whether that exists"),
        Column("Reason", description="Why not"),
    ),
    Kind.SECRET: (
        _NAME,
        Column("Type", description="What it is for"),
        Column("Data", description="How many values it has"),
        Column("Size", description="Bytes of its values"),
        _AGE,
    ),
    Kind.RESOURCE_QUOTA: (
        _NAME,
        Column("Request", description="What is used of what may be used"),
        Column("Limit", description="Without effect"),
        _AGE,
    ),
    Kind.ROLE: _ROLE_COLUMNS,
    Kind.CLUSTER_ROLE: _ROLE_COLUMNS,
    Kind.ROLE_BINDING: _BINDING_COLUMNS,
    Kind.CLUSTER_ROLE_BINDING: _BINDING_COLUMNS,
}


def row(obj: Object, *, now_s: float, include: str) -> Row:
    """An object as a row; `now_s` (seconds since 1970) is for its age, `include` is Kubernetes' `includeObject`."""
    cells = (obj.metadata.name, *_cells(obj, age(obj.metadata.creation_timestamp, now_s)))
    if include == "Object":
        return Row(cells, obj)
    return Row(cells) if include == "None" else Row(cells, partial(obj.metadata))


def _cells(obj: Object, since: str) -> tuple[str, ...]:
    """The cells behind the name."""
    match obj:
        case RbacRole() | ClusterRole():
            return (obj.metadata.creation_timestamp,)
        case RoleBinding() | ClusterRoleBinding():
            return f"{obj.role_ref.kind}/{obj.role_ref.name}", since, *_subjects(obj)
        case Secret():
            return obj.type, str(len(obj.data)), str(size_bytes(obj)), since
        case ResourceQuota():
            used = obj.status.used
            shown = ", ".join(f"{name}: {used.get(name, '-')}/{limit}" for name, limit in sorted(obj.spec.hard.items()))
            return shown, "", since
    ready = ready_of(obj.status)
    is_ready, reason = (ready.status, ready.reason) if ready is not None else ("", "")
    state = (since, is_ready, reason)
    match obj:
        case EventPolicy():
            return *state, ",".join(obj.status.from_) or "<none>", _written(obj.spec.filters)
        case EventType():
            spec, to = obj.spec, obj.spec.reference
            name, kind = (to.name, to.kind) if to is not None else (spec.broker, "Broker" if spec.broker else "")
            return spec.type, spec.source, spec.schema, name, kind, spec.description, is_ready, reason
        case Broker():
            return obj.status.address.url if obj.status.address else "", *state
    filters: object = obj.spec.filters or obj.spec.filter
    if isinstance(obj, Trigger):
        way = obj.status.subscriber_uri
    else:
        filters, way = filters or obj.spec.consumer_metadata, obj.spec.type or TYPE_DEFAULT
    return obj.broker_name, way, *state, _warnings(obj.status.conditions), _written(filters)


def _subjects(binding: RoleBinding | ClusterRoleBinding) -> Iterator[str]:
    """Who gets its rights: users, groups, service accounts."""
    for kind in ("User", "Group", "ServiceAccount"):
        those = (one for one in binding.subjects if one.kind == kind)
        yield ", ".join(f"{one.namespace}/{one.name}" if one.namespace else one.name for one in those)


def _written(filters: object) -> str:
    """Filters in a line, as a person would write them: `ce.type == "a"; prefix: type=order.`; all must be true."""
    found = msgspec.to_builtins(filters)
    if not found:
        return "<none>"
    return "; ".join(map(_element, found)) if isinstance(found, list) else _element(found)


def _element(one: object) -> str:
    """A filter by its fields: the text of CEL as it stands, what it is nested in like a function."""
    if not isinstance(one, dict):
        return _plain(one)
    return ", ".join(_field(str(name), value) for name, value in one.items())


def _field(name: str, value: object) -> str:
    if name in _NESTING:
        inner = value if isinstance(value, list) else [value]
        return f"{name}({'; '.join(map(_element, inner))})"
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return f"{name}: {' '.join(f'{key}={_plain(text)}' for key, text in value.items())}"
    return _plain(value) if name in ("cel", "expression") else f"{name}: {_plain(value)}"


_NESTING: Final = ("all", "any", "not")


def _plain(value: object) -> str:
    """Text that a terminal can show, else JSON."""
    return value if isinstance(value, str) and value.isprintable() else msgspec.json.encode(value).decode()


def partial(metadata: Metadata) -> PartialObject:
    """An object's metadata alone."""
    return PartialObject("PartialObjectMetadata", "meta.k8s.io/v1", metadata)


def head(kind: Kind) -> bytes:
    """A table's JSON up to its first row; what follows closes the list and the object."""
    columns = msgspec.json.encode(COLUMNS[kind])
    return b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":' + columns + b',"rows":['


def table(kind: Kind, rows: bytes, metadata: dict[str, object]) -> bytes:
    """A whole table in JSON, of rows in JSON."""
    return head(kind) + rows + b'],"metadata":' + msgspec.json.encode(metadata) + b"}"


def _warnings(conditions: tuple[Condition, ...]) -> str:
    """Why conditions are False that keep nothing from being Ready: `EventsDropped,FilterErrors`."""
    return ",".join(one.reason or one.type for one in conditions if one.status == "False" and one.severity)
