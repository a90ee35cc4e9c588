"""`headgate.spark.match` says of every pair what cel-cpp says, in batches and in streams."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.spark.columns import EventColumnsError
from headgate.spark.connector import BATCH_BYTES_SETTING, use_own_python
from headgate.spark.matching import FiltersRefusedError, Settle, SettledFilter, compiled_filters, match, settlement
from headgate_api.event.model import DataKind, Event
from tests.filter.hostile_events import random_event, random_stored_us
from tests.filter.strategies import random_filter, random_hard_filter
from tests.spark.tables import Pairs, frame_of, log_table, plain_table, said, truth
from tests.support import DEPTH, times

pytestmark = pytest.mark.spark

ORDERS = [
    Event("1.0", f"o{n}", "/shop", "order.created" if n % 2 else "order.paid", None, None, None, None,
          {"tenant": f"t{n % 3}"}, DataKind.JSON, b'{"n":%d,"items":["a","b%d"]}' % (n, n))
    for n in range(60)
]  # fmt: skip
FILTERS = {
    "created": 'ce.type == "order.created"',
    "large": "data.n > 50",
    "either": 'ce.tenant == "t1" || data.n < 3',
    "hard": 'data.items.filter(x, x.startsWith("b")).size() == 1 && data.n % 7 == 0',
    "missing": 'ce.type == "order.paid" && data.absent > 1',
}


def written(write: Callable[[random.Random], str], rng: random.Random, count: int) -> dict[str, str]:
    """Filters that an admission takes, by what each is called."""
    found: dict[str, str] = {}
    while len(found) < count:
        text = write(rng)
        try:
            compile_filter({"cel": text})
        except FilterError:
            continue
        found[f"{write.__name__} {len(found)}"] = text
    return found


def views(events: list[Event]) -> list[EventView]:
    return [EventView(event) for event in events]


def compared(answer: DataFrame, events: list[EventView], filters: dict[str, str]) -> tuple[int, int]:
    """Matches exactly as cel-cpp says, errors at most; how many of each."""
    matches, errors = said(answer)
    true, wrong = truth(events, filters)
    assert matches == true
    assert errors <= wrong
    return len(matches), len(errors)


def test_a_thousand_filters_match_exactly(spark: SparkSession) -> None:
    """An event that is too large for its filter is refused by cel-cpp, and so by a delivery: it is no match, whatever
    the matcher says alone."""
    rng = random.Random(11)
    count = times(80, 1_000)
    filters = written(random_filter, rng, count) | written(random_hard_filter, rng, count // 5)
    stored = [random_stored_us(rng) for _ in range(times(120, 300))]
    events = [random_event(rng) for _ in stored]
    pairs = len(filters) * len(events)
    nested = "data.items.exists(x, data.items.exists(y, x == y))"
    assert compile_cel(nested).sure_bytes < 1 << 20
    filters |= {"nested": nested, "simple": 'ce.id in ["large", "small"] && data.items.exists(x, x == 1)'}
    for name, items in {"large": range(40_000), "small": [1]}.items():
        data = msgspec.json.encode({"items": list(items)})
        events.append(Event("1.0", name, "/s", "t", data_kind=DataKind.JSON, data=data))
        stored.append(0)
    frame = frame_of(spark, log_table(events, stored))
    whole = [EventView(event, at) for event, at in zip(events, stored, strict=True)]
    matches, errors = compared(match(frame, filters), whole, filters)
    assert matches > 10_000 * pairs // 360_000
    assert errors > 1_000 * pairs // 360_000
    frame.unpersist()


# --- rows in CloudEvents' own columns, admitted by the rules of the ingress -------------------------------------------

NO_UTF_8 = "no UTF-8"
HOSTILE: list[dict[str, object]] = [
    {"id": None},
    {"id": ""},
    {"source": None},
    {"type": None},
    {"source": "no reference"},
    {"specversion": "9"},
    {"time": "yesterday"},
    {"datacontenttype": "nonsense"},
    {"extensions": "[1]"},
    {"extensions": "{"},
    {"extensions": '{"id": "other"}'},
    {"extensions": '{"UPPER": "x"}'},
    {"extensions": '{"a": "x", "a": "y"}'},
    {"data": b'{"n": 1, "n": 2}'},
    {"data": b'{"n": "\\u0000"}'},
    {"id": "a\x00b"},
    {"id": NO_UTF_8},
]
"""Rows that are no CloudEvent."""
ODD: list[tuple[dict[str, object], set[str]]] = [
    ({}, {"any", "n"}),
    ({"data": None}, {"any"}),
    ({"data": b""}, {"any"}),
    ({"data": b"{"}, {"any"}),
    ({"data": b'{"n": 1} and more'}, {"any"}),
    ({"data": b"\xff\xfe"}, {"any"}),
    ({"data": b'{"n": 1}', "datacontenttype": "text/plain"}, {"any"}),
    ({"data": b'{"n": 1}', "datacontenttype": "application/x+json"}, {"any", "n"}),
    ({"data": b"[" * 900 + b"]" * 900}, {"any"}),
    ({"extensions": "{}"}, {"any", "n"}),
    ({"extensions": '{"tenant": null}'}, {"any", "n"}),
    ({"extensions": '{"tenant": "gold"}'}, {"any", "n", "tenant"}),
    ({"specversion": None}, {"any", "n"}),
    ({"time": "2026-01-01T00:00:00Z"}, {"any", "n", "time"}),
    ({"time": "2026-01-01T01:59:60.5+02:00"}, {"any", "n", "time"}),
]  # fmt: skip
"""Rows that are, and what they match."""
WAYS: dict[str, str | dict[str, object]] = {
    "cel": 'ce.type == "order.paid"',
    "object": {"attributes": {"type": "order.paid"}},
    "text": '{"cesql": "type = \'order.paid\'"}',
    "pattern": {"eventPattern": {"type": ["order.paid"]}},
}
PARTS = {
    "any": "true",
    "n": "data.n == 1",
    "tenant": 'ce.tenant == "gold"',
    "time": 'ce.time < timestamp("2026-01-02T00:00:00Z") && ce.time > timestamp("2025-01-01T00:00:00Z")',
}


def _is_small(value: object) -> bool:
    return isinstance(value, str | bool) or (isinstance(value, int) and -(2**31) <= value < 2**31)


def _kind(event: Event) -> DataKind:
    from headgate_api.event.data import kind_of

    assert event.data is not None
    return kind_of("application/json", event.data)


def drawn_events() -> list[Event]:
    rng, count = random.Random(12), times(100, 300)
    drawn = (random_event(rng) for _ in range(2 * count))
    events = [event for event in drawn if all(_is_small(value) for value in event.extensions.values())][:count]
    return [msgspec.structs.replace(event, datacontenttype=None) for event in events]


def drawn_filters() -> dict[str, str]:
    drawn = written(random_filter, random.Random(12), times(60, 300))
    return {name: text for name, text in drawn.items() if "publish_time" not in text}


def odd_rows() -> pa.Table:
    usual = {"specversion": "1.0", "id": "i", "source": "/s", "type": "t", "data": b'{"n": 1}'}
    rows = [usual | one for one in (*HOSTILE, *(odd for odd, _ in ODD))]
    schema = plain_table([]).schema
    return pa.Table.from_pylist([row | {"number": number} for number, row in enumerate(rows)], schema)


@pytest.fixture(scope="module")
def answers(spark: SparkSession) -> dict[str, tuple[Pairs, Pairs]]:
    """What filters say of rows, by what both are about: all in one query."""
    rows = {"orders": plain_table(ORDERS), "drawn": plain_table(drawn_events()), "odd": odd_rows()}
    filters: dict[str, Mapping[str, str | Mapping[str, object]]] = {
        "orders": WAYS,
        "drawn": drawn_filters(),
        "odd": PARTS,
    }
    whole = pa.concat_tables([table.append_column("about", [[name] * len(table)]) for name, table in rows.items()])
    frame = frame_of(spark, whole)
    # What no table of Arrow has: text that is no UTF-8.
    no_text = (F.col("about") == "odd") & (F.col("id") == NO_UTF_8)
    frame = frame.withColumn("id", F.when(no_text, F.expr("cast(x'fffe' as string)")).otherwise(F.col("id")))
    answer = match(frame, {f"{about} {name}": one for about, some in filters.items() for name, one in some.items()})
    matches, errors = said(answer.where(F.col("filter_id").startswith(F.col("about"))))

    def of(pairs: Pairs, about: str) -> Pairs:
        return {(number, name.removeprefix(f"{about} ")) for number, name in pairs if name.startswith(f"{about} ")}

    return {about: (of(matches, about), of(errors, about)) for about in rows}


def test_tables_of_cloudevents_match_exactly(answers: dict[str, tuple[Pairs, Pairs]]) -> None:
    """Without the log's columns data is JSON or nothing."""
    events, filters = drawn_events(), drawn_filters()
    admitted = [
        event if event.data_kind in {DataKind.NONE, DataKind.JSON} else
        msgspec.structs.replace(event, data_kind=_kind(event))
        for event in events
    ]  # fmt: skip
    true, wrong = truth(views(admitted), filters)
    matches, errors = answers["drawn"]
    assert matches == true
    assert errors <= wrong
    assert len(matches) > 3_000 * len(filters) * len(events) // 90_000


