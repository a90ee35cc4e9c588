"""Events in Arrow: the schema of the log, and the conversions between it and `Event`.

The columns are read by the Spark side as well: their order and types are part of the log's format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from headgate_api.event import rfc3339
from headgate_api.event.model import DataKind, Event, EventColumns, ExtensionValue

EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field("broker", pa.utf8(), nullable=False),  # its identity
        pa.field("specversion", pa.utf8(), nullable=False),
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("source", pa.utf8(), nullable=False),
        pa.field("type", pa.utf8(), nullable=False),
        pa.field("subject", pa.utf8()),
        pa.field("time", pa.utf8()),  # verbatim
        pa.field("time_us", pa.int64()),  # microseconds since 1970 UTC, null without a time
        pa.field("datacontenttype", pa.utf8()),
        pa.field("dataschema", pa.utf8()),
        pa.field("extensions", pa.utf8()),  # compact JSON object of typed values and maps, null when there are none
        pa.field("data_kind", pa.int8(), nullable=False),
        pa.field("data", pa.binary()),
        pa.field("produced", pa.utf8()),  # NUMBER:PRODUCER where the producer numbers its events; no part of the event
    ],
    # Raised when a column means something else than before: 2 since `broker` is an identity.
    metadata={"headgate.events": "2"},
)


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event and its broker's identity; a msgspec struct, as a frozen dataclass takes ten times as long to make."""

    broker: str
    event: Event


_UTF8: Final = pa.utf8()
_INT64: Final = pa.int64()
_BINARY: Final = pa.binary()
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_PRODUCED: Final = EVENT_SCHEMA.get_field_index("produced")
_TIME_US: Final = EVENT_SCHEMA.get_field_index("time_us")
_encode = msgspec.json.Encoder().encode
_extensions_decoder: Final = msgspec.json.Decoder(dict[str, str | int | bool | dict[str, Any]])
_KINDS: Final = tuple(DataKind)
_FEW: Final = 3
"""Rows for which a kernel of Arrow takes longer to begin than Python takes for all: an event mostly comes alone."""


def columns_to_batch(groups: Sequence[tuple[str, EventColumns]]) -> pa.RecordBatch:
    """One record batch of `EVENT_SCHEMA` from one group or more: a broker's identity and its events, by columns."""
    brokers = [pa.repeat(pa.scalar(broker, _UTF8), len(events)) for broker, events in groups]
    columns: Iterable[Sequence[Any]] = groups[0][1].columns
    if len(groups) > 1:
        columns = [list(chain.from_iterable(parts)) for parts in zip(*[one.columns for _, one in groups], strict=True)]
    return _record_batch(pa.concat_arrays(brokers), [*columns], ())


def to_batch(entries: Sequence[StoredEvent], produced: Sequence[str | None] = ()) -> pa.RecordBatch:
    """One record batch of `EVENT_SCHEMA`, a row an entry; there is at least one.

    `produced` has one an entry, or is empty when no producer numbers its events.
    """
    columns = list(zip(*[astuple(entry.event) for entry in entries], strict=True))  # in the order of Event's fields
    return _record_batch(pa.array([entry.broker for entry in entries], _UTF8), columns, produced)


def _record_batch(
    brokers: pa.Array, columns: Sequence[Sequence[Any]], produced: Sequence[str | None]
) -> pa.RecordBatch:
    specversions, ids, sources, types, subjects, times, content_types, schemas, extensions, kinds, data = columns
    count = len(ids)
    time = _optional(times, count)
    return pa.RecordBatch.from_arrays(
        [
            brokers,
            pa.array(specversions, _UTF8),
            pa.array(ids, _UTF8),
            pa.array(sources, _UTF8),
            pa.array(types, _UTF8),
            _optional(subjects, count),
            time,
            _times_us(time, times, count),
            _optional(content_types, count),
            _optional(schemas, count),
            _optional([_encode(value).decode() if value else None for value in extensions], count),
            pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(bytes(kinds))]),
            pa.array(data, _BINARY),
            pa.array(produced, _UTF8) if produced else pa.nulls(count, _UTF8),
        ],
        schema=EVENT_SCHEMA,
    )


def _optional(values: Sequence[str | None], count: int) -> pa.Array:
    """A nullable column; a column without any value is the common case and costs nothing."""
    if values.count(None) == count:
        return pa.nulls(count, _UTF8)
    return pa.array(values, _UTF8)


def _times_us(column: pa.Array, texts: Sequence[str | None], count: int) -> pa.Array:
    """Microseconds of every time. Arrow's parser reads the common forms at once and raises at the rare ones."""
    if column.null_count == count:
        return pa.nulls(count, _INT64)
    if count > _FEW:
        with suppress(pa.ArrowInvalid):
            return pc.cast(column, _TIMESTAMP).view(_INT64)
    return pa.array([None if text is None else rfc3339.micros(text) for text in texts], _INT64)


def from_batch(batch: pa.RecordBatch, row: int) -> StoredEvent:
    """Reads one row of a batch of `EVENT_SCHEMA`; for many rows of one batch `from_batch_all` is far cheaper."""
    return _stored(*[column[row].as_py() for column in batch.columns[:_PRODUCED]])


def from_batch_all(batch: pa.RecordBatch) -> list[StoredEvent]:
    """Reads every row of a batch of `EVENT_SCHEMA`, in order."""
    return list(map(_stored, *[column.to_pylist() for column in batch.columns[:_PRODUCED]]))


def _stored(
    broker: str,
    specversion: str,
    id: str,
    source: str,
    type: str,
    subject: str | None,
    time: str | None,
    _time_us: int | None,
    datacontenttype: str | None,
    dataschema: str | None,
    extensions: str | None,
    kind: int,
    data: bytes | None,
) -> StoredEvent:
    """One row; the parameters are the columns of `EVENT_SCHEMA` in their order, up to those that are no part of it."""
    typed: dict[str, ExtensionValue] = {} if extensions is None else _extensions_decoder.decode(extensions)
    return StoredEvent(
        broker,
        Event(specversion, id, source, type, subject, time, datacontenttype, dataschema, typed, _KINDS[kind], data),
    )


def time_range_us(batch: pa.RecordBatch) -> tuple[int, int] | None:
    """Smallest and largest event time of a batch in microseconds UTC, or None when no event has one."""
    column = batch.column(_TIME_US)
    if column.null_count == len(column):
        return None
    if len(column) <= _FEW:
        times = [one for one in column.to_pylist() if one is not None]
        return min(times), max(times)
    bounds = pc.min_max(column)
    return bounds["min"].as_py(), bounds["max"].as_py()
