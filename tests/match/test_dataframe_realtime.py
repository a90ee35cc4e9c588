"""Does real-time mode say of every event what a batch says?"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate.event.arrow import StoredEvent
from headgate.filter.compiler import compile_cel
from headgate.filter.plan import Verdict
from headgate.match.dataframe import build_table, match_events
from tests.filter.hostile_events import random_event
from tests.filter.strategies import random_hard_filter
from tests.match.events import append, writing
from tests.match.fakes import FakeDispatcher, running
from tests.match.frames import BROKER, frame_of, verdicts

pytestmark = pytest.mark.spark

EVENTS, FILTERS = 300, 25


def test_a_run_says_what_a_batch_says(spark: SparkSession, dispatcher: FakeDispatcher, tmp_path: Path) -> None:
    rng = random.Random(1)
    events = [random_event(rng) for _ in range(EVENTS)]
    filters = [compile_cel(random_hard_filter(rng)) for _ in range(FILTERS)]
    table = build_table(spark, ((number, BROKER, one) for number, one in enumerate(filters)))
    frame = frame_of(spark, events)
    expected = verdicts(frame, table)
    frame.unpersist()
    assert {*expected.values()} == {*Verdict}
    log = tmp_path / "log"
    with writing(log) as writer:
        append(writer, [StoredEvent(BROKER, event) for event in events[: EVENTS // 2]])
        with running(spark, lambda source: match_events(source, table), dispatcher, tmp_path, log=log, start={0: 0}):
            append(writer, [StoredEvent(BROKER, event) for event in events[EVENTS // 2 :]])
            connection = dispatcher.of(run=1)
            dispatcher.wait(lambda: connection.passed == EVENTS)
            found: dict[tuple[int, int], Verdict] = {}
            for offset, target, verdict in connection.rows:
                found[offset, target] = max(found.get((offset, target), Verdict.ERROR), Verdict(verdict))
    assert found == expected