def test_every_way_to_write_filters(spark: SparkSession, answers: dict[str, tuple[Pairs, Pairs]]) -> None:
    assert answers["orders"][0] == {(n, name) for n in range(0, 60, 2) for name in WAYS}
    texts = {
        name: given if isinstance(given, str) else msgspec.json.encode(given).decode() for name, given in WAYS.items()
    }
    table = spark.createDataFrame(list(texts.items()), "filter_id string, filter string")
    assert compiled_filters(table) == compiled_filters(WAYS)


def test_hostile_rows_match_what_they_are(answers: dict[str, tuple[Pairs, Pairs]]) -> None:
    expected = {(len(HOSTILE) + number, name) for number, (_, names) in enumerate(ODD) for name in names}
    assert answers["odd"][0] == expected


def test_columns_come_back_whatever_they_are_called_and_equal_rows_are_each_matched(spark: SparkSession) -> None:
    frame = frame_of(spark, pa.concat_tables([plain_table(ORDERS).slice(7, 1)] * 5))
    frame = frame.withColumns({
        "target": F.lit("mine"), "targets": F.array(F.lit(1)), "row": F.col("number"), "row_key": F.lit(1.5),
        "settled": F.lit(None).cast("string"), "broker": F.lit("b"), "a.b c`d": F.struct(F.lit(1).alias("x")),
        "partition": F.lit(date := "2026-01-01").cast("date"),
    })  # fmt: skip
    answer = match(frame, {"either": 'ce.type == "order.created" || ce.tenant == "t1"', "no": "data.n > 50"})
    assert answer.columns == [*frame.columns, "filter_id", "verdict"]
    assert answer.schema["number"].dataType == frame.schema["number"].dataType
    rows = answer.collect()
    assert [(row["filter_id"], row["verdict"]) for row in rows] == [("either", "match")] * 5
    for row in rows:
        assert (row["target"], row["targets"], row["row"], str(row["partition"])) == ("mine", [1], 7, date)
        assert row["a.b c`d"]["x"] == 1


