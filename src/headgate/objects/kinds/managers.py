"""Who writes an object, and which fields are his: `metadata.managedFields`, and server-side apply.

Somebody owns the fields that he applied or last changed. To apply another value to a field that somebody else
owns is a conflict; a field that its last owner no longer applies goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec

from headgate.auth.user import User
from headgate_api.errors import TooLargeError
from headgate_api.limits import FIELD_MANAGER_CHARS_MAX, MANAGED_FIELDS_BYTES_MAX, OBJECT_DEPTH_MAX, UPDATE_MANAGERS_MAX
from headgate_api.objects.bodies import FieldValidation
from headgate_api.objects.errors import ApplyConflictError, FieldConflict, MalformedObjectError
from headgate_api.objects.kinds import (
    BROKER_LABEL,
    CREATOR_ANNOTATION,
    FILTER_ANNOTATION,
    FILTERS_ANNOTATION,
    MODIFIER_ANNOTATION,
    SUBSCRIBER_ANNOTATION,
    JsonObject,
    ManagedFields,
    Namespace,
    Object,
    encode,
)

_Owner = TypeVar("_Owner", bound=Object | Namespace)
APPLY: Final = "Apply"
UPDATE: Final = "Update"
ANCIENT: Final = "ancient-changes"
"""Who owns what the oldest of too many managers changed, as in Kubernetes."""
BEFORE: Final = "before-first-apply"
"""Who owns what an object held before anybody's changes were recorded, as in Kubernetes."""


@dataclass(frozen=True, slots=True)
class Manager:
    """Who writes, by the `fieldManager` of the request; `force` lets an apply take fields from others.

    `user` is whose rights count; None for the server itself.
    """

    name: str
    operation: str = UPDATE
    force: bool = False
    user: User | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What an entry of `managedFields` is found by."""
        return self.name, self.operation


SERVER: Final = Manager("headgate")
"""Owns what the server writes by itself."""
MANIFESTS: Final = Manager("headgate-manifests")
"""Owns what came from files at the start."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How objects are written: who writes, what unknown fields do; `dry_run`: do everything, store nothing."""

    by: Manager = SERVER
    validation: FieldValidation = FieldValidation.STRICT
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Owned:
    """What one manager owns, and when he last wrote (RFC 3339)."""

    paths: frozenset[Path]
    time: str


