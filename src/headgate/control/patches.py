"""Patches of stored objects: JSON merge patch (RFC 7396), JSON patch (RFC 6902), server-side apply.

Strategic merge patches are refused, as Kubernetes refuses them for objects that are not built into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from headgate.control.bodies import MERGE_PATCH
from headgate.control.decode import check_shape
from headgate.control.errors import MalformedObjectError
from headgate.control.jsonpatch import json_patch
from headgate.control.objects import JsonObject, Namespace, Object, encode

JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
PATCH_TYPES: Final = frozenset({MERGE_PATCH, JSON_PATCH, APPLY_PATCH})

DocumentChange: TypeAlias = Callable[[JsonObject], object]
"""What a patch makes of a stored document; the document may be changed."""


def change_of(media_type: str, patch: object) -> DocumentChange:
    """A merge patch or a JSON patch as what it does.

    Args:
        media_type: `MERGE_PATCH` or `JSON_PATCH`.
        patch: Decoded JSON.

    Raises:
        MalformedObjectError: It is no patch of this type, too deep or too large.
    """
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
    if not isinstance(made, Mapping) or not isinstance(metadata, Mapping) or metadata.get("managedFields") != before:
        return made
    return {**made, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


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
