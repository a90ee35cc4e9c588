"""`headgate.spark.read_events` reads a broker's events of a data directory, exactly, and skips chunks by the filter."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate.event.arrow import StoredEvent
from headgate.filter.cel.errors import FilterError
from headgate.objects.store.store import Store
from headgate.spark.connector import ConnectorMissingError, use_connector
from headgate.spark.reading import read_events
from headgate.spark.topic_events import EventsAddressError, KafkaAddress, kafka_address
from headgate.storage.sqlite import DatabaseNewerError, DatabaseOlderError
from headgate_api.event.model import DataKind, Event
from headgate_api.positions import PositionError
from tests.match.events import append, writing
from tests.support import DEPTH

pytestmark = pytest.mark.spark

CHUNKS, EACH, PARTITIONS = 12, 10, 2
START_US = 1_767_225_600_000_000  # 2026-01-01
STEP_US = 60_000_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory: of each chunk one type, a minute after the one before; every fifth event of another broker."""
    data = tmp_path_factory.mktemp("reading") / "data"
    data.mkdir()
    with closing(Store.open(data / "control.db")) as store:
        served = store.served("default/default")
    assert served is not None
    for partition in range(PARTITIONS):
        clock = iter(START_US + STEP_US * chunk for chunk in range(CHUNKS))
        with writing(data / "log", partition, clock_us=lambda clock=clock: next(clock)) as writer:
            for chunk in range(CHUNKS):
                numbers = range(chunk * EACH, (chunk + 1) * EACH)
                brokers = [served.identity if n % 5 else "other/other/1" for n in numbers]
                append(writer, [
                    StoredEvent(of, event(partition, n, chunk)) for of, n in zip(brokers, numbers, strict=True)
                ])  # fmt: skip
    return data


def event(partition: int, number: int, chunk: int) -> Event:
    data = b'{"n":%d}' % number
    return Event("1.0", f"{partition}-{number}", "/s", f"type.{chunk % 4}", data_kind=DataKind.JSON, data=data)


def expected(*, first: int = 0, end: int = CHUNKS, kind: int | None = None, above: int = -1) -> set[str]:
    return {
        f"{partition}-{number}"
        for partition in range(PARTITIONS)
        for number in range(EACH * CHUNKS)
        if number % 5 and number > above and first <= number // EACH < end and kind in (None, number // EACH % 4)
    }


def ids(frame: DataFrame) -> set[str]:
    found = [row["id"] for row in frame.collect()]
    assert len(found) == len(set(found))
    return set(found)


def chunk_counts(frame: DataFrame) -> tuple[int, int]:
    """Chunks that reading the frame took up, and those that it passed over: Spark's own metrics of the scan."""
    scans = [
        node for node in nodes(frame._jdf.queryExecution().executedPlan()) if node.metrics().contains("chunksRead")
    ]
    assert len(scans) == 1
    read, skipped = (scans[0].metrics().apply(name).value() for name in ("chunksRead", "chunksSkipped"))
    return read, skipped


def nodes(plan: Any) -> Iterator[Any]:
    """A physical plan, from the top."""
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from nodes(children.apply(index))


def test_a_batch_holds_the_brokers_events(spark: SparkSession, data: Path) -> None:
    frame = read_events(spark, str(data))
    assert ids(frame) == expected()
    assert {"broker", "partition", "offset", "append_time_us", "data_kind"} <= set(frame.columns)
    assert ids(read_events(spark, data.as_uri(), broker="default/default")) == expected()
    assert chunk_counts(frame) == (CHUNKS * PARTITIONS, 0)


@pytest.mark.parametrize(
    ("given", "kind", "above", "chunks"),
    [
        pytest.param('ce.type == "type.1"', 1, -1, 3, marks=pytest.mark.slow),
        ('ce.type == "type.1" && data.n > 60', 1, 60, 3),
        pytest.param({"attributes": {"type": "type.1"}}, 1, -1, 3, marks=pytest.mark.slow),
        pytest.param('{"cesql": "type = \'type.1\'"}', 1, -1, 3, marks=pytest.mark.slow),
        ('ce.type.endsWith(".1")', 1, -1, CHUNKS),
        ('ce.type in ["type.1"] && data.n.map(x, x).size() > 0 || ce.type == "type.1"', 1, -1, 3),
    ],
)
def test_a_filter_is_exact_and_skips_chunks(
    spark: SparkSession, data: Path, given: str | dict[str, object], kind: int, above: int, chunks: int
) -> None:
    frame = read_events(spark, str(data), filter=given)
    assert frame.columns == read_events(spark, str(data)).columns
    assert ids(frame) == expected(kind=kind, above=above)
    assert chunk_counts(frame) == (PARTITIONS * chunks, PARTITIONS * (CHUNKS - chunks))


def test_a_filter_that_is_never_true_reads_no_chunk(spark: SparkSession, data: Path) -> None:
    frame = read_events(spark, str(data), filter='ce.type == "a" && ce.type == "b"')
    assert ids(frame) == set()
    assert chunk_counts(frame) == (0, PARTITIONS * CHUNKS)


