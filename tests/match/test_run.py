"""A run sends what it matched, in order, and ends as it should."""

from __future__ import annotations

import contextlib
import random
import threading
from itertools import groupby
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.log.directory import LogDirectory
from headgate.match.errors import RunFailedError
from headgate.match.query import start_run
from headgate.outbox.shards import dispatcher_of
from headgate_api.limits import DISPATCHERS_MAX
from tests.match import vectors
from tests.match.events import append, event, writing
from tests.match.fakes import FakeDispatcher, running
from tests.support import eventually

pytestmark = pytest.mark.spark

ROWS_PER_EVENT = 600
"""Above Spark's internal limits for buffered rows, and 100 such events fill the link's buffer many times."""


def verdict(number: int) -> Column:
    return F.lit(number).cast("tinyint").alias("verdict")


def every_event(events: DataFrame) -> DataFrame:
    """Target 7 wants everything."""
    return events.select("partition", "offset", F.lit(7).alias("target"), verdict(3))


def only_type(kind: str):
    def matches(events: DataFrame) -> DataFrame:
        return every_event(events.where(F.col("type") == kind))

    return matches


def in_order(connection) -> None:
    """Every row stands before the passed frame that covers it and behind the one before; nothing goes back."""
    passed = connection.start
    offsets = []
    for kind, _, _, offset in connection.frames:
        if kind == 2:
            assert offset >= passed
            passed = offset
        else:
            assert offset >= passed
            offsets.append(offset)
    assert offsets == sorted(offsets)


