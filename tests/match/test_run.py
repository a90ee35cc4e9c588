from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.match.query import start_run
from tests.match.events import append, event, writing
from tests.match.fakes import FakeDispatcher

pytestmark = pytest.mark.spark


def every_event(events: DataFrame) -> DataFrame:
    """Target 7 wants everything."""
    return events.select("partition", "offset", F.lit(7).alias("target"), F.lit(3).cast("tinyint").alias("verdict"))


def test_an_event_goes_from_the_log_to_the_link(spark: SparkSession, tmp_path: Path) -> None:
    with FakeDispatcher() as dispatcher, writing(tmp_path / "log") as writer:
        run = start_run(
            spark,
            every_event,
            log=tmp_path / "log",
            start={0: 0},
            run=1,
            generation=12,
            link=dispatcher.address,
            scratch=tmp_path,
        )
        try:
            connection = dispatcher.of(run=1)
            append(writer, [event(1)])
            dispatcher.wait(lambda: connection.passed == 1)
        finally:
            run.stop()

        assert (connection.generation, connection.partitions, connection.start) == (12, 1, 0)
        assert connection.rows == [(0, 7, 3)]
        dispatcher.wait(lambda: connection.closed)
