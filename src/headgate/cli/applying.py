"""`headgate apply`: objects sent to a server in their order, those of which there may be many in few requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headgate.cli.client import ApiRefusedError, api_path, object_path, request
from headgate.cli.description import COPIES
from headgate.control.bodies import MERGE_PATCH, is_namespace, kind_of
from headgate.control.manifests import Document, ManifestError
from headgate.control.objects import APPLIED_TOGETHER, OWN_API_VERSION, Kind
from headgate.errors import InvalidInputError
from headgate.limits import APPLY_BYTES_MAX, APPLY_OBJECTS_MAX

_SERVERS: Final = frozenset({"resourceVersion", "uid", "generation", "creationTimestamp"})
"""Metadata that the server writes: in a file that `get --json` has printed it says nothing of what is wanted."""
_MANAGER: Final = "fieldManager=headgate"
_ENVELOPE_BYTES: Final = 64
"""What a request has around its objects."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An object of a file.

    Attributes:
        document: As it was read.
        kind: Its kind.
        namespace: Where it is to lie.
        body: What is sent.
        encoded: The same in JSON where it goes with others; None where it goes alone.
    """

    document: Document
    kind: Kind
    namespace: str
    body: dict[str, Any]
    encoded: msgspec.Raw | None


def applied(
    server: str, documents: Iterable[Document], namespace: str
) -> Iterator[tuple[Document, str | InvalidInputError]]:
    """Create or update objects in their order; labels and annotations are added to.

    Args:
        server: Its URL.
        documents: The objects.
        namespace: Of those that name none.

    Yields:
        Each document with what is to be said of it, or why it was refused.

    Raises:
        NoServerError: No server answers.
    """
    waiting: list[_Wanted] = []
    size = 0
    for document in documents:
        try:
            one = None if is_namespace(document.value) else _wanted(document, namespace)
        except InvalidInputError as error:
            yield from _sent(server, waiting)
            waiting, size = [], 0
            yield document, error
            continue
        if one is None:
            yield from _sent(server, waiting)
            waiting, size = [], 0
            yield document, _sent_namespace(server, document)
            continue
        more = len(bytes(one.encoded)) + 1 if one.encoded is not None else 0
        fits = size + more + _ENVELOPE_BYTES <= APPLY_BYTES_MAX and len(waiting) < APPLY_OBJECTS_MAX
        if waiting and not (fits and _go_together(waiting[0], one)):
            yield from _sent(server, waiting)
            waiting, size = [], 0
        waiting.append(one)
        size += more
    yield from _sent(server, waiting)


def label(kind: Kind, name: str) -> str:
    """An object as commands name it."""
    return f"{kind.full_name.lower()}/{name}"


def _go_together(first: _Wanted, other: _Wanted) -> bool:
    together = first.encoded is not None and other.encoded is not None
    return together and (first.kind, first.namespace) == (other.kind, other.namespace)


def _wanted(document: Document, namespace: str) -> _Wanted:
    kind = kind_of(document.value)
    # `kind_of` has seen that it is an object; everything else in it is for the server to judge.
    body: dict[str, Any] = dict(document.value) if isinstance(document.value, dict) else {}
    written = body.get("metadata")
    metadata: dict[str, Any] = {}
    if isinstance(written, dict):
        metadata = body["metadata"] = {key: value for key, value in written.items() if key not in _SERVERS}
    place = str(metadata.get("namespace") or namespace)
    # Finalizers that a file names take the place of those that are there, which only a write of one object does.
    if kind not in APPLIED_TOGETHER or "finalizers" in metadata:
        return _Wanted(document, kind, place, body, None)
    try:
        return _Wanted(document, kind, place, body, msgspec.Raw(msgspec.json.encode(body)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"the object holds a value that JSON cannot hold: {error}") from error


def _sent(server: str, wanted: Sequence[_Wanted]) -> Iterator[tuple[Document, str | InvalidInputError]]:
    """Sends what goes in one request; one by one what was refused as a whole: each has its own answer then.

    It is for who may change these objects, but not all of the namespace.
    """
    if wanted and wanted[0].encoded is not None:
        with suppress(ApiRefusedError):
            answers = _sent_together(server, wanted)
            yield from zip((one.document for one in wanted), answers, strict=True)
            return
    for one in wanted:
        try:
            yield one.document, _sent_alone(server, one)
        except InvalidInputError as error:  # not that there is no server
            yield one.document, error


def _sent_together(server: str, wanted: Sequence[_Wanted]) -> list[str | InvalidInputError]:
    kind = wanted[0].kind
    path = api_path(OWN_API_VERSION, wanted[0].namespace, APPLIED_TOGETHER[kind])
    items = b",".join(bytes(one.encoded) for one in wanted if one.encoded is not None)
    answer = request(server, "POST", f"{path}?{_MANAGER}", body=msgspec.Raw(b'{"items":[' + items + b"]}"))
    return [_said(kind, item) for item in answer["items"]]


def _sent_namespace(server: str, document: Document) -> str | InvalidInputError:
    """Create a namespace, or add its labels and annotations to those of the one that is there."""
    body: dict[str, Any] = dict(document.value) if isinstance(document.value, dict) else {}
    metadata = body.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    try:
        path = namespace_path(document)
        old = request(server, "GET", path, missing_ok=True)
        if old is None:
            request(server, "POST", f"{path.rpartition('/')[0]}?{_MANAGER}", body=body)
            return f"namespace/{given['name']} created"
        change = {"metadata": {field: given[field] for field in ("labels", "annotations") if given.get(field)}}
        new = request(server, "PATCH", f"{path}?{_MANAGER}", body=change, content_type=MERGE_PATCH)
    except InvalidInputError as error:  # not that there is no server
        return error
    same = new["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]
    return f"namespace/{given['name']} {'unchanged' if same else 'configured'}"


def namespace_path(document: Document) -> str:
    """The API's path of the Namespace of a manifest.

    Raises:
        ManifestError: It has no name.
    """
    return api_path("v1", None, "namespaces", name_of(document))


def name_of(document: Document) -> str:
    """The name of the object of a manifest.

    Raises:
        ManifestError: It has none.
    """
    metadata = document.value.get("metadata") if isinstance(document.value, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not name:
        raise ManifestError((f"{document.source}: metadata.name is missing",))
    return str(name)


def _said(kind: Kind, item: dict[str, Any]) -> str | InvalidInputError:
    error = item.get("error")
    if error is not None:
        return ApiRefusedError(error["code"], error["message"])
    return f"{label(kind, item['name'])} {item['outcome']}"


def _sent_alone(server: str, one: _Wanted) -> str:
    """Create the object or put it in the place of the one that is there; labels and annotations are added to."""
    kind, body = one.kind, one.body
    metadata: dict[str, Any] = body["metadata"] if isinstance(body.get("metadata"), dict) else {}
    name = str(metadata.get("name") or "")
    path = object_path(kind, one.namespace, name)
    old = request(server, "GET", path, missing_ok=True) if name else None
    if old is None:
        made = request(server, "POST", f"{object_path(kind, one.namespace)}?{_MANAGER}", body=body)
        return f"{label(kind, made['metadata']['name'])} created"
    for field in ("labels", "annotations"):
        kept = {key: value for key, value in old["metadata"].get(field, {}).items() if key not in COPIES}
        given = metadata.get(field)
        metadata[field] = kept | given if isinstance(given, dict) else kept
    metadata.setdefault("finalizers", old["metadata"].get("finalizers", []))  # other programs' business
    new = request(server, "PUT", f"{path}?{_MANAGER}", body=body)
    # Not the resourceVersion: the server may have written a status in between.
    fields = ("uid", "generation", "labels", "annotations")
    same = all(new["metadata"].get(field) == old["metadata"].get(field) for field in fields)
    return f"{label(kind, name)} {'unchanged' if same else 'configured'}"
