"""The match of a DataFrame's events with thousands of filters, exact, in batches and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # its stubs leave them out

from headgate.event.attributes import CONTEXT_ATTRIBUTES
from headgate.filter.cel.ast import PUBLISH_TIME
from headgate.filter.cel.evaluate import program
from headgate.filter.compile.plan import Verdict
from headgate.match.dataframe import MatchTable, build_table, match_events
from headgate.spark.columns import READ, EventRows, event_rows
from headgate.spark.connector import bound_batches, use_connector, use_own_python
from headgate.spark.errors import EventColumnsError
from headgate.spark.filters import Filters, NamedFilter, compiled_filters
from headgate.spark.settlement import EVENT_COLUMNS, SettledFilter, settlement

ADDED: Final = ("filter_id", "verdict")
MATCH: Final = "match"
ERROR: Final = "error"
_EVERYONE: Final = "*"
"""Stands for the broker: all filters are asked of all events."""
_ROW: Final = "row"
_SIZE_FACTOR: Final = 4
"""How much more than its columns an event may count for the cost of an evaluation: names of members, characters."""


def match(events: DataFrame, filters: Filters) -> DataFrame:
    """Every (event, filter) pair in which the filter is true, and those in which it was found to be an error.

    The rows of `match` are exactly those of which cel-cpp says true. An error is a row where the filter's index found
    the event; of events that it did not find none is said, as a broker says none.

    Rows go to Python in batches of SPARK_ARROW_BATCH_BYTES_MAX: the session gets this bound, see
    `connector.bound_batches`.

    Args:
        events: A batch or a stream of micro-batches in the CloudEvents columns, see `columns.event_rows`. A row that
            is no CloudEvent, by the rules of the ingress, is matched by no filter.
        filters: By id, in any dialect, see `filters.Filters`; at most SPARK_FILTERS_MAX.

    Returns:
        The columns of `events`, then `filter_id` STRING and `verdict` STRING: `match` or `error`. In no order.

    Raises:
        ConnectorMissingError: The session was started without the connector's jar.
        EventColumnsError: A column is missing, of another type, or has a name that the answer needs.
        FiltersRefusedError: Filters do not compile; they are named by id.
    """
    spark = events.sparkSession
    use_connector(spark)
    use_own_python(spark)
    bound_batches(spark)
    taken = [name for name in ADDED if name in events.columns]
    if taken:
        raise EventColumnsError(
            f"the events have a column {taken[0]!r}, which the answer has too", hint="withColumnRenamed"
        )
    rows = event_rows(events)
    named = compiled_filters(filters)
    reads_append_time = _check_append_time(rows, named)
    table = build_table(spark, ((number, _EVERYONE, one.compiled) for number, one in enumerate(named)))
    settled = _settled(rows, named, _matched(rows, table), reads_append_time=reads_append_time)
    ids = {
        "target": pa.array(range(len(named)), pa.int32()),
        "filter_id": pa.array([one.id for one in named], pa.utf8()),
    }
    answer = settled.join(F.broadcast(spark.createDataFrame(pa.table(ids))), "target")
    given = [F.col(column).alias(name) for column, name in zip(rows.carried, rows.names, strict=True)]
    is_match = F.col("settled") == F.lit(int(Verdict.MATCH))
    return answer.select(*given, "filter_id", F.when(is_match, MATCH).otherwise(ERROR).alias("verdict"))


def _check_append_time(rows: EventRows, named: Sequence[NamedFilter]) -> bool:
    """Whether a filter reads when an event was stored."""
    written = (one for one in named if PUBLISH_TIME in one.compiled.cel)  # to parse each is dear
    reading = next((one for one in written if program(one.compiled.cel).reads_publish_time), None)
    if reading is not None and not rows.has_append_time:
        raise EventColumnsError(
            f"filter {reading.id!r} reads publish_time, but the events have no column append_time_us",
            hint="append_time_us BIGINT: when the event was stored, microseconds since 1970 UTC",
        )
    return reading is not None


def _matched(rows: EventRows, table: MatchTable) -> DataFrame:
    """What the matcher says; the rows of one event have the same `row`, and no two events do."""
    # A number that grows would do, but Spark has none in a stream.
    frame = rows.frame.withColumns({_ROW: F.uuid(), "broker": F.lit(_EVERYONE)})
    return match_events(frame, table, (_ROW, *rows.carried, *READ))


def _settled(
    rows: EventRows, named: Sequence[NamedFilter], matched: DataFrame, *, reads_append_time: bool
) -> DataFrame:
    """One row a pair that is true or an error, with its verdict in `settled`."""
    size = F.lit(0)
    for name in (*CONTEXT_ATTRIBUTES, "extensions", "data"):
        size = size + F.coalesce(F.octet_length(name), F.lit(0))
    sure_bytes = min((one.compiled.sure_bytes for one in named), default=0)
    left_open = (F.col("verdict") != F.lit(int(Verdict.MATCH))) | (size.cast("bigint") * _SIZE_FACTOR > sure_bytes)
    if reads_append_time:
        left_open = left_open | F.col("append_time_us").isNull()
    function = settlement([SettledFilter(one.compiled.cel, len(one.compiled.rows) == 1) for one in named])
    settle = arrow_udf(function, "tinyint").asNondeterministic()
    columns = [F.when(left_open, F.col(name)) for name in (*EVENT_COLUMNS, "append_time_us")]
    verdict = settle(F.col(_ROW), F.col("target"), F.col("verdict"), *columns)
    settled = matched.select(*rows.carried, "target", verdict.alias("settled"))
    return settled.where(F.col("settled").isNotNull())