@pytest.mark.parametrize(
    ("options", "chunks"),
    [
        pytest.param({"from_": "2026-01-01T00:03:00Z"}, 9, marks=pytest.mark.slow),
        pytest.param({"to": "2026-01-01T00:03:00Z"}, 3, marks=pytest.mark.slow),
        ({"from_": "2026-01-01T00:03:00Z", "to": "2026-01-01T00:07:00Z"}, 4),
        ({"from_": "2026-01-01T00:02:59.999999Z", "to": "2026-01-01T00:03:00.000001Z"}, 1),
        pytest.param({"from_": "2026-01-01T00:03:00Z", "filter": 'ce.type == "type.1"'}, 2, marks=pytest.mark.slow),
        pytest.param({"filter": 'publish_time >= timestamp("2026-01-01T00:03:00Z")'}, 9, marks=pytest.mark.slow),
        ({"filter": 'publish_time < timestamp("2026-01-01T00:03:00Z") && ce.type == "type.1"'}, 1),
        ({"filter": 'publish_time == timestamp("2026-01-01T00:03:00Z")', "to": "0:35,1:35"}, 1),
        pytest.param({"filter": 'publish_time > timestamp("2027-01-01T00:00:00Z")'}, 0, marks=pytest.mark.slow),
    ],
)
def test_chunks_of_other_times_are_not_read(
    spark: SparkSession, data: Path, options: dict[str, str], chunks: int
) -> None:
    frame = read_events(spark, str(data), **options)  # type: ignore[arg-type]
    frame.collect()
    read, _ = chunk_counts(frame)
    assert read == PARTITIONS * chunks


