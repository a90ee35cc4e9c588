"""Namespaces as objects: every one in use exists; one that was created keeps its labels and annotations."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

import msgspec

from headgate.control.bodies import is_namespace
from headgate.control.decode import check_shape
from headgate.control.errors import InvalidNamespaceError, MalformedObjectError
from headgate.control.objects import JsonObject, Metadata, Namespace
from headgate.control.tables import Column, Row, age, partial
from headgate.control.validate import namespace_causes

_UID_SPACE: Final = uuid.UUID("6f1c1f0e-6d5c-5a55-9d6b-3c0b8f2c9a11")
_COLUMNS: Final = (
    Column("Name", format="name", description="Name"),
    Column("Status", description="Always Active"),
    Column("Age", description="Time since creation"),
)
_NAME_LABEL: Final = "kubernetes.io/metadata.name"


def namespace(name: str, metadata: Metadata | None = None) -> Namespace:
    """A namespace; without metadata one that exists because something is in it."""
    found = metadata or Metadata(uid=str(uuid.uuid5(_UID_SPACE, name)), resource_version="0")
    labels = found.labels | {_NAME_LABEL: name}
    return Namespace(
        api_version="v1",
        kind="Namespace",
        metadata=msgspec.structs.replace(found, name=name, namespace="", labels=labels),
        status={"phase": "Active"},
    )


def decode_namespace(document: object, name: str = "") -> Namespace:
    """A namespace from decoded JSON or YAML; only its metadata is kept.

    Args:
        document: Untrusted.
        name: From the request's path.

    Raises:
        MalformedObjectError: It is none, or has another name.
        InvalidNamespaceError: A name, label or annotation breaks a rule.
    """
    check_shape(document)
    if not isinstance(document, dict) or not is_namespace(document):
        raise MalformedObjectError("the body is no Namespace of v1")
    written = document.get("metadata")
    kept = {key: value for key, value in written.items() if value is not None} if isinstance(written, dict) else {}
    fields = {key: kept[key] for key in ("name", "labels", "annotations", "uid", "resourceVersion") if key in kept}
    try:
        metadata = msgspec.convert(fields, Metadata)
    except msgspec.ValidationError as error:
        raise MalformedObjectError(f"metadata of the namespace: {error}") from error
    if name and metadata.name not in ("", name):
        raise MalformedObjectError(
            f"the name of the object ({metadata.name}) does not match the name on the URL ({name})"
        )
    made = namespace(name or metadata.name, metadata)
    if causes := namespace_causes(made.metadata):
        raise InvalidNamespaceError(made.metadata.name, f"is invalid: {', '.join(map(str, causes))}")
    return made


def namespace_list(found: Iterable[Namespace], version: int) -> JsonObject:
    """Namespaces as a list."""
    metadata = {"resourceVersion": str(version)}
    return {"kind": "NamespaceList", "apiVersion": "v1", "metadata": metadata, "items": list(found)}


def namespace_table(found: Iterable[Namespace], version: int, *, now_s: float) -> JsonObject:
    """Namespaces as a table."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version)},
        "columnDefinitions": _COLUMNS,
        "rows": [
            Row((one.metadata.name, "Active", age(one.metadata.creation_timestamp, now_s)), partial(one.metadata))
            for one in found
        ],
    }