def test_an_event_goes_from_the_log_to_the_link(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with FakeDispatcher() as dispatcher, writing(log) as writer:
        with running(spark, every_event, dispatcher, tmp_path, log=log, start={0: 0}, generation=12):
            connection = dispatcher.of(run=1)
            append(writer, [event(1)])
            dispatcher.wait(lambda: connection.passed == 1)

        assert (connection.generation, connection.partitions, connection.start) == (12, 1, 0)
        assert connection.rows == [(0, 7, 3)]
        dispatcher.wait(lambda: connection.closed)


@pytest.mark.parametrize("codegen", ["true", "false"])
def test_every_row_of_an_event_stands_before_the_passed_frame_that_covers_it(
    spark: SparkSession, tmp_path: Path, codegen: str
) -> None:
    """The claim the whole link rests on: an explode and a broadcast join with many rows an event, either way to run."""
    log = tmp_path / "log"
    table = spark.range(ROWS_PER_EVENT).select(
        (F.col("id") % 3).alias("key"), F.col("id").cast("int").alias("target"), verdict(2)
    )

    def matches(events: DataFrame) -> DataFrame:
        keys = events.select(
            "partition", "offset", F.explode(F.array(*(F.lit(k).cast("bigint") for k in range(3)))).alias("key")
        )
        joined = keys.join(F.broadcast(table), "key").where((F.col("offset") + F.col("target")) % 7 != 0)
        return joined.select("partition", "offset", "target", "verdict")

    spark.conf.set("spark.sql.codegen.wholeStage", codegen)
    try:
        with FakeDispatcher() as dispatcher, writing(log) as writer:
            append(writer, [event(number) for number in range(100)])
            with running(spark, matches, dispatcher, tmp_path, log=log, start={0: 0}):
                connection = dispatcher.of(run=1)
                dispatcher.wait(lambda: connection.passed == 100)
                for number in range(100, 110):
                    append(writer, [event(number)])
                dispatcher.wait(lambda: connection.passed == 110)
    finally:
        spark.conf.unset("spark.sql.codegen.wholeStage")
    in_order(connection)
    rows = {
        offset: sorted(target for _, target, _ in group)
        for offset, group in groupby(connection.rows, lambda row: row[0])
    }
    assert rows == {offset: [t for t in range(ROWS_PER_EVENT) if (offset + t) % 7] for offset in range(110)}
    # More than 64 KiB of rows in one chunk: progress was said in its midst as well.
    assert sum(1 for kind, _, _, offset in connection.frames if kind == 2 and 0 < offset < 100) > 1


def test_events_that_match_nothing_are_passed(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with FakeDispatcher() as dispatcher, writing(log) as writer:
        append(writer, [event(1), event(2)])
        with running(spark, only_type("nothing"), dispatcher, tmp_path, log=log, start={0: 1}):
            connection = dispatcher.of(run=1)
            dispatcher.wait(lambda: connection.passed == 2)
            assert connection.start == 1
            # An idle run repeats itself, so that a dead one is told from a silent one.
            dispatcher.wait(lambda: len(connection.frames) >= 4)
    assert connection.rows == []
    in_order(connection)


def test_partitions_have_a_connection_each(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with FakeDispatcher() as dispatcher, writing(log, 0) as zero, writing(log, 1) as one:
        append(one, [event(0)])
        with running(spark, every_event, dispatcher, tmp_path, log=log, start={0: 0, 1: 1}):
            connections = [dispatcher.of(run=1, partition=partition) for partition in (0, 1)]
            append(zero, [event(1), event(2)])
            append(one, [event(3)])
            dispatcher.wait(lambda: [c.passed for c in connections] == [2, 2])
    assert [(c.start, c.partitions) for c in connections] == [(0, 2), (1, 2)]
    assert [c.rows for c in connections] == [[(0, 7, 3), (1, 7, 3)], [(1, 7, 3)]]


def test_a_second_run_beside_the_first_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """What the dispatcher's takeover needs: both speak of the same events until the older one is stopped."""
    log = tmp_path / "log"
    stop = threading.Event()

    def produce() -> None:
        number = 0
        with writing(log) as writer:
            while not stop.wait(0.002):
                append(writer, [event(number)])
                number += 1

    producer = threading.Thread(target=produce)
    with FakeDispatcher() as dispatcher:
        producer.start()
        try:
            with running(spark, every_event, dispatcher, tmp_path, log=log, start={0: 0}):
                old = dispatcher.of(run=1)
                dispatcher.wait(lambda: old.passed > 20)
                start = old.passed
                new_run = running(
                    spark, every_event, dispatcher, tmp_path, log=log, start={0: start}, number=2, generation=2
                )
                with new_run:
                    new = dispatcher.of(run=2)
                    dispatcher.wait(lambda: new.passed > start + 20 and old.passed > new.passed)
        finally:
            stop.set()
            producer.join()
    assert (old.generation, new.generation) == (1, 2)
    assert [offset for offset, _, _ in old.rows][: old.passed] == list(range(old.passed))
    assert [offset for offset, _, _ in new.rows] == list(range(start, start + len(new.rows)))
    assert len(new.rows) >= 20


def test_a_broken_link_ends_the_run(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with FakeDispatcher() as dispatcher, writing(log) as writer:
        append(writer, [event(1)])
        with running(spark, every_event, dispatcher, tmp_path, log=log, start={0: 0}) as run:
            connection = dispatcher.of(run=1)
            dispatcher.wait(lambda: connection.passed == 1)
            dispatcher.drop(connection)
            eventually(lambda: not run.alive)
            assert "IOException" in run.failure() or "SocketException" in run.failure()


def test_a_wrong_token_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with FakeDispatcher(token=bytes(32)) as dispatcher, writing(log) as writer:
        append(writer, [event(1)])
        with running(spark, every_event, dispatcher, tmp_path, log=log, start={0: 0}) as run:
            eventually(lambda: not run.alive)
            assert "refused the match link" in run.failure()
        assert dispatcher.refused == 1
        assert dispatcher.connections == []


def test_a_start_above_the_log_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with FakeDispatcher() as dispatcher, writing(log) as writer:
        append(writer, [event(1)])
        with running(spark, every_event, dispatcher, tmp_path, log=log, start={0: 2}) as run:
            eventually(lambda: not run.alive)
            assert "ends at offset 1, below the start 2" in run.failure()


def test_a_stopped_run_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    log, scratch = tmp_path / "log", tmp_path / "scratch"
    with FakeDispatcher() as dispatcher, writing(log) as writer:
        append(writer, [event(1)])
        for number in (1, 2, 3):
            with running(spark, every_event, dispatcher, scratch, log=log, start={0: 0}, number=number) as run:
                connection = dispatcher.of(run=number)
                dispatcher.wait(lambda c=connection: c.passed == 1)
                assert len(list(scratch.iterdir())) == 1
            run.stop()
            assert not run.alive
            assert run.failure() == ""
            dispatcher.wait(lambda c=connection: c.closed)
        assert list(scratch.iterdir()) == []
    memory = spark.sparkContext._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    eventually(lambda: memory.getAllocatedMemory() == 0)  # a task closes its reader behind its writer


def test_a_run_that_is_blocked_by_a_slow_dispatcher_stops_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Backpressure is TCP's: the task waits inside a write, and a stop must end that."""
    log = tmp_path / "log"

    def much(events: DataFrame) -> DataFrame:
        targets = F.explode(F.sequence(F.lit(1), F.lit(5_000))).alias("target")
        return events.select("partition", "offset", targets, verdict(3))

    with FakeDispatcher() as dispatcher, writing(log) as writer:
        dispatcher.paused.set()
        append(writer, [event(number) for number in range(2_000)])
        with running(spark, much, dispatcher, tmp_path, log=log, start={0: 0}) as run:
            connection = dispatcher.of(run=1)
            eventually(lambda: dispatcher.is_stuck(connection))
            run.stop()
            assert run.failure() == ""


def test_rows_go_to_the_dispatchers_that_own_their_targets(spark: SparkSession, tmp_path: Path) -> None:
    log, targets = tmp_path / "log", range(1, 101)

    def everybody(events: DataFrame) -> DataFrame:
        wanted = F.explode(F.sequence(F.lit(targets[0]), F.lit(targets[-1]))).alias("target")
        return events.select("partition", "offset", wanted, verdict(3))

    with contextlib.ExitStack() as stack:
        dispatchers = [stack.enter_context(FakeDispatcher()) for _ in range(3)]
        writer = stack.enter_context(writing(log))
        append(writer, [event(number) for number in range(50)])
        first, *others = dispatchers
        stack.enter_context(running(spark, everybody, first, tmp_path, log=log, start={0: 0}, others=tuple(others)))
        for number, dispatcher in enumerate(dispatchers):
            connection = dispatcher.of(run=1)
            assert connection.dispatcher == (number, len(dispatchers))
            dispatcher.wait(lambda c=connection: c.passed == 50)
            owned = [target for target in targets if dispatcher_of(target, len(dispatchers)) == number]
            assert connection.rows == [(offset, target, 3) for offset in range(50) for target in owned]
        append(writer, [event(50)])
        for dispatcher in dispatchers:
            connection = dispatcher.of(run=1)
            dispatcher.wait(lambda c=connection: c.passed == 51)


def test_a_run_ends_when_one_of_its_dispatchers_does(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        FakeDispatcher() as first,
        FakeDispatcher() as second,
        writing(log),
        running(spark, every_event, first, tmp_path, log=log, start={0: 0}, others=(second,)) as run,
    ):
        second.drop(second.of(run=1))
        first.wait(lambda: first.of(run=1).closed)
        eventually(lambda: not run.alive)
        assert run.failure()


@pytest.mark.slow
def test_java_and_python_have_the_same_owners(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    chance = random.Random(4711)
    for target in [0, 1, (1 << 31) - 1, *(chance.randrange(1 << 31) for _ in range(200))]:
        for dispatchers in range(1, DISPATCHERS_MAX + 1):
            owner = jvm.dev.headgate.connector.link.LinkAddress.dispatcherOf(target, dispatchers)
            assert owner == dispatcher_of(target, dispatchers)


def test_a_query_that_spark_refuses_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    def in_reverse(events: DataFrame) -> DataFrame:
        return every_event(events).orderBy("offset")

    with FakeDispatcher() as dispatcher, pytest.raises(RunFailedError, match="run 1 did not start"):
        start_run(
            spark,
            in_reverse,
            log=LogDirectory(tmp_path, "stop"),
            start={0: 0},
            run=1,
            generation=1,
            link=dispatcher.address,
            scratch=tmp_path,
        )
    assert list(tmp_path.iterdir()) == []


def test_an_operator_that_would_read_ahead_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def without_duplicates(events: DataFrame) -> DataFrame:
        return every_event(events).distinct()

    with (
        FakeDispatcher() as dispatcher,
        writing(tmp_path / "log"),
        running(spark, without_duplicates, dispatcher, tmp_path, log=tmp_path / "log", start={0: 0}) as run,
    ):
        eventually(lambda: not run.alive)
        assert "ALLOWLIST" in run.failure()


def test_a_corrupt_chunk_ends_the_run_and_names_the_place(
    spark: SparkSession, dispatcher: FakeDispatcher, tmp_path: Path
) -> None:
    corrupt = vectors.EXPECTED["corrupt"]["3"]
    with running(spark, every_event, dispatcher, tmp_path, log=vectors.VECTORS, start={3: 0}) as run:
        connection = dispatcher.of(run=1, partition=3)
        eventually(lambda: not run.alive)
        assert f"{corrupt['file']} at byte {corrupt['at']}" in run.failure()
    dispatcher.wait(lambda: connection.closed)
    assert connection.passed == corrupt["good_records"]


def test_a_run_follows_the_log_from_segment_to_segment(
    spark: SparkSession, dispatcher: FakeDispatcher, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        writing(log, segment_bytes_max=1) as writer,
        running(spark, every_event, dispatcher, tmp_path, log=log, start={0: 0}),
    ):
        connection = dispatcher.of(run=1)
        for number in range(20):
            append(writer, [event(number), event(number)])
        dispatcher.wait(lambda: connection.passed == 40)
    assert [offset for offset, _, _ in connection.rows] == list(range(40))


def test_a_run_goes_on_behind_what_retention_removes_in_front_of_it(
    spark: SparkSession, dispatcher: FakeDispatcher, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with writing(log, segment_bytes_max=1) as writer:
        for number in range(4):
            append(writer, [event(number)])
    committed = log / "0" / "committed"

    def publish(next_offset: int, first_offset: int) -> None:
        with committed.open("r+b") as file:
            file.write(next_offset.to_bytes(8, "little") + first_offset.to_bytes(8, "little"))

    publish(1, 0)
    with running(spark, every_event, dispatcher, tmp_path, log=log, start={0: 0}):
        connection = dispatcher.of(run=1)
        dispatcher.wait(lambda: connection.passed == 1)
        for removed in (0, 1, 2):
            (log / "0" / f"{removed:020d}.seg").unlink()
        publish(4, 3)
        dispatcher.wait(lambda: connection.passed == 4)
    assert [offset for offset, _, _ in connection.rows] == [0, 3]
