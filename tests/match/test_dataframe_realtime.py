"""Real-time mode finds of every event what a batch finds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate.event.arrow import StoredEvent
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import Verdict
from headgate.match.dataframe import match_events
from headgate.match.table import build_table
from tests.filter.hostile_events import random_event, random_stored_us
from tests.filter.strategies import random_hard_filter
from tests.match.events import append, writing
from tests.match.fakes import FakeDispatcher, running
from tests.match.frames import BROKER, frame_of, verdicts

pytestmark = pytest.mark.spark

EVENTS, FILTERS, CHUNK = 300, 25, 30


@pytest.mark.slow  # the main job is a run in real-time mode, and exactness is compared in batches
def test_a_run_says_what_a_batch_says(spark: SparkSession, dispatcher: FakeDispatcher, tmp_path: Path) -> None:
    rng = random.Random(1)
    events = [random_event(rng) for _ in range(EVENTS)]
    times = sorted(random_stored_us(rng) for _ in range(EVENTS // CHUNK))
    texts = [f"publish_time {sign} timestamp('2020-02-29T18:29:59.123Z')" for sign in ("==", "<", ">")]
    filters = [*map(compile_cel, texts), *(compile_cel(random_hard_filter(rng)) for _ in range(FILTERS))]
    table = build_table(spark, ((number, BROKER, one) for number, one in enumerate(filters)))
    frame = frame_of(spark, events, stored_us=[times[number // CHUNK] for number in range(EVENTS)])
    expected = verdicts(frame, table)
    frame.unpersist()
    assert {*expected.values()} == {*Verdict}
    log = tmp_path / "log"
    clock = iter([*times, times[-1]])
    chunks = [[StoredEvent(BROKER, event) for event in events[at : at + CHUNK]] for at in range(0, EVENTS, CHUNK)]
    with writing(log, clock_us=lambda: next(clock)) as writer:
        for chunk in chunks[: len(chunks) // 2]:
            append(writer, chunk)
        with running(spark, lambda source: match_events(source, table), dispatcher, tmp_path, log=log, start={0: 0}):
            for chunk in chunks[len(chunks) // 2 :]:
                append(writer, chunk)
            connection = dispatcher.of(run=1)
            dispatcher.wait(lambda: connection.passed == EVENTS)
            found: dict[tuple[int, int], Verdict] = {}
            for offset, target, verdict in connection.rows:
                found[offset, target] = max(found.get((offset, target), Verdict.ERROR), Verdict(verdict))
    assert found == expected
