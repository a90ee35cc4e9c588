"""Events as tables that people have: the columns of the log, or CloudEvents' own; and what a match must say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headgate.event.arrow import StoredEvent, to_batch
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.request import filter_of
from headgate_api.event.model import Event

Pairs = set[tuple[int, str]]
"""Number of an event, id of a filter."""


def log_table(events: Sequence[Event], stored_us: Sequence[int] | None = None) -> pa.Table:
    """As the log has them, numbered."""
    table = pa.Table.from_batches([to_batch([StoredEvent("default/main/1", event) for event in events])])
    table = table.append_column("append_time_us", pa.array(stored_us or [0] * len(events), pa.int64()))
    return table.append_column("number", pa.array(range(len(events)), pa.int64()))


def plain_table(events: Sequence[Event]) -> pa.Table:
    """In CloudEvents' own columns, numbered."""
    names = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
    columns = {name: pa.array([getattr(event, name) for event in events], pa.utf8()) for name in names}
    encoded = [msgspec.json.encode(event.extensions).decode() if event.extensions else None for event in events]
    return pa.table(
        {
            "number": pa.array(range(len(events)), pa.int64()),
            **columns,
            "extensions": pa.array(encoded, pa.utf8()),
            "data": pa.array([event.data for event in events], pa.binary()),
        }
    )


def truth(views: Sequence[EventView], filters: Mapping[str, str | Mapping[str, object]]) -> tuple[Pairs, Pairs]:
    """The pairs of which cel-cpp says true, and those of which it says error."""
    found: dict[OutcomeKind, Pairs] = {kind: set() for kind in OutcomeKind}
    for name, given in filters.items():
        one = program(compile_filter(filter_of(given)).cel)
        for number, view in enumerate(views):
            found[one.evaluate_view(view).kind].add((number, name))
    return found[OutcomeKind.TRUE], found[OutcomeKind.ERROR]


def said(answer: DataFrame) -> tuple[Pairs, Pairs]:
    """The pairs of `match`, and those of `error`; none comes twice."""
    rows = answer.select("number", "filter_id", "verdict").toArrow().to_pylist()
    pairs = [(row["number"], row["filter_id"]) for row in rows]
    assert len(pairs) == len(set(pairs))
    split: dict[str, Pairs] = {"match": set(), "error": set()}
    for row, pair in zip(rows, pairs, strict=True):
        split[row["verdict"]].add(pair)
    return split["match"], split["error"]


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table).cache()
