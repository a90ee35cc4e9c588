"""Events as the frame that `match_events` reads, and its answer as one verdict for each pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from headgate.event.arrow import StoredEvent, to_batch
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.match import key_specs
from headgate.match.dataframe import match_events
from headgate.match.table import MatchTable, build_table
from headgate_api.event.model import Event

BROKER = "default/main/1"


@contextmanager
def share_atoms() -> Iterator[None]:
    """Tables that are built meanwhile share every comparison that they can, however few filters have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_specs, "SHARED_ATOM_FILTERS_MIN", 1)
        patch.setattr(key_specs, "SHARED_ATOM_SHARE", 1_000_000)
        yield


def frame_of(
    spark: SparkSession,
    events: Sequence[Event],
    broker: str | Sequence[str] = BROKER,
    stored_us: Sequence[int] | None = None,
) -> DataFrame:
    """Events of one broker, or each of its own; `offset` is the index.

    Cached, or Spark would work out the columns while it plans.
    """
    brokers = [broker] * len(events) if isinstance(broker, str) else broker
    table = pa.Table.from_batches([to_batch(list(map(StoredEvent, brokers, events)))])
    table = table.append_column("partition", pa.array([0] * len(events), pa.int32()))
    table = table.append_column("offset", pa.array(range(len(events)), pa.int64()))
    table = table.append_column("append_time_us", pa.array(stored_us or [0] * len(events), pa.int64()))
    return spark.createDataFrame(table).cache()


def verdicts(events: DataFrame, table: MatchTable) -> dict[tuple[int, int], Verdict]:
    """(offset, target) -> the highest verdict."""
    found: dict[tuple[int, int], Verdict] = {}
    answer = match_events(events, table).select("offset", "target", "verdict").toArrow()
    for offset, target, verdict in zip(*(column.to_pylist() for column in answer.columns), strict=True):
        pair = (offset, target)
        found[pair] = max(found.get(pair, Verdict.ERROR), Verdict(verdict))
    return found


def match(
    spark: SparkSession, events: Sequence[Event], filters: Iterable[CompiledFilter], **options: int
) -> dict[tuple[int, int], Verdict]:
    """Matches in one step; a target is its filter's index."""
    table = build_table(spark, ((number, BROKER, one) for number, one in enumerate(filters)), **options)
    frame = frame_of(spark, events)
    found = verdicts(frame, table)
    frame.unpersist()
    return found