class _Given(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of `managedFields` as a client sends it."""

    manager: Annotated[str, msgspec.Meta(max_length=FIELD_MANAGER_CHARS_MAX, pattern=r"^[^\x00-\x1f]+$")]
    operation: Literal["Apply", "Update"]
    time: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}Z$")]
    fields_type: Literal["FieldsV1"]
    fields_v1: dict[str, object]
    subresource: str = ""


Managers: TypeAlias = dict[tuple[str, str], Owned]


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply makes of an object: a document to admit, and all fields by owner; admission may drop some."""

    document: JsonObject
    managers: Managers


def managers_of(obj: Object | Namespace) -> Managers:
    """Who owns what of a stored object."""
    return {
        (entry.manager, entry.operation): Owned(paths_of(msgspec.json.decode(entry.fields_v1)), entry.time)
        for entry in obj.metadata.managed_fields
    }


def given_managers(value: object) -> Managers | None:
    """What a client's `managedFields` say; None: nothing that is understood. `[{}]` gives up all (as in Kubernetes)."""
    if not isinstance(value, list) or not value:
        return None
    if value == [{}]:
        return {}
    found: Managers = {}
    try:
        for entry in value:
            given = msgspec.convert(entry, _Given)
            if not given.subresource:
                found[given.manager, given.operation] = Owned(paths_of(given.fields_v1), given.time)
    except (msgspec.MsgspecError, ValueError):
        return None
    return found


def updated(base: Managers, old: _Owner | None, new: _Owner, by: Manager, now: str) -> Managers:
    """Everybody's fields after a write that was no apply: the writer owns what he changed."""
    before, after = _fields(old) if old is not None else {}, _fields(new)
    own = changed(before, after)
    gone = before.keys() - after.keys()
    if not own and not gone:
        return base
    left = _without(base, own | gone)
    mine = base.get(by.key, Owned(frozenset(), now)).paths
    return left | {by.key: Owned((mine | own) - gone, now)}


def applied(live: Object | Namespace | None, config: Mapping[str, object], by: Manager, now: str) -> Applied:
    """An apply of `config`, whose shape has been checked, to a stored object, None for a new one; `now` is RFC 3339."""
    metadata = config.get("metadata")
    if not isinstance(metadata, Mapping):
        raise MalformedObjectError("metadata is missing")
    if metadata.get("managedFields"):
        raise MalformedObjectError("metadata.managedFields must be nil")
    # Null is absent, as everywhere in objects.
    given = {path: value for path, value in fields_of(config).items() if value is not None}
    mine = Owned(frozenset(given), now)
    if live is None:
        return Applied(dict(config), {by.key: mine})
    before = _fields(live)
    after = merged(before, given)
    touched = changed(before, after) | (before.keys() - after.keys())
    base = managers_of(live) or {(BEFORE, UPDATE): Owned(frozenset(before), live.metadata.creation_timestamp)}
    others = {key: owned for key, owned in base.items() if key != by.key}
    conflicts = {key: owned.paths & touched for key, owned in others.items() if owned.paths & touched}
    if conflicts and not by.force:
        using = f" using {live.api_version}"
        raise ApplyConflictError(
            tuple(
                FieldConflict(f'"{name}"' + (using if operation == UPDATE else ""), written(path))
                for (name, operation), paths in sorted(conflicts.items())
                for path in sorted(paths)
            )
        )
    others = _without(others, touched)
    kept = frozenset().union(*(owned.paths for owned in others.values()))
    previous = base.get(by.key)
    for path in (previous.paths if previous else frozenset()) - given.keys() - kept:
        after.pop(path, None)
    if previous is not None and previous.paths == mine.paths and after == before:
        mine = previous
    names = {key: getattr(live.metadata, key) for key in ("name", "namespace", "uid")}
    pins = {"resourceVersion": live.metadata.resource_version} | {
        key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion") if metadata.get(key)
    }
    document = document_of(after)
    heads = {key: config[key] for key in ("apiVersion", "kind") if key in config}
    document = heads | document | {"metadata": document.get("metadata", {}) | names | pins}
    return Applied(document, others | {by.key: mine})


def owned(obj: _Owner, managers: Managers) -> _Owner:
    """The object with `managedFields`, as far as its fields exist; too many managers become one."""
    return _with_entries(obj, managers, _fields(obj).keys())


def made_by(obj: _Owner, by: Manager, now: str) -> _Owner:
    """A new object with `managedFields`: all its fields are the writer's."""
    fields = _fields(obj)
    managers: Managers = {by.key: Owned(frozenset(fields), now)} if fields else {}
    return _with_entries(obj, managers, fields.keys())


def _with_entries(obj: _Owner, managers: Managers, there: Set[Path]) -> _Owner:
    found = _limited({key: replace(one, paths=one.paths & there) for key, one in managers.items()})
    made = tuple(
        ManagedFields(
            manager=name,
            operation=operation,
            api_version=obj.api_version,
            time=one.time,
            fields_type="FieldsV1",
            fields_v1=msgspec.Raw(msgspec.json.encode(fields_v1(one.paths))),
        )
        for (name, operation), one in sorted(found.items(), key=lambda item: (item[0][1], item[1].time, item[0]))
        if one.paths
    )
    if sum(len(bytes(entry.fields_v1)) for entry in made) > MANAGED_FIELDS_BYTES_MAX:
        raise TooLargeError(f"metadata.managedFields would take over {MANAGED_FIELDS_BYTES_MAX} bytes")
    return with_metadata(obj, managed_fields=made)


def with_metadata(obj: _Owner, **changes: object) -> _Owner:
    """The object with other values of some fields of its metadata."""
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, **changes))


def _fields(obj: Object | Namespace) -> Fields:
    return fields_of(msgspec.json.decode(encode(obj)))


def _without(managers: Managers, taken: set[Path]) -> Managers:
    return {key: replace(owned, paths=owned.paths - taken) for key, owned in managers.items()}


def _limited(managers: Managers) -> Managers:
    """The newest managers of updates; the fields of the others belong to one."""
    updates = sorted((owned.time, key) for key, owned in managers.items() if key[1] == UPDATE and owned.paths)
    excess = len(updates) - UPDATE_MANAGERS_MAX
    if excess <= 0:
        return managers
    old = {key for _, key in updates[: excess + 1]}
    paths = frozenset().union(*(managers[key].paths for key in old))
    time = updates[excess][0]
    return {key: owned for key, owned in managers.items() if key not in old} | {(ANCIENT, UPDATE): Owned(paths, time)}