@pytest.mark.slow
def test_a_filter_of_times_is_exact(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """To the millisecond, as a filter sees the time of storing; in a batch and in a stream."""
    with closing(Store.open(tmp_path / "control.db")) as store:
        served = store.served("default/default")
    assert served is not None
    clock = iter(START_US + step for step in (0, 999, 1_000, 1_999, 2_000, 3_000))
    with writing(tmp_path / "log", clock_us=lambda: next(clock)) as writer:
        for number in range(6):
            append(writer, [StoredEvent(served.identity, event(0, number, 0))])
    at = 'timestamp("2026-01-01T00:00:00.001Z")'
    for comparison, numbers in {">": (4, 5), ">=": (2, 3, 4, 5), "==": (2, 3), "<=": (0, 1, 2, 3), "<": (0, 1)}.items():
        frame = read_events(spark, str(tmp_path), filter=f"publish_time {comparison} {at}")
        assert ids(frame) == {f"0-{number}" for number in numbers}
        if DEPTH == "gate" and comparison != ">":
            continue
        stream = read_events(spark, str(tmp_path), filter=f"publish_time {comparison} {at}", streaming=True)
        writer_of = stream.writeStream.format("memory").queryName("times").trigger(availableNow=True)
        writer_of.option("checkpointLocation", str(tmp_path / f"times {comparison}")).start().awaitTermination()
        assert ids(spark.table("times")) == {f"0-{number}" for number in numbers}


def test_from_and_to(spark: SparkSession, data: Path) -> None:
    def read(**places: str) -> set[str]:
        return ids(read_events(spark, str(data), **places))  # type: ignore[arg-type]

    assert read(from_="2026-01-01T00:03:00Z") == expected(first=3)
    assert read(from_="2026-01-01T00:03:00Z", to="2026-01-01T00:07:00Z") == expected(first=3, end=7)
    assert read(to="0:30,1:30") == expected(end=3)
    assert read(to="next") == expected()
    assert read(from_="next") == set()
    position = {f"0-{n}" for n in range(25, 120) if n % 5} | {f"1-{n}" for n in range(119, 120) if n % 5}
    assert read(from_="0:25,1:119") == position
    with pytest.raises(PositionError, match="is no place in the log"):
        read(from_="yesterday")


def test_a_stream_holds_what_a_batch_holds(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    for name, options in {
        "all_events": {},
        "some": {"filter": 'ce.type == "type.1" && data.n > 20', "to": "0:70,1:70"},
    }.items():
        stream = read_events(spark, str(data), streaming=True, **options)  # type: ignore[arg-type]
        assert stream.isStreaming
        writer = stream.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination()
    assert ids(spark.table("all_events")) == expected()
    assert ids(spark.table("some")) == expected(kind=1, above=20, end=7)


def test_a_stream_follows_the_log(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """What is appended while it runs comes with a later micro-batch; a second start goes on at its checkpoint."""
    with closing(Store.open(tmp_path / "control.db")) as store:
        served = store.served("default/default")
    assert served is not None
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def step() -> set[str]:
        stream = read_events(spark, str(tmp_path), filter="data.n > 0", streaming=True)
        writer = stream.writeStream.format("parquet").option("path", out).trigger(availableNow=True)
        writer.option("checkpointLocation", checkpoint).start().awaitTermination()
        return ids(spark.read.parquet(out))

    with writing(tmp_path / "log") as writer:
        append(writer, [StoredEvent(served.identity, event(0, n, 0)) for n in range(3)])
        assert step() == {"0-1", "0-2"}
        append(writer, [StoredEvent(served.identity, event(0, n, 0)) for n in range(3, 5)])
        assert step() == {"0-1", "0-2", "0-3", "0-4"}


def test_what_is_not_there_is_named(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    with pytest.raises(EventsAddressError, match=r"no data directory of Headgate: .*control\.db is missing"):
        read_events(spark, str(tmp_path))
    assert not (tmp_path / "control.db").exists()
    with pytest.raises(EventsAddressError, match="there is no broker 'shop/orders'"):
        read_events(spark, str(data), broker="shop/orders")
    with pytest.raises(EventsAddressError, match="no address of events"):
        read_events(spark, "s3://bucket/data")
    with pytest.raises(FilterError):
        read_events(spark, str(data), filter="ce.type ==")
    with closing(Store.open(tmp_path / "control.db")), pytest.raises(EventsAddressError, match="there is no log"):
        read_events(spark, str(tmp_path))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("kafka://localhost", "'localhost' is not HOST:PORT"),
        ("kafka:///?prefix=a.", "'' is not HOST:PORT"),
        ("kafka://a:1,b/", "'b' is not HOST:PORT"),
        ("kafka://user:secret@a:1/", "the address holds a name or a password"),
        ("kafka://a:1/events", "no address of events"),
        ("kafka://a:1/?topic=events", "no address of events"),
        ("kafka://a:1/?prefix=a.&prefix=b.", "no address of events"),
        ("kafka://a:1/?prefix=a/b", "no address of events"),
        ("kafka://a:1/?prefix", "no address of events"),
    ],
)
def test_an_address_of_kafka_has_one_form(spark: SparkSession, address: str, said: str) -> None:
    with pytest.raises(EventsAddressError, match=re.escape(said)) as failure:
        read_events(spark, address)
    assert "secret" not in str(failure.value)


def test_addresses_of_kafka() -> None:
    assert kafka_address("kafka://a:1,[::1]:2/?prefix=shop.") == KafkaAddress("a:1,[::1]:2", "shop.events")
    assert kafka_address("kafka://a:1") == kafka_address("kafka://a:1/") == KafkaAddress("a:1", "headgate.events")
    assert kafka_address("kafka://a:1?prefix=").topic == "events"


def test_a_session_without_sparks_kafka_source_is_told(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.spark.topic_events._SOURCE_CLASS", "org.example.Missing")
    with pytest.raises(ConnectorMissingError, match="does not have Spark's Kafka source") as failure:
        read_events(spark, "kafka://127.0.0.1:9/")
    assert "'spark.jars.packages', 'org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0'" in failure.value.hint
    with pytest.raises(EventsAddressError, match="kafka_options are given"):
        read_events(spark, str(data), kafka_options={"security.protocol": "SSL"})


def test_a_directory_is_as_it_was_after_it_was_read(spark: SparkSession, data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    assert ids(read_events(spark, str(data))) == expected()
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_a_directory_of_another_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    Store.open(tmp_path / "control.db").close()
    for step, error in ((-1, DatabaseOlderError), (2, DatabaseNewerError)):
        with closing(sqlite3.connect(tmp_path / "control.db")) as connection:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA user_version = {found + step}")
        with pytest.raises(error):
            read_events(spark, str(tmp_path))


def test_damage_stops_a_read_or_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "control.db")) as store:
        served = store.served("default/default")
    assert served is not None
    with writing(tmp_path / "log") as writer:
        for chunk in range(3):
            append(writer, [StoredEvent(served.identity, event(0, chunk, chunk))])
    (segment,) = (tmp_path / "log" / "0").glob("*.seg")
    raw = bytearray(segment.read_bytes())
    raw[-20] ^= 0xFF
    segment.write_bytes(raw)
    with pytest.raises((PySparkException, Py4JJavaError), match="wrong checksum"):
        ids(read_events(spark, str(tmp_path)))
    assert ids(read_events(spark, str(tmp_path), on_corrupt="skip")) == {"0-0", "0-1"}


def test_a_session_without_the_connector_is_told(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.spark.connector.FUNCTIONS_VALUE", "dev.headgate.nothing.Functions")
    with pytest.raises(ConnectorMissingError) as failure:
        use_connector(spark)
    assert "spark.jars" in failure.value.hint


def test_what_the_page_says_of_this_spark(spark: SparkSession) -> None:
    """docs/reference/interoperability.md: how a VARIANT is written to Parquet, and which sinks real-time mode has."""
    assert spark.conf.get("spark.sql.variant.writeShredding.enabled") == "true"
    name = "org.apache.spark.sql.execution.streaming.runtime.RealTimeModeAllowlist$"
    allowed = spark._jvm.java.lang.Class.forName(name)  # type: ignore[union-attr]
    field = allowed.getDeclaredField("allowedSinks")
    field.setAccessible(True)
    sinks = set(re.findall(r"[\w$]+(?=[,)])", field.get(allowed.getField("MODULE$").get(None)).toString()))
    assert sinks == {"ConsoleTable$", "ContinuousMemorySink", "ForeachWriterTable", "KafkaSourceProvider$KafkaTable"}
