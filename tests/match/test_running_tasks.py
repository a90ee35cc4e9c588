"""What counts as a running task of a query: not those that gather a table for a broadcast."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.match.query import tasks_of
from tests.support import eventually

pytestmark = pytest.mark.spark
WAIT_S_MAX = 120.0
ENDLESS = 1 << 50
"""Rows: the tests cancel what counts them."""


class Counting:
    """Rows that are counted in a job group of their own, in a thread, until the block ends."""

    def __init__(self, spark: SparkSession, group: str, rows: DataFrame) -> None:
        self._context = spark.sparkContext
        self._group = group
        self._rows = rows
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._context.setJobGroup(self._group, "test", interruptOnCancel=True)
        try:
            self._rows.collect()
        except Exception:  # noqa: BLE001 - it is cancelled
            return

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.cancelJobGroup(self._group)
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive()

    def in_spark(self) -> int:
        """Active tasks of every job of the group, as Spark counts them."""
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)


def slow(spark: SparkSession) -> DataFrame:
    return spark.range(0, ENDLESS, 1, 2).where(F.hash("id") == F.lit(7)).where(F.hash("id") == F.lit(8))


def test_tasks_of_a_query_count(spark: SparkSession) -> None:
    with Counting(spark, "of a query", slow(spark)):
        eventually(lambda: tasks_of(spark.sparkContext, "of a query") == 2)


def test_tasks_that_gather_a_table_do_not_count(spark: SparkSession) -> None:
    rows = spark.range(10).join(F.broadcast(slow(spark)), "id")
    with Counting(spark, "with a table", rows) as counting:
        eventually(lambda: counting.in_spark() == 2)
        assert tasks_of(spark.sparkContext, "with a table") == 0
