"""The CloudEvents columns of a DataFrame: which are expected, and in which form the match reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # its stubs leave them out
from pyspark.sql.types import BinaryType, ByteType, DataType, LongType, MapType, StringType, StructType, TimestampType

from headgate_api.errors import EventError, InvalidInputError
from headgate_api.event import json_text, rfc3339
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES, REQUIRED_ATTRIBUTES, make_event
from headgate_api.event.data import kind_of
from headgate_api.event.model import DataKind, Event

_TEXT: Final = (StringType,)
_TYPES: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    **dict.fromkeys(CONTEXT_ATTRIBUTES, _TEXT),
    "time": (StringType, TimestampType),
    "extensions": (StringType, MapType),
    "data": (BinaryType, StringType),
    "data_kind": (ByteType,),
    "time_us": (LongType,),
    "append_time_us": (LongType,),
}
_REQUIRED: Final = ("id", "source", "type")
_OF_THE_LOG: Final[Mapping[str, type[DataType]]] = {
    "specversion": StringType,
    "time": StringType,
    "time_us": LongType,
    "extensions": StringType,
    "data": BinaryType,
}
"""What must be there, and in which type, where `data_kind` says that the rows have passed an ingress."""
_NAMES: Final[Mapping[type[DataType], str]] = {
    StringType: "STRING",
    TimestampType: "TIMESTAMP",
    MapType: "MAP<STRING, STRING>",
    BinaryType: "BINARY",
    ByteType: "TINYINT",
    LongType: "BIGINT",
}
READ: Final = (*CONTEXT_ATTRIBUTES, "extensions", "data_kind", "data", "time_us", "append_time_us")
"""Columns that the match reads, in the form of the log."""
_ADMITTED: Final = "admitted"


class EventColumnsError(InvalidInputError):
    """A DataFrame lacks a column that events or filters need, or has it in another type."""

    code = "spark-columns"


@dataclass(frozen=True, slots=True)
class EventRows:
    """Events in the form in which the match reads them."""

    frame: DataFrame  # the columns of READ, and the given ones under their names in `carried`; events alone
    carried: tuple[str, ...]  # names in `frame` of the given columns, in their order
    names: tuple[str, ...]
    has_append_time: bool  # whether it is known when the events were stored


def event_rows(events: DataFrame) -> EventRows:
    """Reads the columns of a DataFrame as CloudEvents; raises EventColumnsError.

    `id`, `source` and `type` are STRING. Beside them, where there are any: `specversion` (1.0 by default), `subject`,
    `datacontenttype`, `dataschema` STRING, `time` STRING (RFC 3339) or TIMESTAMP, `extensions` STRING (a JSON object)
    or MAP<STRING, STRING>, `data` BINARY or STRING (JSON unless `datacontenttype` says otherwise), `append_time_us`
    BIGINT (when the event was stored), and any others. With a column `data_kind` TINYINT the rows are taken as a log's:
    valid, with `specversion`, `time`, `time_us`, `extensions` and `data` as a log has them.
    """
    names = tuple(events.columns)
    _check(names, events.schema)
    carried = tuple(f"given_{number}" for number in range(len(names)))
    given = dict(zip(names, carried, strict=True))
    types = {field.name: field.dataType for field in events.schema.fields}
    frame = events.toDF(*carried)

    def column(name: str, kind: str = "string") -> Column:
        return F.col(given[name]) if name in given else F.lit(None).cast(kind)

    read = {name: column(name) for name in (*CONTEXT_ATTRIBUTES, "extensions")}
    read["data"] = column("data", "binary").cast("binary")
    read["append_time_us"] = column("append_time_us", "bigint")
    if "data_kind" in given:
        read |= {"data_kind": column("data_kind"), "time_us": column("time_us")}
    else:
        time, extensions = read["time"], read["extensions"]
        is_time = isinstance(types.get("time"), TimestampType)
        read["specversion"] = F.coalesce(read["specversion"], F.lit(SPECVERSION_DEFAULT))
        read["time"] = F.unix_micros(time) if is_time else time
        read["extensions"] = F.to_json(extensions) if isinstance(types.get("extensions"), MapType) else extensions
        # Nondeterministic in name only: else Spark may evaluate it once for every column that is read of it.
        admit = arrow_udf(admitted, ADMITTED_TYPE).asNondeterministic()
        frame = frame.withColumn(
            _ADMITTED, admit(*(read[name] for name in (*CONTEXT_ATTRIBUTES, "extensions", "data")))
        )
        read |= {name: F.col(f"{_ADMITTED}.{name}") for name in ("data_kind", "time_us", "extensions")}
        read["time"] = F.col(f"{_ADMITTED}.time") if is_time else time
    frame = frame.select(*carried, *(read[name].alias(name) for name in READ))
    for name in (*sorted(REQUIRED_ATTRIBUTES), "data_kind"):
        frame = frame.where(F.col(name).isNotNull())
    return EventRows(frame, carried, names, "append_time_us" in given)


def _check(names: tuple[str, ...], schema: StructType) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise EventColumnsError(f"the events have two columns {twice[0]!r}", hint="name them apart, or drop one")
    types = {field.name: field.dataType for field in schema.fields}
    wrong = [
        f"{name} is {_shown(types[name])}, expected is {' or '.join(_NAMES[one] for one in expected)}"
        for name, expected in _TYPES.items()
        if name in types and not _is(types[name], expected)
    ]
    wrong += [f"{name} is missing, expected is STRING" for name in _REQUIRED if name not in types]
    if "data_kind" in types:
        wrong += [
            f"{name} is {_shown(types.get(name))}, expected beside data_kind is {_NAMES[expected]}"
            for name, expected in _OF_THE_LOG.items()
            if not isinstance(types.get(name), expected)
        ]
    if wrong:
        raise EventColumnsError(
            f"the events do not have the columns of CloudEvents: {'; '.join(dict.fromkeys(wrong))}",
            hint="select and cast them; docs/howto/spark.md lists the columns",
        )


def _is(given: DataType, expected: tuple[type[DataType], ...]) -> bool:
    if isinstance(given, MapType):
        texts = isinstance(given.keyType, StringType) and isinstance(given.valueType, StringType)
        return MapType in expected and texts
    return isinstance(given, expected)


def _shown(given: DataType | None) -> str:
    return "missing" if given is None else given.simpleString().upper()


# --- admission ------------------------------------------------------------------------------------
# Rows of any table as events, by the rules of the ingress: an Arrow function for tables that have not been through it.
# What a log or an earlier match hands out has passed already and is not looked at again.

ADMITTED_TYPE: Final = "data_kind tinyint, time string, time_us bigint, extensions string"
"""`data_kind` is NULL where the row is no event."""
SPECVERSION_DEFAULT: Final = "1.0"
CONTENT_TYPE_DEFAULT: Final = "application/json"
"""As in the JSON event format: data without a media type is JSON."""
_RESERVED: Final = frozenset({*CONTEXT_ATTRIBUTES, "schemaurl", "data", "data_base64"})
_NO_EVENT: Final[Mapping[str, object]] = {}


def admitted(*columns: pa.Array) -> pa.Array:
    """What the match reads of each row beside its own columns: structs of ADMITTED_TYPE.

    `columns` are the context attributes in their order, with `time` as text or as microseconds since 1970 UTC; then
    `extensions` (a JSON object) and `data`.
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


def _event(*row: Any) -> Event:  # noqa: ANN401 - values of columns
    specversion, id_, source, type_, subject, time, content_type, schema, extensions, data = row
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
