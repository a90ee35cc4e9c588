"""The match of a DataFrame's events with thousands of filters, exact, in batches and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # its stubs leave them out
from pyspark.sql.types import StringType

from headgate.event.arrow import EVENT_SCHEMA, from_batch_all
from headgate.filter.cel.ast import PUBLISH_TIME
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.filter.compile.request import filter_of
from headgate.match.dataframe import match_events
from headgate.match.table import MatchTable, build_table
from headgate.spark.columns import READ, EventColumnsError, EventRows, event_rows
from headgate.spark.connector import bound_batches, use_connector, use_own_python
from headgate_api.errors import InvalidInputError
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES
from headgate_api.event.json_text import allow_deep_json
from headgate_api.limits import SPARK_FILTERS_MAX, SPARK_REFUSALS_SHOWN

# --- filters --------------------------------------------------------------------------------------

Filters = DataFrame | Mapping[str, str | Mapping[str, object]]
"""By id CEL text, or an object as in `spec.filter`, or its JSON; as a DataFrame the columns FILTER_COLUMNS, STRING."""

FILTER_COLUMNS: Final = ("filter_id", "filter")


class FiltersRefusedError(InvalidInputError):
    """Filters do not compile, or cannot be told apart."""

    code = "spark-filters"


@dataclass(frozen=True, slots=True)
class NamedFilter:
    """A filter and what its rows are called."""

    id: str
    compiled: CompiledFilter


def compiled_filters(filters: Filters) -> tuple[NamedFilter, ...]:
    """Compiles all filters, a DataFrame's on the driver; raises FiltersRefusedError, also above SPARK_FILTERS_MAX."""
    found: dict[str, NamedFilter] = {}
    refused: dict[str, FilterError] = {}
    for name, given in _given(filters):
        if name in found or name in refused:
            raise FiltersRefusedError(f"two filters have the id {name!r}")
        if len(found) + len(refused) >= SPARK_FILTERS_MAX:
            raise FiltersRefusedError(
                f"there are more filters than {SPARK_FILTERS_MAX} (SPARK_FILTERS_MAX)", hint="match them in parts"
            )
        try:
            found[name] = NamedFilter(name, compile_filter(filter_of(given)))
        except FilterError as error:
            refused[name] = error
    if refused:
        raise _refusal(refused)
    return tuple(found.values())


def _refusal(refused: Mapping[str, FilterError]) -> FiltersRefusedError:
    (first, error), *others = refused.items()
    more = ", ".join(map(repr, [name for name, _ in others[:SPARK_REFUSALS_SHOWN]]))
    rest = f"; nor do {len(others)} others: {more}{', ...' if len(others) > SPARK_REFUSALS_SHOWN else ''}"
    what = f"filter {first!r} does not compile: {error}{rest if others else ''}"
    return FiltersRefusedError(f"{what}\n{error.caret}".rstrip("\n"), hint=error.hint)


def _given(filters: Filters) -> Iterator[tuple[str, str | Mapping[str, object]]]:
    if not isinstance(filters, DataFrame):
        for name, given in filters.items():
            if not isinstance(name, str) or not isinstance(given, str | Mapping):
                raise FiltersRefusedError(
                    f"filter {name!r} is a {type(given).__name__}", hint="give CEL text, or an object as in spec.filter"
                )
            yield name, given
        return
    types = {field.name: field.dataType for field in filters.schema.fields}
    wrong = [name for name in FILTER_COLUMNS if not isinstance(types.get(name), StringType)]
    if wrong:
        raise FiltersRefusedError(
            f"the DataFrame of filters has no column {' and no column '.join(wrong)} of type STRING",
            hint=f"its columns are {', '.join(types)}; expected are filter_id STRING, filter STRING",
        )
    rows = filters.select(*FILTER_COLUMNS).limit(SPARK_FILTERS_MAX + 1).toArrow()
    for name, given in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        if name is None or given is None:
            raise FiltersRefusedError(f"a filter has no {FILTER_COLUMNS[name is not None]}: filter_id {name!r}")
        yield name, given


