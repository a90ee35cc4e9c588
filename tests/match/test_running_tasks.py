"""Whether the running tasks of a query are counted."""

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


def slow(spark: SparkSession) -> DataFrame:
    return spark.range(0, ENDLESS, 1, 2).where(F.hash("id") == F.lit(7)).where(F.hash("id") == F.lit(8))


def test_tasks_of_a_query_count(spark: SparkSession) -> None:
    with Counting(spark, "of a query", slow(spark)):
        eventually(lambda: tasks_of(spark.sparkContext, "of a query") == 2)
