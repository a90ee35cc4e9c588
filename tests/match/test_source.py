"""The Java data source reads what the Python log wrote, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.event.arrow import EVENT_SCHEMA
from headgate.log.format import Codec, unpack_chunk_header, unpack_segment_header
from headgate.log.recovery import list_segments
from tests.match import vectors
from tests.match.events import append, event, writing
from tests.match.fakes import FakeDispatcher, running

pytestmark = pytest.mark.spark

EVERY_COLUMN = [
    *(name for name in EVENT_SCHEMA.names if name != "produced"), "partition", "offset", "append_time_us"
]  # fmt: skip


def read(spark: SparkSession, log: Path, partitions: Sequence[int], **options: str) -> DataFrame:
    source = spark.read.format("headgate").option("path", str(log)).options(**options)
    return source.option("partitions", ",".join(map(str, partitions))).load()


def dicts(frame: DataFrame) -> list[dict[str, object]]:
    return [row.asDict() for row in sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))]


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_a_batch_holds_the_vectors_to_the_byte(spark: SparkSession, partition: int) -> None:
    frame = read(spark, vectors.VECTORS, [partition])
    assert frame.columns == EVERY_COLUMN
    assert dicts(frame) == vectors.rows(partition)


def test_several_partitions_are_one_table(spark: SparkSession) -> None:
    expected = [row for partition in (0, 1, 2) for row in vectors.rows(partition)]
    assert dicts(read(spark, vectors.VECTORS, [0, 1, 2])) == expected


@pytest.mark.slow
def test_each_column_alone_is_the_column_of_all(spark: SparkSession) -> None:
    frame = read(spark, vectors.VECTORS, [0])
    for column in EVERY_COLUMN:
        values = [row[0] for row in frame.orderBy("offset").select(column).collect()]
        assert values == [row[column] for row in vectors.rows(0)], column
    assert frame.count() == len(vectors.rows(0))


@pytest.mark.parametrize("start", [1, 2, 4, 23, 40, 91, 92, 93])
def test_a_read_starts_inside_a_chunk(spark: SparkSession, start: int) -> None:
    rows = dicts(read(spark, vectors.VECTORS, [0], startOffsets=json.dumps({"0": start})))
    assert rows == vectors.rows(0)[start:]


def test_a_start_that_retention_has_removed_means_the_first_kept_offset(spark: SparkSession) -> None:
    assert dicts(read(spark, vectors.VECTORS, [2], startOffsets='{"2": 0}')) == vectors.rows(2)


@pytest.mark.parametrize("values", [[value] for value in vectors.EXPECTED["xxh64"]] + [["absent", "tenant-7"]])
def test_chunks_are_skipped_exactly_as_their_filters_say(spark: SparkSession, values: list[str]) -> None:
    wanted = [chunk for chunk in vectors.chunks(0) if any(chunk["may_contain"][value] for value in values)]
    expected = [row for chunk in wanted for row in vectors.rows_of(chunk, 0)]
    assert len(expected) < len(vectors.rows(0))
    assert dicts(read(spark, vectors.VECTORS, [0], filterValues=json.dumps(values))) == expected


def test_null_among_the_filter_values_asks_for_records_without_one(spark: SparkSession) -> None:
    wanted = [chunk for chunk in vectors.chunks(0) if chunk["unfiltered"]]
    expected = [row for chunk in wanted for row in vectors.rows_of(chunk, 0)]
    assert 0 < len(expected) < len(vectors.rows(0))
    assert dicts(read(spark, vectors.VECTORS, [0], filterValues='["absent", null]')) == expected


def test_a_micro_batch_holds_what_a_batch_holds(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("headgate").option("path", str(vectors.VECTORS)).option("partitions", "0,1,2")
    stream = source.load().writeStream.format("memory").queryName("vectors").trigger(availableNow=True)
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    query.awaitTermination()
    expected = [row for partition in (0, 1, 2) for row in vectors.rows(partition)]
    assert dicts(spark.table("vectors")) == expected


def test_real_time_mode_holds_what_a_batch_holds(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of a run carry no columns of the event, so a hash of all of them stands in."""

    def hashes(events: DataFrame) -> DataFrame:
        target = F.hash(*EVERY_COLUMN).alias("target")
        return events.select("partition", "offset", target, F.lit(3).cast("tinyint").alias("verdict"))

    expected = {
        partition: [
            (row["offset"], row["target"], 3) for row in hashes(read(spark, vectors.VECTORS, [partition])).collect()
        ]
        for partition in (0, 2)
    }
    with (
        FakeDispatcher() as dispatcher,
        running(spark, hashes, dispatcher, tmp_path, log=vectors.VECTORS, start={0: 0, 2: 0}),
    ):
        for partition, rows in expected.items():
            connection = dispatcher.of(run=1, partition=partition)
            end = vectors.EXPECTED["partitions"][str(partition)]["next_offset"]
            dispatcher.wait(lambda c=connection, e=end: c.passed == e)
            assert sorted(connection.rows) == sorted(rows)
            assert [row[0] for row in connection.rows] == sorted(row[0] for row in rows)


