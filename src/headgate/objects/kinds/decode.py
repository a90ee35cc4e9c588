"""Strict decoding of untrusted documents to typed objects.

Unknown fields are refused, warned of or dropped by `fieldValidation`. Always refused is what Knative has and Headgate
lacks, and what is unknown inside `spec.filter` and `spec.filters` (by the compiler): a filter never fails open.
"""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from headgate_api.limits import OBJECT_DEPTH_MAX, OBJECT_NODES_MAX
from headgate_api.objects.bodies import FieldValidation
from headgate_api.objects.errors import Cause, InvalidObjectError, MalformedObjectError, forbidden, shown, value_at
from headgate_api.objects.kinds import TYPES, JsonObject, Kind, Object

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Decoded:
    """An object, not yet validated and without status, warnings for its author, and its unchecked managed fields."""

    obj: Object
    warnings: tuple[str, ...] = ()
    managed_fields: object = None


# Written by servers; clients send them back after a get, or null from typed clients.
_SERVER_FIELDS: Final = frozenset({"managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"})
_UNSUPPORTED: Final = {
    "metadata.ownerReferences": "ownerReferences are not supported: nothing would delete the object with its owner",
    "aggregationRule": "aggregationRule is not supported: list the rules",
    "spec.scopes": "scopes are not supported: a quota counts all objects of its namespace",
    "spec.scopeSelector": "scopes are not supported: a quota counts all objects of its namespace",
}
# The compiler decodes the filter; null inside it must not disappear on the way.
_OPAQUE: Final = frozenset({"spec.filter"})
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)


def check_shape(document: object) -> None:
    """Bound a decoded document before anything walks or writes it; YAML aliases count as often as they are used."""
    nodes = 0
    todo: list[tuple[object, int]] = [(document, 1)]
    while todo:
        value, depth = todo.pop()
        nodes += 1
        if depth > OBJECT_DEPTH_MAX:
            raise MalformedObjectError(f"the object nests deeper than {OBJECT_DEPTH_MAX} levels")
        if isinstance(value, dict | Mapping):
            inner: Collection[object] = value.values()
            for key in value:
                if not isinstance(key, str):
                    raise MalformedObjectError(f"the object's keys must be strings, not {key!r}")
                if not key.isascii():
                    _check_scalar(key)
        elif isinstance(value, list):
            inner = value
        else:
            if not (isinstance(value, str) and value.isascii()):  # most are such texts
                _check_scalar(value)
            continue
        if nodes + len(todo) + len(inner) > OBJECT_NODES_MAX:
            raise MalformedObjectError(f"the object has more than {OBJECT_NODES_MAX} values")
        todo.extend((one, depth + 1) for one in inner)


def _check_scalar(value: object) -> None:
    """YAML can say more than JSON: whatever could not be stored as JSON is refused."""
    match value:
        case None | bool():
            return
        case str():
            if value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value):
                return
        case int():
            if -(1 << 63) <= value < 1 << 64:
                return
        case float():
            if math.isfinite(value):
                return
    raise MalformedObjectError(f"the object holds a value that JSON cannot hold: {str(value)[:40]!a}")


def decode_object(
    kind: Kind, document: object, *, field_validation: FieldValidation = FieldValidation.STRICT
) -> Decoded:
    """A document as a typed object; an unknown field is an error under STRICT, one that Knative alone has always."""
    if not isinstance(document, Mapping):
        raise MalformedObjectError("the body must be an object")
    check_shape(document)
    _check_kind(kind, document)
    kept = _kept(document, "")
    kept.pop("status", None)
    metadata = kept.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    managed = metadata.get("managedFields") if isinstance(metadata, dict) else None
    kept = without_metadata(kept, _SERVER_FIELDS)
    causes = tuple(_unsupported(kept))
    if causes:
        raise InvalidObjectError(causes, kind=kind, name=name)
    unknown = tuple(_drop_unknown(kept, TYPES[kind], ""))
    if unknown and field_validation is FieldValidation.STRICT:
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        raise MalformedObjectError(
            f'{kind} in version "{kind.version}" cannot be handled as a {kind}: strict decoding error: {listed}',
            hint="check the spelling of the field",
        )
    warnings = tuple(f'unknown field "{path}"' for path in unknown) if field_validation is FieldValidation.WARN else ()
    try:
        return Decoded(msgspec.convert(kept, TYPES[kind]), warnings, managed)
    except msgspec.ValidationError as error:
        shown_in = kept if kind is not Kind.SECRET else {}  # a value of a Secret is no matter for a message
        raise InvalidObjectError((_type_cause(error, shown_in),), kind=kind, name=name) from error


def converted(value: object, type_: type[_T], problem: str) -> _T:
    """A document as a type of ours; MalformedObjectError, which begins with the problem, for what is none."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise MalformedObjectError(f"{problem}: {error}") from error


def without_metadata(document: Mapping[str, object], names: Collection[str]) -> JsonObject:
    """A document without some fields of its metadata."""
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping):
        return dict(document)
    return {**document, "metadata": {key: value for key, value in metadata.items() if key not in names}}


def _check_kind(kind: Kind, document: Mapping[str, object]) -> None:
    for field, expected in (("kind", kind.value), ("apiVersion", kind.api_version)):
        found = document.get(field)
        if found != expected:
            problem = f"is {found!r}" if found else "is missing"
            raise MalformedObjectError(f"the object's {field} {problem}, expected {expected!r}")


def _kept(document: Mapping[str, object], path: str) -> JsonObject:
    """A copy without nulls, which mean "absent" in Kubernetes' objects."""
    kept: JsonObject = {}
    for key, value in document.items():
        below = f"{path}.{key}" if path else key
        if value is None:
            continue
        kept[key] = _kept(value, below) if isinstance(value, Mapping) and below not in _OPAQUE else value
    return kept


def _unsupported(document: JsonObject) -> Iterator[Cause]:
    for path, detail in _UNSUPPORTED.items():
        value: object = document
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value not in (None, "", [], {}):
            yield forbidden(path, detail)


def _drop_unknown(document: JsonObject, struct: type[msgspec.Struct], path: str) -> Iterator[str]:
    known = _fields(struct)
    for key in list(document):
        below = f"{path}.{key}" if path else key
        if below in _UNSUPPORTED:
            del document[key]  # empty, or it would have been refused
        elif key not in known:
            del document[key]
            yield below
        elif (inner := known[key]) is not None and isinstance(document[key], dict):
            yield from _drop_unknown(document[key], inner, below)


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct] | None]:
    """JSON name of each field, with its struct where it is one."""
    hints = get_type_hints(struct)
    return {field.encode_name: _struct_in(hints[field.name]) for field in msgspec.structs.fields(struct)}


def _struct_in(hint: object) -> type[msgspec.Struct] | None:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return next((option for option in options if isinstance(option, type) and issubclass(option, msgspec.Struct)), None)


def _type_cause(error: msgspec.ValidationError, document: JsonObject) -> Cause:
    found = _AT.match(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    place = path.lstrip(".")
    value = value_at(document, place)
    given = f"{shown(value)}: " if value is not None else ""
    return Cause(place or "<root>", "FieldValueTypeInvalid", f"Invalid value: {given}{what}")
