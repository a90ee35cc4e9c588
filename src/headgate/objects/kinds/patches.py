"""Patches of stored objects: JSON merge patch (RFC 7396), JSON patch (RFC 6902), server-side apply.

Strategic merge patches are refused, as Kubernetes refuses them for objects that are not built into it. A JSON patch is
bounded before it runs: in operations by `JSON_PATCH_OPERATIONS_MAX`, in what its copies add to the document by
`OBJECT_NODES_MAX`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec
from jsonpatch import JsonPatch, JsonPatchException, JsonPatchTestFailed
from jsonpointer import JsonPointer, JsonPointerException

from headgate.objects.kinds.decode import check_shape, without_metadata
from headgate_api.errors import InvalidInputError
from headgate_api.limits import JSON_PATCH_OPERATIONS_MAX, OBJECT_NODES_MAX
from headgate_api.objects.bodies import MERGE_PATCH
from headgate_api.objects.errors import MalformedObjectError
from headgate_api.objects.kinds import JsonObject, Namespace, Object, encode

JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
PATCH_TYPES: Final = frozenset({MERGE_PATCH, JSON_PATCH, APPLY_PATCH})

_MEMBERS: Final = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("path", "from"),
    "copy": ("path", "from"),
    "test": ("path", "value"),
}
"""What an operation of a JSON patch has beside its name."""

DocumentChange: TypeAlias = Callable[[JsonObject], object]
"""What a patch makes of a stored document; the document may be changed."""


class PatchFailedError(InvalidInputError):
    """An operation does not fit the document, or a `test` does not hold."""

    code = "patch-failed"
    http_status = 422


def change_of(media_type: str, patch: object) -> DocumentChange:
    """What a patch of the type `MERGE_PATCH` or `JSON_PATCH` does; MalformedObjectError for one of a wrong shape."""
    check_shape(patch)
    if media_type == JSON_PATCH:
        return lambda document: json_patch(document, patch)
    if not isinstance(patch, Mapping):
        hint = f"a list of operations is a JSON patch: {JSON_PATCH}" if isinstance(patch, list) else ""
        raise MalformedObjectError("a merge patch must be an object", hint=hint)
    return lambda document: merge_patch(document, patch)


def patched(old: Object | Namespace, change: DocumentChange) -> object:
    """The document that a patch makes of a stored object; its managed fields only when the patch changes them."""
    document: JsonObject = msgspec.json.decode(encode(old))
    before = document["metadata"].get("managedFields")
    made = change(document)
    metadata = made.get("metadata") if isinstance(made, Mapping) else None
    is_kept = isinstance(metadata, Mapping) and metadata.get("managedFields") == before
    return without_metadata(made, ("managedFields",)) if isinstance(made, Mapping) and is_kept else made


def merge_patch(target: object, patch: object) -> object:
    """RFC 7396: what the target becomes; bounded by the depth of the patch, which `check_shape` has seen."""
    if not isinstance(patch, Mapping):
        return patch
    merged: JsonObject = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(document: object, patch: object) -> object:
    """RFC 6902: what a document becomes by a patch whose shape has been checked; the document stays as it is."""
    if not isinstance(patch, list):
        hint = "an object with the fields to change is a merge patch: application/merge-patch+json"
        raise MalformedObjectError("a JSON patch is a list of operations", hint=hint)
    if len(patch) > JSON_PATCH_OPERATIONS_MAX:
        raise MalformedObjectError(f"the patch has more than {JSON_PATCH_OPERATIONS_MAX} operations")
    document, copied = copy.deepcopy(document), 0
    for number, operation in enumerate(patch):
        _check_operation(number, operation)
        try:
            if operation["op"] == "copy":
                copied += _nodes(JsonPointer(operation["from"]).resolve(document))
            if copied > OBJECT_NODES_MAX:
                raise _failed(number, operation, f"the patch copies more than {OBJECT_NODES_MAX} values")
            document = JsonPatch([operation]).apply(document, in_place=True)
        except JsonPatchTestFailed:  # its message has the values, and may be of a Secret
            raise _failed(number, operation, "the value is another one") from None
        except (JsonPatchException, JsonPointerException):
            places = [repr(operation[name]) for name in ("from", "path") if name in _MEMBERS[operation["op"]]]
            raise _failed(number, operation, f"there is no such place in the object: {' or '.join(places)}") from None
        except RecursionError:
            raise _failed(number, operation, "the object would nest too deep") from None
    return document


def _check_operation(number: int, operation: object) -> None:
    if not isinstance(operation, Mapping):
        raise MalformedObjectError(f"operation {number} of the JSON patch is no object")
    name = operation.get("op")
    if not isinstance(name, str) or name not in _MEMBERS:
        raise MalformedObjectError(f"operation {number}: op is {name!r}, expected one of {', '.join(_MEMBERS)}")
    for member in _MEMBERS[name]:
        if member not in operation:
            raise MalformedObjectError(f"operation {number} ({name}): {member!r} is missing")
        if member == "value":
            continue
        try:
            JsonPointer(operation[member])
        except (JsonPointerException, TypeError) as error:
            raise MalformedObjectError(
                f"operation {number}: {operation[member]!r} is no JSON pointer",
                hint="/spec/filter, with ~1 for a slash and ~0 for a tilde inside a name",
            ) from error


def _failed(number: int, operation: JsonObject, why: str) -> PatchFailedError:
    return PatchFailedError(f"operation {number} ({operation['op']} {operation['path']!r}): {why}")


def _nodes(value: object) -> int:
    found = [value]
    for one in found:  # which grows meanwhile
        if isinstance(one, Mapping):
            found.extend(one.values())
        elif isinstance(one, list):
            found.extend(one)
    return len(found)