# --- match ----------------------------------------------------------------------------------------

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
    the event; of events that it did not find none is said, as a broker says none. Rows go to Python in batches of
    SPARK_ARROW_BATCH_BYTES_MAX: the session gets this bound, see `connector.bound_batches`.

    Args:
        events: A batch or a stream of micro-batches in the CloudEvents columns, see `columns.event_rows`. A row that
            is no CloudEvent, by the rules of the ingress, is matched by no filter.
        filters: By id, in any dialect, see `Filters`; at most SPARK_FILTERS_MAX.

    Returns:
        The columns of `events`, then `filter_id` STRING and `verdict` STRING: `match` or `error`. In no order.

    Raises ConnectorMissingError, EventColumnsError (also for a column that the answer has) and FiltersRefusedError.
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


# --- settlement -----------------------------------------------------------------------------------
# The last word on a match: an Arrow function that merges the rows of a pair, and asks cel-cpp of those left open.
#
# The matcher says MATCH, CANDIDATE or ERROR of each conjunction of a filter; several rows may be of one event and
# filter. They follow each other, so the rows of one event are merged without a shuffle, in a stream as in a batch.

EVENT_COLUMNS: Final = tuple(name for name in EVENT_SCHEMA.names if name not in {"broker", "time_us", "produced"})
"""What is asked for of an event that is left open, with `append_time_us` behind; NULL where nothing is."""
_VERDICTS: Final = {OutcomeKind.TRUE: Verdict.MATCH, OutcomeKind.ERROR: Verdict.ERROR, OutcomeKind.FALSE: None}
Settle = Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]


@dataclass(frozen=True, slots=True)
class SettledFilter:
    """What is needed to settle a filter's rows."""

    cel: str
    is_single: bool  # whether its plan has one row: an ERROR of it is final


def settlement(filters: Sequence[SettledFilter]) -> Settle:
    """The function that settles the rows of these filters, which are given by target.

    It takes the batches of one task and gives one verdict a row, NULL where the row says nothing more of its pair.
    Their columns are `row` (the same in all rows of an event, and in no others), `target`, `verdict`, EVENT_COLUMNS and
    `append_time_us`; these are NULL unless the row is open.
    """

    def settle(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        allow_deep_json()
        event: object = None
        view: EventView | None = None
        said: set[int] = set()
        for row, target, verdict, *columns in batches:
            views = _views(row, columns)
            answer: list[int | None] = []
            is_open = columns[0].is_valid().to_pylist()
            rows = zip(row.to_pylist(), target.to_pylist(), verdict.to_pylist(), is_open, strict=True)
            for of, number, given, left_open in rows:
                if of != event:
                    event, view = of, None
                    said.clear()
                if number in said:
                    answer.append(None)
                    continue
                said.add(number)
                one = filters[number]
                if not left_open or (given == Verdict.ERROR and one.is_single):
                    answer.append(given)
                    continue
                view = view or views.get(of)
                answer.append(_asked(one.cel, view))
            yield pa.array(answer, pa.int8())

    return settle


def _asked(cel: str, view: EventView | None) -> int | None:
    return Verdict.ERROR if view is None else _VERDICTS[program(cel).evaluate_view(view).kind]


def _views(row: pa.Array, columns: Sequence[pa.Array]) -> dict[object, EventView]:
    """The events that are left open in a batch, by row; one that cannot be read is not among them."""
    *attributes, append_time = columns
    first: dict[object, int] = {}
    for index, (of, is_open) in enumerate(zip(row.to_pylist(), columns[0].is_valid().to_pylist(), strict=True)):
        if is_open:
            first.setdefault(of, index)
    taken = pa.array(first.values(), pa.int32())
    events = _events([column.take(taken) for column in attributes], len(first))
    stored = append_time.take(taken).to_pylist()
    return {
        of: EventView(event, stored_us)
        for of, event, stored_us in zip(first, events, stored, strict=True)
        if event is not None
    }


def _events(columns: Sequence[pa.Array], count: int) -> list[Any]:
    """Events of their columns; None for what no ingress has let through."""
    named = dict(zip(EVENT_COLUMNS, columns, strict=True))
    nothing = pa.nulls(count, pa.utf8())
    batch = pa.RecordBatch.from_arrays([named.get(name, nothing) for name in EVENT_SCHEMA.names], EVENT_SCHEMA.names)
    try:
        return [stored.event for stored in from_batch_all(batch)]
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
        if count == 1:
            return [None]
    return [event for index in range(count) for event in _events([one.slice(index, 1) for one in columns], 1)]
