"""Records of the topic `events` as columns of the log: Spark's Kafka source in the form of `event/arrow.py`.

Columns alone, no Python and no shuffle, so that it fits into batches, micro-batches and real-time mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headgate.event.kafka import BROKER, CONTENT_TYPE, DATA_KIND, EXTENSIONS, PREFIX, TIME_US
from headgate_api.event.model import DataKind

_KINDS: Final = tuple(str(int(kind)) for kind in DataKind)
_REQUIRED: Final = ("broker", "specversion", "id", "source", "type", "data_kind")


def log_columns(records: DataFrame, also: Sequence[str] = ()) -> DataFrame:
    """The events of records, a row each, in the columns of the connector's source of the log, and `also`.

    `records` are of Spark's source `kafka` with `includeHeaders=true`; batch or streaming. `partition` is INT, `offset`
    and `append_time_us` (to the millisecond) are BIGINT. `broker` is NULL where the record is no event that Headgate
    stored: a header is missing, doubled or no UTF-8, the broker's is empty, or the data is not of its kind. Attributes
    are not looked at any closer.
    """
    found = _event()
    is_stored = F.size(_names()) == F.size(F.array_distinct(_names()))
    for name in _REQUIRED:
        is_stored = is_stored & found[name].isNotNull()
    is_stored = is_stored & (found["broker"] != F.lit(""))  # the match's table has a row of that name, of no broker
    has_no_data = found["data_kind"] == F.lit(int(DataKind.NONE))
    is_stored = is_stored & (has_no_data == F.col("value").isNull())
    kind = F.coalesce(found["data_kind"], F.lit(int(DataKind.NONE)).cast("tinyint"))
    columns = {**found, "broker": F.when(is_stored, found["broker"]), "data_kind": kind}
    place = ("partition", "offset", F.unix_micros("timestamp").alias("append_time_us"))
    return records.select(*(column.alias(name) for name, column in columns.items()), *place, *also)


def _event() -> Mapping[str, Column]:
    """What the headers say, by the log's columns, in their order."""
    is_old = _text(f"{PREFIX}specversion") == F.lit("0.3")
    schema = F.when(is_old, _text(f"{PREFIX}schemaurl")).otherwise(_text(f"{PREFIX}dataschema"))
    kind = _text(DATA_KIND)
    return {
        "broker": F.nullif(_text(BROKER), F.lit("")),
        **{name: _text(PREFIX + name) for name in ("specversion", "id", "source", "type", "subject", "time")},
        "time_us": _text(TIME_US).try_cast("bigint"),
        "datacontenttype": _text(CONTENT_TYPE),
        "dataschema": schema,
        "extensions": _text(EXTENSIONS),
        "data_kind": F.when(kind.isin(*_KINDS), kind.try_cast("tinyint")),
        "data": F.col("value"),
    }


def _names() -> Column:
    return F.col("headers")["key"]


def _text(name: str) -> Column:
    """A header's value; NULL where it is missing or no UTF-8.

    By position: a lambda is interpreted, and a map of headers that are there twice is an error of the query.
    """
    found = F.get(F.col("headers")["value"], F.array_position(_names(), name).cast("int") - 1)
    return F.try_validate_utf8(found.cast("string"))