@pytest.mark.slow  # of the matcher tests/match/test_dataframe.py shows it
def test_no_filter_matches_nothing(spark: SparkSession) -> None:
    assert match(frame_of(spark, plain_table(ORDERS)), {}).count() == 0


# --- other rows -------------------------------------------------------------------------------------------------------


def test_rows_that_claim_to_be_a_logs_do_no_harm(spark: SparkSession) -> None:
    """With `data_kind` nothing is checked: what lies is an error or nothing, and the query goes on."""
    table = log_table(ORDERS[:6]).select(
        ["number", "specversion", "id", "source", "type", "time", "time_us", "extensions", "data_kind", "data"]
    )
    rows = table.to_pylist()
    rows[0]["extensions"] = "{ broken"
    rows[1]["data_kind"] = 77
    rows[2]["data"] = b'{"n": '
    rows[3]["data_kind"] = None
    rows[4]["data"] = None
    frame = spark.createDataFrame(
        pa.Table.from_pylist(rows, table.schema.remove_metadata().set(8, pa.field("data_kind", pa.int8())))
    )
    filters = {"hard": "data.items.map(x, x).size() == 2", "n": "data.n == 5"}
    matches, errors = said(match(frame, filters))
    assert matches == {(5, "hard"), (5, "n")}
    assert (0, "hard") in errors


