"""The fields of an object that a manager can own, for server-side apply, and their form in `fieldsV1`.

A path is a tuple of steps as `fieldsV1` writes them: `f:spec`, `f:broker`; `v:"name"` is a member of a set.
Lists are one value, and so is `spec.filter`: halves of two owners would be a
filter that neither wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from headgate.control.objects import (
    BROKER_LABEL,
    CREATOR_ANNOTATION,
    FILTER_ANNOTATION,
    FILTERS_ANNOTATION,
    MODIFIER_ANNOTATION,
    JsonObject,
)
from headgate.limits import OBJECT_DEPTH_MAX

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
_SERVERS: Final = frozenset(
    {
        ("f:metadata", "f:labels", f"f:{BROKER_LABEL}"),
        ("f:metadata", "f:annotations", f"f:{FILTER_ANNOTATION}"),
        ("f:metadata", "f:annotations", f"f:{FILTERS_ANNOTATION}"),
        ("f:metadata", "f:annotations", f"f:{CREATOR_ANNOTATION}"),
        ("f:metadata", "f:annotations", f"f:{MODIFIER_ANNOTATION}"),
    }
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
    """The paths of such a tree.

    Raises:
        ValueError: It is none.
    """
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
