"""A table that was changed is the same as one that was built from nothing."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.match import key_specs
from headgate.match.key_specs import BrokerTableBuilder
from headgate.match.keys import Secrets
from headgate.match.table import TableBuilder, build_table
from tests.filter.hostile_events import random_event
from tests.filter.strategies import random_filter
from tests.match.frames import BROKER, frame_of, verdicts

SECRETS = Secrets(5, 7)


def some(rng: random.Random, numbers: range) -> list[tuple[int, CompiledFilter]]:
    return [(number, compile_cel(random_filter(rng))) for number in numbers]


@pytest.mark.spark
def test_changed_filters_match_as_new_ones_do(spark: SparkSession) -> None:
    rng = random.Random(1)
    frame = frame_of(spark, [random_event(rng) for _ in range(200)])
    builder = TableBuilder(spark)
    first = some(rng, range(20))
    more = [*first, *some(rng, range(20, 24))]
    changed = [*some(rng, range(4)), *more[6:]]
    for filters in (first, more, changed, some(rng, range(100, 110)), []):
        targets = [(number, BROKER, one) for number, one in filters]
        assert verdicts(frame, builder.build(targets)) == verdicts(frame, build_table(spark, targets))
    frame.unpersist()


def test_one_filter_more_makes_the_rows_of_one_filter() -> None:
    builder = BrokerTableBuilder(BROKER, SECRETS)
    filters = [(number, compile_cel(f"ce.type == 't{number}' && data.n > {number}")) for number in range(50)]
    before = builder.build(filters)
    after = builder.build([*filters, (50, compile_cel("ce.type == 't50' && data.m > 50"))])
    (pattern,) = before.rows
    made = {id(row) for row in before.rows[pattern]}
    assert sum(id(row) not in made for row in after.rows[pattern]) == 1
    assert before.key_spec != after.key_spec


def test_what_nobody_asks_any_more_is_forgotten() -> None:
    builder = BrokerTableBuilder(BROKER, SECRETS)
    builder.build([(number, compile_cel(f"data.p{number} == 1")) for number in range(20)])
    left = [(number, compile_cel(f"data.q{number} == 1")) for number in range(10)]
    assert builder.build(left) == BrokerTableBuilder(BROKER, SECRETS).build(left)


@pytest.mark.spark
def test_a_broker_with_too_many_kinds_of_keys_loses_no_match(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(2)
    frame = frame_of(spark, [random_event(rng) for _ in range(200)])
    filters = [(number, BROKER, one) for number, one in some(rng, range(40))]
    exact = verdicts(frame, build_table(spark, filters))
    monkeypatch.setattr(key_specs, "BROKER_KEYS_MAX", 4)
    builder = TableBuilder(spark)
    for _ in range(2):
        coarse = verdicts(frame, builder.build(filters))
        assert Verdict.CANDIDATE in coarse.values()
        for pair, verdict in exact.items():
            if verdict is not Verdict.ERROR:
                assert coarse[pair] in {verdict, Verdict.CANDIDATE}
    frame.unpersist()