def test_times_and_maps_of_tables(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(0, "2026-01-01 00:00:00.000001", {"tenant": "gold"}), (1, None, None)],
        "number bigint, at string, extensions map<string, string>",
    ).selectExpr("number", "'i' as id", "'/s' as source", "'t' as type", "to_timestamp(at) as time", "extensions",
                 "'{\"n\": 1}' as data")  # fmt: skip
    filters = {
        "time": 'ce.time == timestamp("2026-01-01T00:00:00.000001Z")',
        "tenant": 'ce.tenant == "gold"',
        "n": "data.n == 1",
    }
    answer = match(frame, filters)
    assert said(answer)[0] == {(0, "time"), (0, "tenant"), (0, "n"), (1, "n")}
    assert answer.schema["time"].dataType.simpleString() == "timestamp"


def test_when_events_were_stored(spark: SparkSession) -> None:
    filters = {
        "late": 'publish_time > timestamp("2026-01-01T00:00:00Z")',
        "early": 'publish_time < timestamp("2026-01-01T00:00:00Z")',
    }
    table = plain_table(ORDERS[:3])
    with pytest.raises(
        EventColumnsError, match="filter 'late' reads publish_time, but the events have no column append_time_us"
    ):
        match(frame_of(spark, table), filters)
    stored = pa.array([1_767_225_600_000_000 + 1_000, 0, None], pa.int64())
    matches, errors = said(match(frame_of(spark, table.append_column("append_time_us", stored)), filters))
    assert matches == {(0, "late"), (1, "early")}
    assert errors <= {(2, "late"), (2, "early")}


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    names = {name: f"spark.sql.{name.replace('__', '.')}" for name in values}
    before = {name: spark.conf.get(key) for name, key in names.items()}
    try:
        for name, key in names.items():
            spark.conf.set(key, values[name])
        yield
    finally:
        for name, key in names.items():
            spark.conf.set(key, before[name])


@pytest.mark.slow
def test_a_session_may_be_set_up_otherwise(spark: SparkSession) -> None:
    """As somebody else's session is; and batches of Arrow as small as they get, so that events lie across them."""
    with settings(spark, ansi__enabled="false", caseSensitive="false", adaptive__enabled="true",
                  session__timeZone="America/New_York", execution__arrow__maxRecordsPerBatch="2"):  # fmt: skip
        matches, errors = compared(match(frame_of(spark, plain_table(ORDERS)), FILTERS), views(ORDERS), FILTERS)
    assert matches > 50
    assert errors == 30


@pytest.mark.parametrize(
    ("master", "given", "used"),
    [
        ("local[2]", "python3", sys.executable),
        ("local-cluster[2,1,1024]", "python3", sys.executable),
        ("local[*]", "/opt/python", "/opt/python"),
        ("spark://host:7077", "python3", "python3"),
    ],
)
def test_workers_of_this_machine_run_the_drivers_python(master: str, given: str, used: str) -> None:
    """As without PYSPARK_PYTHON in a notebook, or in a venv that is not activated."""
    context = SimpleNamespace(master=master, pythonExec=given)
    use_own_python(cast(SparkSession, SimpleNamespace(sparkContext=context)))
    assert context.pythonExec == used


