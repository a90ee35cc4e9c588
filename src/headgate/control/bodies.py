"""Request bodies, bounded, decoded from JSON or YAML to plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from headgate.control.errors import MalformedObjectError
from headgate.control.objects import Kind
from headgate.control.yaml_text import YamlLimits, documents
from headgate.errors import InvalidInputError
from headgate.limits import MANIFEST_DEPTH_MAX, OBJECT_DEPTH_MAX, OBJECT_NODES_MAX

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_TYPES: Final = frozenset({"", "application/json", MERGE_PATCH})
YAML_TYPES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
_T = TypeVar("_T")


def media_type(header: str) -> str:
    """The type of a Content-Type header without parameters, in lower case."""
    return header.partition(";")[0].strip().lower()


def decode_as(body: bytes, type_: type[_T], problem: str) -> _T:
    """A JSON body as a type of ours.

    Args:
        body: JSON.
        type_: A msgspec struct.
        problem: The begin of the error, before the reason.

    Raises:
        InvalidInputError: It is no JSON, or not of this type.
    """
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{problem}: {error}") from error


def decode_json(body: bytes) -> object:
    """A JSON document.

    Raises:
        MalformedObjectError: It is none, it nests too deep, or it has too many lists and objects.
    """
    # msgspec reads a body in one call, which holds the interpreter; lists and objects cost most.
    if body.count(b"[") + body.count(b"{") > OBJECT_NODES_MAX:
        raise MalformedObjectError(f"the body has more than {OBJECT_NODES_MAX} lists and objects")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedObjectError(f"the body is no JSON: {error}") from error


def decode_yaml(body: bytes) -> object:
    """The only document of a YAML stream.

    Raises:
        MalformedObjectError: It is no YAML, not exactly one document, has merge keys, too many values or levels.
    """
    bounds = YamlLimits(OBJECT_DEPTH_MAX, OBJECT_NODES_MAX, merges=False)
    found = list(documents(body, bounds))
    if len(found) != 1:
        raise MalformedObjectError(f"the body holds {len(found)} documents, expected one")
    return found[0]


def decode_json_or_yaml(body: bytes) -> object:
    """A document that may be either; most clients that may send YAML send JSON, which is read a hundred times faster.

    Raises:
        MalformedObjectError: It is neither.
    """
    if body.lstrip().startswith(b"{"):
        with suppress(MalformedObjectError):
            return decode_json(body)
    return decode_yaml(body)


def yaml_documents(body: bytes) -> Iterator[object]:
    """The documents of a YAML stream that are not empty, a file of the caller's own; JSON is YAML too.

    Raises:
        MalformedObjectError: It is no YAML; the message has the line.
    """
    return documents(body, YamlLimits(MANIFEST_DEPTH_MAX, None, merges=True))


def kind_of(document: object) -> Kind:
    """The kind of a document.

    Raises:
        MalformedObjectError: It is none that can be stored.
    """
    found = document.get("kind") if isinstance(document, Mapping) else None
    if not isinstance(found, str) or found not in set(Kind):
        problem = f"kind is {found!r}" if found else "kind is missing"
        raise MalformedObjectError(f"{problem}, expected {' or '.join(map(repr, map(str, Kind)))}")
    return Kind(found)
