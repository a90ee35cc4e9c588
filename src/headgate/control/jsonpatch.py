"""JSON Patch (RFC 6902): a list of operations on a JSON document.

A patch is bounded before it runs: in operations by `JSON_PATCH_OPERATIONS_MAX`, in what its copies add to the
document by `OBJECT_NODES_MAX`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from headgate.control.errors import MalformedObjectError
from headgate.errors import InvalidInputError
from headgate.limits import JSON_PATCH_OPERATIONS_MAX, OBJECT_NODES_MAX

_MEMBERS: Final = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": ("value",),
}
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
_Container: TypeAlias = "dict[str, object] | list[object]"


class PatchFailedError(InvalidInputError):
    """An operation does not fit the document, or a `test` does not hold."""

    code = "patch-failed"
    http_status = 422


def json_patch(document: object, patch: object) -> object:
    """What a document becomes; the document itself stays as it is.

    Args:
        document: Decoded JSON.
        patch: Decoded JSON, whose shape has been checked.

    Raises:
        MalformedObjectError: The patch is no list of operations, or has too many.
        PatchFailedError: An operation names a place that is not there, or a test does not hold.
    """
    if not isinstance(patch, list):
        raise MalformedObjectError(
            "a JSON patch is a list of operations",
            hint="an object with the fields to change is a merge patch: application/merge-patch+json",
        )
    if len(patch) > JSON_PATCH_OPERATIONS_MAX:
        raise MalformedObjectError(f"the patch has more than {JSON_PATCH_OPERATIONS_MAX} operations")
    run = _Run(copy.deepcopy(document))
    for number, operation in enumerate(patch):
        run.apply(number, operation)
    return run.document


class _Run:
    """A document on which one operation after the other is done."""

    def __init__(self, document: object) -> None:
        self.document = document
        self._copied = 0

    def apply(self, number: int, operation: object) -> None:
        name, path, source, value = _checked(number, operation)
        try:
            match name:
                case "test":
                    if not _same(self._get(path), value):
                        raise PatchFailedError("the value is another one")
                case "add":
                    self._add(path, copy.deepcopy(value))
                case "remove":
                    self._remove(path)
                case "replace":
                    self._get(path)
                    self._put(path, copy.deepcopy(value))
                case "move":
                    if path[: len(source)] == source and path != source:
                        raise PatchFailedError("a value cannot move into itself")
                    self._add(path, self._remove(source))
                case _:
                    self._add(path, self._copy(source))
        except PatchFailedError as error:
            assert isinstance(operation, Mapping)
            raise PatchFailedError(f"operation {number} ({name} {operation['path']!r}): {error.message}") from error

    def _copy(self, source: tuple[str, ...]) -> object:
        value = self._get(source)
        self._copied += _nodes(value)
        if self._copied > OBJECT_NODES_MAX:
            raise PatchFailedError(f"the patch copies more than {OBJECT_NODES_MAX} values")
        return copy.deepcopy(value)

    def _get(self, path: tuple[str, ...]) -> object:
        value = self.document
        for step in path:
            place = _container(value)
            value = place[_index(step, len(place) - 1)] if isinstance(place, list) else place[_member(place, step)]
        return value

    def _add(self, path: tuple[str, ...], value: object) -> None:
        parent = _container(self._get(path[:-1])) if path else None
        if isinstance(parent, list):
            last = path[-1]
            parent.insert(len(parent) if last == "-" else _index(last, len(parent)), value)
        else:
            self._put(path, value)

    def _put(self, path: tuple[str, ...], value: object) -> None:
        if not path:
            self.document = value
            return
        parent = _container(self._get(path[:-1]))
        if isinstance(parent, list):
            parent[_index(path[-1], len(parent) - 1)] = value
        else:
            parent[path[-1]] = value

    def _remove(self, path: tuple[str, ...]) -> object:
        if not path:
            raise PatchFailedError("the whole object cannot be taken away")
        parent = _container(self._get(path[:-1]))
        if isinstance(parent, list):
            return parent.pop(_index(path[-1], len(parent) - 1))
        return parent.pop(_member(parent, path[-1]))


def _checked(number: int, operation: object) -> tuple[str, tuple[str, ...], tuple[str, ...], object]:
    """An operation's name, path, `from` and value."""
    if not isinstance(operation, Mapping):
        raise MalformedObjectError(f"operation {number} of the JSON patch is no object")
    name = operation.get("op")
    if not isinstance(name, str) or name not in _MEMBERS:
        raise MalformedObjectError(f"operation {number}: op is {name!r}, expected one of {', '.join(_MEMBERS)}")
    for member in ("path", *_MEMBERS[name]):
        if member not in operation:
            raise MalformedObjectError(f"operation {number} ({name}): {member!r} is missing")
    path = _pointer(number, operation["path"])
    return name, path, _pointer(number, operation.get("from", "")), operation.get("value")


def _pointer(number: int, text: object) -> tuple[str, ...]:
    """The steps of a JSON pointer (RFC 6901)."""
    if not isinstance(text, str) or (text and not text.startswith("/")) or _BAD_ESCAPE.search(text):
        raise MalformedObjectError(
            f"operation {number}: {text!r} is no JSON pointer",
            hint="/spec/filter, with ~1 for a slash and ~0 for a tilde inside a name",
        )
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])


def _container(value: object) -> _Container:
    if isinstance(value, dict | list):
        return value
    raise PatchFailedError("the path leads through a value that has no fields")


def _member(place: dict[str, object], step: str) -> str:
    if step not in place:
        raise PatchFailedError(f"there is no field {step!r}")
    return step


def _index(step: str, last: int) -> int:
    if not _INDEX.fullmatch(step) or int(step) > last:
        raise PatchFailedError(f"{step!r} is no place in the list")
    return int(step)


def _same(one: object, other: object) -> bool:
    """Equality of JSON: 1 is 1.0, and true is not 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _nodes(value: object) -> int:
    count, todo = 0, [value]
    while todo:
        found = todo.pop()
        count += 1
        if isinstance(found, Mapping):
            todo.extend(found.values())
        elif isinstance(found, list):
            todo.extend(found)
    return count
