"""Rows of any table as events, by the rules of the ingress: an Arrow function for tables that have not been through it.

What a log or an earlier match hands out has passed already and is not looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec
import pyarrow as pa

from headgate.event import json_text, rfc3339
from headgate.event.attributes import CONTEXT_ATTRIBUTES, make_event
from headgate.event.data import kind_of
from headgate.event.errors import EventError
from headgate.event.model import DataKind, Event

ADMITTED_TYPE: Final = "data_kind tinyint, time string, time_us bigint, extensions string"
"""`data_kind` is NULL where the row is no event."""
SPECVERSION_DEFAULT: Final = "1.0"
CONTENT_TYPE_DEFAULT: Final = "application/json"
"""As in the JSON event format: data without a media type is JSON."""
_RESERVED: Final = frozenset({*CONTEXT_ATTRIBUTES, "schemaurl", "data", "data_base64"})
_NO_EVENT: Final[Mapping[str, object]] = {}


def admitted(*columns: pa.Array) -> pa.Array:
    """What the match reads of each row beside its own columns.

    Args:
        columns: The context attributes in their order, with `time` as text or as microseconds since 1970 UTC; then
            `extensions` (a JSON object) and `data`.

    Returns:
        A struct of ADMITTED_TYPE for each row.
    """
    json_text.allow_deep_json()
    *attributes, data = columns
    rows = zip(*map(texts, attributes), data.to_pylist(), strict=True)
    found = [_fields(*row) for row in rows]
    kinds = {"data_kind": pa.int8(), "time": pa.utf8(), "time_us": pa.int64(), "extensions": pa.utf8()}
    return pa.StructArray.from_arrays(
        [pa.array([one.get(name) for one in found], kind) for name, kind in kinds.items()], names=list(kinds)
    )


def texts(column: pa.Array) -> Sequence[Any]:
    """A column's values; text that is no UTF-8 has surrogates in it, which no attribute may have."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
        return [None if one is None else one.decode(errors="surrogateescape") for one in raw.to_pylist()]
    return list(repeat(None, len(column))) if pa.types.is_null(column.type) else values


def _fields(*row: Any) -> Mapping[str, object]:  # noqa: ANN401 - values of columns
    try:
        event = _event(*row)
    except (EventError, json_text.MalformedJsonError, json_text.AmbiguousJsonError, UnicodeEncodeError):
        return _NO_EVENT
    return {
        "data_kind": int(event.data_kind),
        "time": event.time,
        "time_us": None if event.time is None else rfc3339.micros(event.time),
        "extensions": msgspec.json.encode(event.extensions).decode() if event.extensions else None,
    }


def _event(
    specversion: str | None,
    id_: str | None,
    source: str | None,
    type_: str | None,
    subject: str | None,
    time: str | int | None,
    content_type: str | None,
    schema: str | None,
    extensions: str | None,
    data: bytes | None,
) -> Event:
    version = specversion or SPECVERSION_DEFAULT
    attributes: dict[str, object] = {}
    if extensions is not None:
        named = json_text.parse(extensions.encode())
        if not isinstance(named, dict) or not _RESERVED.isdisjoint(named):
            raise EventError("must be an object of extension attributes", attribute="extensions")
        attributes.update(named)
    attributes.update(specversion=version, id=id_, source=source, type=type_, subject=subject)
    attributes.update(time=rfc3339.text(time) if isinstance(time, int) else time, datacontenttype=content_type)
    attributes["schemaurl" if version == "0.3" else "dataschema"] = schema
    kind = DataKind.NONE if data is None else kind_of(content_type or CONTENT_TYPE_DEFAULT, data)
    return make_event(attributes, kind, data)