# --- fields ---------------------------------------------------------------------------------------
# What a manager can own. A path is a tuple of steps as `fieldsV1` writes them: `f:spec`, `f:broker`; `v:"name"` is a
# member of a set. Lists are one value, and so is `spec.filter`: halves of two owners would be a filter that neither
# wrote.


Path: TypeAlias = tuple[str, ...]
Fields: TypeAlias = dict[Path, object]
"""Every field somebody can own, with its value."""

_ATOMIC: Final = frozenset({("f:spec", "f:filter"), ("f:roleRef",)})
_SETS: Final = frozenset({("f:metadata", "f:finalizers")})
_OWNABLE: Final = frozenset(
    {"metadata", "spec", "rules", "subjects", "roleRef", "type", "data", "stringData", "immutable"}
)
"""The last four are a Secret's."""
_OWNABLE_METADATA: Final = frozenset({"labels", "annotations", "finalizers"})
_ANNOTATIONS: Final = (
    FILTER_ANNOTATION,
    FILTERS_ANNOTATION,
    CREATOR_ANNOTATION,
    MODIFIER_ANNOTATION,
    SUBSCRIBER_ANNOTATION,
)
_SERVERS: Final = frozenset(
    {("f:metadata", "f:labels", f"f:{BROKER_LABEL}")}
    | {("f:metadata", "f:annotations", f"f:{name}") for name in _ANNOTATIONS}
)
"""What the server writes by itself."""


def fields_of(document: Mapping[str, object]) -> Fields:
    """The fields of an object's document, whose depth has been checked."""
    found: Fields = {}
    for key, value in document.items():
        if key not in _OWNABLE:
            continue
        if key == "metadata" and isinstance(value, Mapping):
            value = {name: inner for name, inner in value.items() if name in _OWNABLE_METADATA}
            if not value:
                continue
        _walk((f"f:{key}",), value, found)
    return {path: value for path, value in found.items() if path not in _SERVERS}


def _walk(path: Path, value: object, found: Fields) -> None:
    if path in _SETS and isinstance(value, list) and all(isinstance(item, str) for item in value):
        for item in value:
            found[*path, f"v:{msgspec.json.encode(item).decode()}"] = item
    elif isinstance(value, Mapping) and value and path not in _ATOMIC:
        for key, inner in value.items():
            _walk((*path, f"f:{key}"), inner, found)
    else:
        found[path] = value


def document_of(fields: Fields) -> JsonObject:
    """The document that has these fields and no others."""
    document: JsonObject = {}
    for path, value in fields.items():
        place = document
        *parents, last = path
        for step in parents[:-1] if last.startswith("v:") else parents:
            place = place.setdefault(step[2:], {})
        if last.startswith("v:"):
            place.setdefault(parents[-1][2:], []).append(value)
        else:
            place[last[2:]] = value
    return document


def merged(live: Fields, given: Fields) -> Fields:
    """The live fields with those that are given in their place."""
    result = dict(live)
    inner = {path[:length] for path in live for length in range(1, len(path))}
    for path, value in given.items():
        if path in inner:
            if value == {}:
                continue  # an empty map adds nothing to one with fields
            result = {at: kept for at, kept in result.items() if at[: len(path)] != path}
        for length in range(1, len(path)):
            result.pop(path[:length], None)
        result[path] = value
    return result


def changed(before: Fields, after: Fields) -> set[Path]:
    """Paths of `after` that are new or have another value."""
    return {path for path, value in after.items() if path not in before or before[path] != value}


def fields_v1(paths: Iterable[Path]) -> JsonObject:
    """Paths as the tree that `managedFields` holds."""
    tree: JsonObject = {}
    for path in sorted(paths):
        place = tree
        for step in path:
            place = place.setdefault(step, {})
    return tree


def paths_of(tree: object) -> frozenset[Path]:
    """The paths of such a tree; ValueError for what is none."""
    found: set[Path] = set()
    todo: list[tuple[Path, object]] = [((), tree)]
    while todo:
        path, value = todo.pop()
        if not isinstance(value, Mapping) or len(path) > OBJECT_DEPTH_MAX:
            raise ValueError("fieldsV1 is no tree of fields")
        if path and not value:
            found.add(path)
        for step, inner in value.items():
            if step == ".":
                found.add(path)
            else:
                todo.append(((*path, step), inner))
    return frozenset(found)


def written(path: Path) -> str:
    """A path as messages show it: `.spec.filter`."""
    return "".join(f".{step[2:]}" if step.startswith("f:") else f"[{step[2:]}]" for step in path)
