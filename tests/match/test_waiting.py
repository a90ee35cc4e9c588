"""A run at the end of the log sleeps until its writer wakes it, and looks by itself where nobody does."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate.event.arrow import EVENT_SCHEMA
from headgate.log.directory import Partition
from headgate.log.wakeups import Wakeups
from headgate.log.writer import PartitionWriter
from tests.match.events import append, event, writing
from tests.match.fakes import PATIENCE_S, FakeDispatcher, running
from tests.match.test_run import every_event
from tests.support import eventually

pytestmark = pytest.mark.spark

SILENCE_S = 2.0
LOOKS_A_SECOND_MIN = 100
"""A task that looks all the time does so 900 times a second on an idle machine."""


@contextlib.contextmanager
def listening(wakeups: Wakeups, run_directory: Path) -> Iterator[None]:
    """The writer's process, as far as wake-ups go."""
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def listen() -> None:
        async with wakeups.listening(run_directory / "log-0.wake"):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(listen()))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def wakeups_of_tasks(jvm: int) -> int:
    """How often the threads of Spark's tasks have gone to sleep so far."""
    count = 0
    for status in Path(f"/proc/{jvm}/task").glob("*/status"):
        try:
            text = status.read_text()
        except OSError:  # the thread has just ended
            continue
        if text.startswith("Name:\tExecutor task"):
            found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)
            assert found is not None
            count += int(found[1])
    return count


def heard(wakeups: Wakeups) -> None:
    """Returns when a reader is told of growth."""
    eventually(lambda: bool(wakeups._readers))


def test_a_run_is_woken_by_the_writer_and_by_nobody_else(spark: SparkSession, tmp_path: Path) -> None:
    wakeups, jvm = Wakeups(), spark.sparkContext._gateway.proc.pid
    partition = Partition(tmp_path / "log" / "0", "stop")
    with (
        FakeDispatcher() as dispatcher,
        PartitionWriter(partition, EVENT_SCHEMA, on_growth=wakeups.grown) as writer,
        listening(wakeups, tmp_path),
        running(spark, every_event, dispatcher, tmp_path, log=tmp_path / "log", start={0: 0}, wakeups=tmp_path),
    ):
        connection = dispatcher.of(run=1)
        for number in range(1, 4):
            heard(wakeups)
            append(writer, [event(number)])
            dispatcher.wait(lambda number=number: connection.passed == number)
        before = wakeups_of_tasks(jvm)
        time.sleep(SILENCE_S)  # a silence is what is tested
        assert wakeups_of_tasks(jvm) - before < SILENCE_S * LOOKS_A_SECOND_MIN / 4


def test_a_run_outlives_the_process_that_wakes_it(spark: SparkSession, tmp_path: Path) -> None:
    wakeups = Wakeups()
    with FakeDispatcher() as dispatcher, writing(tmp_path / "log") as writer:
        with running(spark, every_event, dispatcher, tmp_path, log=tmp_path / "log", start={0: 0}, wakeups=tmp_path):
            connection = dispatcher.of(run=1)
            append(writer, [event(1)])  # nobody listens yet: the run looks by itself
            dispatcher.wait(lambda: connection.passed == 1)
            with listening(wakeups, tmp_path):
                heard(wakeups)
                append(writer, [event(2)])  # this writer tells nobody: the run looks now and then
                dispatcher.wait(lambda: connection.passed == 2)
            append(writer, [event(3)])
            dispatcher.wait(lambda: connection.passed == 3)
            with listening(wakeups, tmp_path):
                heard(wakeups)
        dispatcher.wait(lambda: connection.closed)


def test_a_run_that_sleeps_stops_at_once(spark: SparkSession, tmp_path: Path) -> None:
    wakeups = Wakeups()
    with FakeDispatcher() as dispatcher, writing(tmp_path / "log"), listening(wakeups, tmp_path):
        with running(spark, every_event, dispatcher, tmp_path, log=tmp_path / "log", start={0: 0}, wakeups=tmp_path):
            heard(wakeups)
        eventually(lambda: not wakeups._readers)
