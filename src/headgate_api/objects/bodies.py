"""Request bodies, bounded, decoded from JSON or YAML to plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from headgate_api.errors import InvalidInputError
from headgate_api.event.json_text import AmbiguousJsonError, decode_strictly, repeated_members
from headgate_api.limits import MANIFEST_DEPTH_MAX, OBJECT_DEPTH_MAX, OBJECT_NODES_MAX, REPEATED_MEMBERS_TOLD_MAX
from headgate_api.objects.errors import MalformedObjectError
from headgate_api.objects.kinds import Kind
from headgate_api.yaml_text import YamlLimits, YamlTextError, documents, only_document

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_TYPES: Final = frozenset({"", "application/json", MERGE_PATCH})
YAML_TYPES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
_T = TypeVar("_T")


def media_type(header: str) -> str:
    """The type of a Content-Type header without parameters, in lower case."""
    return header.partition(";")[0].strip().lower()


def decode_as(body: bytes, type_: type[_T], problem: str) -> _T:
    """A JSON body as a type of ours; raises InvalidInputError, which `problem` begins, before the reason."""
    try:
        return decode_strictly(body, type_)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, AmbiguousJsonError) as error:
        raise InvalidInputError(f"{problem}: {error}") from error


class FieldValidation(StrEnum):
    """What happens to unknown fields, and to members that an object has twice."""

    STRICT = "Strict"
    WARN = "Warn"
    IGNORE = "Ignore"


class Read(NamedTuple):
    """A document that was read, with what its author should hear."""

    document: object
    warnings: tuple[str, ...] = ()


def decode_json(body: bytes, validation: FieldValidation = FieldValidation.STRICT) -> Read:
    """A JSON document; `validation` says what a member does that an object has twice. Raises MalformedObjectError."""
    # msgspec reads a body in one call, which holds the interpreter; lists and objects cost most.
    if body.count(b"[") + body.count(b"{") > OBJECT_NODES_MAX:
        raise MalformedObjectError(f"the body has more than {OBJECT_NODES_MAX} lists and objects")
    try:
        document = msgspec.json.decode(body)
        if validation is FieldValidation.IGNORE:
            return Read(document)
        repeated = islice(repeated_members(body, document), REPEATED_MEMBERS_TOLD_MAX)
        warnings = tuple(f'duplicate field "{path}"' for path in repeated)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedObjectError(f"the body is no JSON: {error}") from error
    if warnings and validation is FieldValidation.STRICT:
        raise MalformedObjectError(
            f"strict decoding error: {', '.join(warnings)}", hint="give it once: of two, only the last would count"
        )
    return Read(document, warnings)


def decode_yaml(body: bytes) -> object:
    """The only document of a YAML stream; raises MalformedObjectError, also for merge keys."""
    try:
        return only_document(body, YamlLimits(OBJECT_DEPTH_MAX, OBJECT_NODES_MAX, merges=False))
    except YamlTextError as error:
        raise MalformedObjectError(error.message) from error


def decode_json_or_yaml(body: bytes, validation: FieldValidation) -> Read:
    """A document that may be either; most clients that may send YAML send JSON, which is read far faster."""
    if body.lstrip().startswith(b"{"):
        with suppress(MalformedObjectError):
            return decode_json(body, validation)
    return Read(decode_yaml(body))


def yaml_documents(body: bytes) -> Iterator[object]:
    """The documents of a YAML stream that are not empty, a file of the caller's own; raises MalformedObjectError."""
    try:
        yield from documents(body, YamlLimits(MANIFEST_DEPTH_MAX, None, merges=True))
    except YamlTextError as error:
        raise MalformedObjectError(error.message) from error


def kind_of(document: object) -> Kind:
    """The kind of a document; raises MalformedObjectError where it is none that can be stored."""
    found = document.get("kind") if isinstance(document, Mapping) else None
    if not isinstance(found, str) or found not in set(Kind):
        problem = f"kind is {found!r}" if found else "kind is missing"
        raise MalformedObjectError(f"{problem}, expected {' or '.join(map(repr, map(str, Kind)))}")
    return Kind(found)


def is_namespace(document: object) -> bool:
    """Whether a document is a Namespace, which is no object that can be stored but may be in a manifest."""
    return isinstance(document, Mapping) and (document.get("apiVersion"), document.get("kind")) == ("v1", "Namespace")