def test_a_corrupt_chunk_is_named_by_file_and_byte(spark: SparkSession) -> None:
    corrupt = vectors.EXPECTED["corrupt"]["3"]
    with pytest.raises((PySparkException, Py4JJavaError)) as failure:
        read(spark, vectors.VECTORS, [3]).select("id").collect()
    place = re.escape(str(vectors.VECTORS / "3" / corrupt["file"])) + f" at byte {corrupt['at']}\\b"
    assert re.search("wrong checksum of a chunk's payload, in " + place, str(failure.value))


@pytest.mark.parametrize(
    ("byte", "said"),
    [
        (0, "no chunk magic"),
        (9, "wrong checksum of a chunk header"),
        (70, "wrong checksum of a chunk's payload"),
    ],
)
def test_any_changed_byte_of_a_chunk_is_found(spark: SparkSession, tmp_path: Path, byte: int, said: str) -> None:
    shutil.copytree(vectors.VECTORS / "1", tmp_path / "0")
    chunk = vectors.chunks(1)[1]
    segment = next((tmp_path / "0").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[chunk["at"] + byte] ^= 0x40
    segment.write_bytes(data)
    with pytest.raises((PySparkException, Py4JJavaError), match=f"{said}, in .* at byte {chunk['at']}"):
        read(spark, tmp_path, [0]).collect()


@pytest.mark.parametrize(("number", "byte"), [(0, 0), (1, 5), (2, 60), (3, 64), (4, 200), (6, 40), (3, -9)])
def test_a_damaged_chunk_is_passed_over_where_that_is_asked(
    spark: SparkSession, tmp_path: Path, number: int, byte: int
) -> None:
    """Header, filter or body, in any segment: the chunk is missing and nothing else. Below 0: counted from its end."""
    starts = seven_chunks(tmp_path)
    (path, at, size) = starts[number]
    data = bytearray(path.read_bytes())
    data[at + byte % size] ^= 0x10
    path.write_bytes(data)
    rest = [f"id-{n}" for n in range(14) if n // 2 != number]
    assert skipping(spark, tmp_path) == rest
    assert skipping(spark, tmp_path, startOffsets='{"0": 1}') == [id_ for id_ in rest if id_ != "id-0"]


def test_a_segment_without_a_header_is_passed_over_where_that_is_asked(spark: SparkSession, tmp_path: Path) -> None:
    starts = seven_chunks(tmp_path)
    path = starts[2][0]
    data = bytearray(path.read_bytes())
    data[20] ^= 0x10
    path.write_bytes(data)
    gone = {number for number, (other, _, _) in enumerate(starts) if other == path}
    assert skipping(spark, tmp_path) == [f"id-{n}" for n in range(14) if n // 2 not in gone]


def skipping(spark: SparkSession, log: Path, **options: str) -> list[str]:
    frame = read(spark, log, [0], onCorrupt="skip", **options)
    return [row["id"] for row in sorted(frame.select("id", "offset").collect(), key=lambda row: row["offset"])]


def seven_chunks(log: Path) -> list[tuple[Path, int, int]]:
    """Two events each, in several segments; where each stands: file, byte, size."""
    with writing(log, segment_bytes_max=6_000) as writer:
        for index in range(7):
            append(writer, [event(2 * index), event(2 * index + 1)])
    segments = [path for _, path in list_segments(log / "0")]
    assert len(segments) > 1
    return [(path, at, size) for path in segments for at, size in starts_of(path.read_bytes())]


def starts_of(segment: bytes) -> list[tuple[int, int]]:
    _, at = unpack_segment_header(segment)
    found = []
    while at < len(segment):
        size = unpack_chunk_header(segment[at : at + 64]).chunk_bytes
        found.append((at, size))
        at += size
    return found


def test_a_missing_segment_is_corruption_and_not_the_end(spark: SparkSession, tmp_path: Path) -> None:
    with writing(tmp_path, segment_bytes_max=1) as writer:
        for number in range(3):
            append(writer, [event(number)])
    (tmp_path / "0" / f"{1:020d}.seg").unlink()
    with pytest.raises((PySparkException, Py4JJavaError), match="nothing of offset 1 here"):
        read(spark, tmp_path, [0]).collect()


def test_a_partition_that_was_never_written_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    assert read(spark, tmp_path, [0]).count() == 0


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_gives_the_same_rows(spark: SparkSession, tmp_path: Path, codec: Codec) -> None:
    with writing(tmp_path, codec=codec, segment_bytes_max=20_000) as writer:
        for first in range(0, 400, 40):
            append(writer, [event(number) for number in range(first, first + 40)])
    rows = read(spark, tmp_path, [0]).orderBy("offset").select("id", "extensions", "data").collect()
    assert [row["id"] for row in rows] == [f"id-{number}" for number in range(400)]
    assert [bytes(row["data"]) for row in rows] == [b'{"n":%d}' % number for number in range(400)]
    assert len(list((tmp_path / "0").glob("*.seg"))) > 1


def test_an_option_that_is_missing_is_named(spark: SparkSession) -> None:
    with pytest.raises((PySparkException, Py4JJavaError), match="needs the option 'partitions'"):
        spark.read.format("headgate").option("path", "/nowhere").load().collect()
