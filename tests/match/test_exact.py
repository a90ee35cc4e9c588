"""Every pair of generated events and filters: Spark decides as cel-cpp does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Final

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from headgate.filter.cel.evaluate import EventView, OutcomeKind, Program, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.match.key_specs import BrokerTable
from headgate.match.keys import Secrets
from headgate.match.table import build_table
from headgate_api.event.model import Event
from headgate_api.limits import PATTERNS_COMPILED_MAX
from tests.filter.hostile_events import random_event, random_stored_us
from tests.filter.strategies import random_filter, random_hard_filter, random_shaped_filter
from tests.match.frames import BROKER, frame_of, share_atoms, verdicts
from tests.support import times

pytestmark = pytest.mark.spark

ALLOWED = {
    OutcomeKind.TRUE: {Verdict.MATCH, Verdict.CANDIDATE},
    OutcomeKind.FALSE: {None, Verdict.CANDIDATE},
    OutcomeKind.ERROR: {None, Verdict.CANDIDATE, Verdict.ERROR},
}
"""What the matcher may say, by what CEL says. Silence about an error is fine: it is closed all the same."""

Write = Callable[[random.Random], str]
Tally = Counter[tuple[OutcomeKind, Verdict | None]]


def _batches(filters: Sequence[str], patterns_max: int) -> Iterator[list[CompiledFilter]]:
    """Filters in groups whose patterns all fit into one plan."""
    batch: list[CompiledFilter] = []
    patterns: set[object] = set()
    for text in filters:
        compiled = compile_cel(text)
        table = BrokerTable("", Secrets(1, 1))
        more = set(table.change({0: compiled}).patterns)
        if batch and len(patterns | more) > patterns_max:
            yield batch
            batch, patterns = [], set()
        batch.append(compiled)
        patterns |= more
    yield batch


def _compare(
    spark: SparkSession, views: Sequence[EventView], frame: DataFrame, filters: Sequence[CompiledFilter]
) -> Tally:
    said = verdicts(frame, build_table(spark, ((number, BROKER, one) for number, one in enumerate(filters))))
    programs = [program(one.cel) for one in filters]
    tally: Tally = Counter()
    for offset, view in enumerate(views):
        for target, one in enumerate(programs):
            outcome, verdict = one.evaluate_view(view).kind, said.get((offset, target))
            tally[outcome, verdict] += 1
            # Where cel-cpp is spared an evaluation that would take too long, Spark may know the value all the same.
            if verdict not in ALLOWED[outcome] and not one.refusal(view):
                pytest.fail(_report(view.event, one, outcome, verdict, filters[target]))
    return tally


def _report(event: Event, one: Program, outcome: OutcomeKind, verdict: Verdict | None, plan: CompiledFilter) -> str:
    rows = "\n  ".join(map(repr, plan.rows))
    said = "nothing" if verdict is None else verdict.name
    seen = f"{msgspec.json.encode(event).decode()}\n{event.data!r}"
    return f"CEL says {outcome.name}, Spark {said}\n{one.cel}\n{seen}\n  {rows}"


def _run(spark: SparkSession, seed: int, write: Write, *, events: int, filters: int, patterns_max: int) -> Tally:
    rng = random.Random(seed)
    texts = [write(rng) for _ in range(filters)]
    stored_us = [random_stored_us(rng) for _ in range(events)]
    many = [EventView(random_event(rng), stored) for stored in stored_us]
    frame = frame_of(spark, [view.event for view in many], stored_us=stored_us)
    tally: Tally = Counter()
    for batch in _batches(texts, patterns_max):
        tally += _compare(spark, many, frame, batch)
    frame.unpersist()
    return tally


def test_what_spark_decides_is_what_cel_says(spark: SparkSession) -> None:
    events, filters = times(700, 1_600), times(36, 200)  # each dozen of filters is a plan, which takes Spark seconds
    tally = _run(spark, 1, random_filter, events=events, filters=filters, patterns_max=PATTERNS_COMPILED_MAX)
    assert tally.total() >= events * filters
    outcomes = Counter[OutcomeKind]()
    for (outcome, _), count in tally.items():
        outcomes[outcome] += count
    # The universe is not degenerate: enough of everything, and Spark decides nearly all that is true.
    assert outcomes[OutcomeKind.TRUE] > 0.1 * tally.total()
    assert outcomes[OutcomeKind.FALSE] > 0.1 * tally.total()
    assert outcomes[OutcomeKind.ERROR] > 0.1 * tally.total()
    assert tally[OutcomeKind.TRUE, Verdict.MATCH] > 0.8 * outcomes[OutcomeKind.TRUE]
    assert tally[OutcomeKind.ERROR, Verdict.ERROR] > 0.05 * outcomes[OutcomeKind.ERROR]


ROUNDS: Final = times(1, 1, 15)
"""How often forms are compared, up to 64,000 pairs each time with other filters."""


@pytest.mark.parametrize("seed", range(5, 5 + ROUNDS))
def test_every_form_of_a_value_is_what_cel_makes_of_it(spark: SparkSession, seed: int) -> None:
    events, filters = times(500, 800), times(20, 80)
    tally = _run(spark, seed, random_shaped_filter, events=events, filters=filters, patterns_max=PATTERNS_COMPILED_MAX)
    assert tally[OutcomeKind.TRUE, Verdict.MATCH] > 4 * tally[OutcomeKind.TRUE, Verdict.CANDIDATE]
    assert tally[OutcomeKind.TRUE, Verdict.MATCH] > 5_000 * events * filters // 64_000


def test_what_spark_cannot_decide_is_left_to_cel(spark: SparkSession) -> None:
    filters = times(24, 150)
    tally = _run(spark, 2, random_hard_filter, events=400, filters=filters, patterns_max=PATTERNS_COMPILED_MAX)
    assert tally[OutcomeKind.TRUE, Verdict.CANDIDATE] > 1_000 * filters // 150
    assert tally[OutcomeKind.TRUE, Verdict.MATCH] > 1_000 * filters // 150


@pytest.mark.parametrize("write", [random_filter, random_shaped_filter])
def test_what_is_compared_once_for_many_filters_is_what_cel_says(spark: SparkSession, write: Write) -> None:
    tallies = []
    for context in (nullcontext(), share_atoms()):
        with context:
            tally = _run(spark, 6, write, events=500, filters=times(20, 80), patterns_max=PATTERNS_COMPILED_MAX)
        tallies.append(tally)
    assert tallies[0] == tallies[1], "nothing more is left to cel-cpp"


def test_more_patterns_than_fit_lose_no_match(spark: SparkSession) -> None:
    tally = _run(spark, 3, random_filter, events=500, filters=250, patterns_max=1_000_000)
    assert tally[OutcomeKind.TRUE, Verdict.CANDIDATE] > 500
    assert tally[OutcomeKind.TRUE, Verdict.MATCH] > 1_000


def test_nearly_every_simple_filter_is_decided_without_cel() -> None:
    rng = random.Random(4)
    compiled = [compile_cel(random_filter(rng)) for _ in range(times(500, 2_000))]
    exact = sum(all(row.signature.exact for row in one.rows) for one in compiled)
    assert exact >= 0.9 * len(compiled)
