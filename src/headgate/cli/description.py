"""The text of `headgate describe`: metadata, spec, status and conditions of an object."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headgate.control.objects import FILTER_ANNOTATION, FILTERS_ANNOTATION, Kind

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""Repeats a Secret's values."""
COPIES: Final = frozenset({FILTER_ANNOTATION, FILTERS_ANNOTATION})
"""Annotations that repeat the spec: sent back, they would say that a filter that is left out is to stay."""
_COMMON: Final = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_INDENT: Final = "  "
_CONDITION: Final = ("type", "status", "reason", "lastTransitionTime")


def description(obj: Mapping[str, Any]) -> Iterator[str]:
    """The lines of an object from the API."""
    metadata, status = obj["metadata"], dict(obj.get("status") or {})
    conditions = status.pop("conditions", [])
    yield from _fields({"Name": metadata["name"], "Namespace": metadata.get("namespace") or "<none>"})
    hidden = COPIES | {_LAST_APPLIED} if obj["kind"] == Kind.SECRET else COPIES
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key not in hidden}
    yield from _fields({"Labels": metadata.get("labels") or "<none>", "Annotations": annotations or "<none>"})
    yield from _fields({"Kind": f"{obj['kind']} ({obj['apiVersion']})", "Created": metadata.get("creationTimestamp")})
    if metadata.get("deletionTimestamp"):
        yield from _fields({"Deleted": metadata["deletionTimestamp"]})
    if metadata.get("finalizers"):
        yield from _fields({"Finalizers": metadata["finalizers"]})
    if obj["kind"] == Kind.SECRET:  # the values are for `get -o json` alone
        sizes = {key: f"{len(base64.b64decode(value))} bytes" for key, value in (obj.get("data") or {}).items()}
        yield from _fields({"Type": obj["type"], "Data": sizes or "<none>"})
        return
    yield from _fields({"Generation": metadata["generation"]})
    own = {key: value for key, value in obj.items() if key not in _COMMON}
    yield from _fields({f"{key[0].upper()}{key[1:]}": value for key, value in own.items()})
    if not own:
        yield from _fields({"Spec": obj.get("spec") or "<none>", "Status": status or "<none>"})
        yield from _conditions(conditions)


def _fields(values: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Names and values, what has fields of its own below its name."""
    for name, value in values.items():
        before = f"{_INDENT * depth}{name}:"
        if isinstance(value, Mapping) and value:
            yield before
            yield from _fields(value, depth + 1)
        elif isinstance(value, list) and value:
            yield before
            yield from _items(value, depth + 1)
        elif isinstance(value, str) and "\n" in value:
            yield before
            yield from textwrap.indent(value.rstrip("\n"), _INDENT * (depth + 1)).split("\n")
        else:
            yield f"{before} {value}"


def _items(values: list[Any], depth: int) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping) and value:
            first, *others = _fields(value, depth + 1)
            yield f"{_INDENT * depth}- {first.lstrip()}"
            yield from others
        else:
            yield f"{_INDENT * depth}- {value}"


def _conditions(conditions: list[Mapping[str, str]]) -> Iterator[str]:
    """A table, with the message below each row that is not True."""
    yield "Conditions:" if conditions else "Conditions: <none>"
    if not conditions:
        return
    rows = [
        ("TYPE", "STATUS", "REASON", "SINCE"),
        *(tuple(one.get(key, "") for key in _CONDITION) for one in conditions),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    messages = ["", *(one.get("message", "") for one in conditions)]
    for row, message in zip(rows, messages, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"{_INDENT}{'   '.join(cells)}".rstrip()
        yield from textwrap.indent(message, _INDENT * 3).splitlines()