@pytest.mark.slow
def test_rows_go_to_python_in_batches_of_bounded_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of 50 kB, of which every one is left open for four filters: 20 MB of rows."""
    each, limit = 50_000, 750_000
    sizes = tmp_path / "sizes"
    monkeypatch.setattr("headgate.spark.connector.SPARK_ARROW_BATCH_BYTES_MAX", limit)

    def watched(filters: Sequence[SettledFilter]) -> Settle:
        real = settlement(filters)

        def settle(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            def noted() -> Iterator[tuple[pa.Array, ...]]:
                for batch in batches:
                    with sizes.open("a") as out:
                        out.write(f"{sum(column.nbytes for column in batch)}\n")
                    yield batch

            return real(noted())

        return settle

    monkeypatch.setattr("headgate.spark.matching.settlement", watched)
    text = "x" * (each - 100)
    events = [
        Event("1.0", f"e{n}", "/s", "t", data_kind=DataKind.JSON, data=b'{"n":%d,"text":"%s"}' % (n, text.encode()))
        for n in range(100)
    ]
    filters = {f"f{k}": f"data.text.size() > 10 && data.n % {k} == 0" for k in range(2, 6)}
    spark.conf.set(BATCH_BYTES_SETTING, "1g")  # as somebody may have set it
    answer = match(frame_of(spark, log_table(events)), filters)
    assert said(answer)[0] == {(n, f"f{k}") for n in range(100) for k in range(2, 6) if n % k == 0}
    found = [int(line) for line in sizes.read_text().splitlines()]
    assert sum(found) > 400 * (each - 200)
    assert max(found) < limit + 2 * each
    assert len(found) > 20
    spark.conf.set(BATCH_BYTES_SETTING, "1000")
    match(frame_of(spark, log_table(ORDERS[:1])), FILTERS)
    assert spark.conf.get(BATCH_BYTES_SETTING) == "1000", "who wants less has less"
    spark.conf.unset(BATCH_BYTES_SETTING)


@pytest.mark.slow
def test_a_stream_says_what_a_batch_says(spark: SparkSession, tmp_path: Path) -> None:
    """Several micro-batches from Parquet files, into memory and into Parquet."""
    table = plain_table(ORDERS)
    (tmp_path / "in").mkdir()
    for part in range(3):
        pq.write_table(table.slice(20 * part, 20), tmp_path / "in" / f"{part}.parquet", compression="zstd")
    schema = spark.read.parquet(str(tmp_path / "in")).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(tmp_path / "in"))
    answer = match(stream, FILTERS)
    assert answer.isStreaming
    memory = answer.writeStream.format("memory").queryName("matched").trigger(availableNow=True)
    memory.option("checkpointLocation", str(tmp_path / "c1")).start().awaitTermination()
    assert len(list((tmp_path / "c1" / "commits").glob("[0-9]*"))) == 3
    compared(spark.table("matched"), views(ORDERS), FILTERS)
    if DEPTH == "gate":
        return
    files = answer.writeStream.format("parquet").option("path", str(tmp_path / "out")).trigger(availableNow=True)
    files.option("checkpointLocation", str(tmp_path / "c2")).start().awaitTermination()
    compared(spark.read.parquet(str(tmp_path / "out")), views(ORDERS), FILTERS)


def test_filters_that_do_not_compile_are_named(spark: SparkSession) -> None:
    frame = frame_of(spark, plain_table(ORDERS[:1]))
    with pytest.raises(
        FiltersRefusedError, match=r"filter 'two' does not compile: filter\.cel.*; nor do 2 others: 'three', 'four'"
    ) as failure:
        match(frame, {"one": "true", "two": "ce.type ==", "three": {"nosuch": 1}, "four": "{"})
    assert "\n" in failure.value.message
    with pytest.raises(FiltersRefusedError, match="two filters have the id 'a'"):
        match(frame, spark.createDataFrame([("a", "true"), ("a", "false")], "filter_id string, filter string"))
    with pytest.raises(FiltersRefusedError, match="a filter has no filter: filter_id 'a'"):
        match(frame, spark.createDataFrame([("a", None)], "filter_id string, filter string"))
    with pytest.raises(FiltersRefusedError, match="no column filter of type STRING"):
        match(frame, spark.createDataFrame([("a", 1)], "filter_id string, filter int"))
    with pytest.raises(FiltersRefusedError, match="filter 'a' is a list"):
        match(frame, {"a": ["true"]})  # type: ignore[dict-item]


def test_columns_that_do_not_fit_are_named(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "a")], "id int, kind string")
    with pytest.raises(EventColumnsError, match=r"id is INT, expected is STRING; source is missing.*; type is missing"):
        match(frame, {})
    whole = frame_of(spark, plain_table(ORDERS[:1]))
    with pytest.raises(EventColumnsError, match="a column 'verdict'"):
        match(whole.withColumn("verdict", F.lit(1)), {})
    with pytest.raises(EventColumnsError, match="two columns 'id'"):
        match(whole.select("*", F.col("id")), {})
    with pytest.raises(EventColumnsError, match="time_us is missing, expected beside data_kind is BIGINT"):
        match(whole.withColumn("data_kind", F.lit(1).cast("tinyint")), {})
    with pytest.raises(EventColumnsError, match="extensions is MAP<STRING,INT>"):
        match(whole.withColumn("extensions", F.create_map(F.lit("a"), F.lit(1))), {})
