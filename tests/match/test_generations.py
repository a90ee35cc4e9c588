"""A table that was changed is the same as one that was built from nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession

from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.compile.plan import CompiledFilter, Op, Verdict
from headgate.match import key_specs
from headgate.match import table as match_table
from headgate.match.key_specs import LIKELY, BrokerTable, Rows
from headgate.match.keys import Secrets
from headgate.match.table import TableBuilder, build_table, wanted
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import SHARED_ATOM_FILTERS_MIN, SHARED_ATOMS_MAX
from tests.filter.hostile_events import random_event
from tests.filter.strategies import random_filter
from tests.filter.test_corpus import ROWS as CORPUS
from tests.match.frames import BROKER, frame_of, share_atoms, verdicts
from tests.support import times

SECRETS = Secrets(5, 7)


def event(data: str) -> Event:
    return Event("1.0", "1", "/a", "t", data_kind=DataKind.JSON, data=data.encode())


def some(rng: random.Random, numbers: range) -> list[tuple[int, CompiledFilter]]:
    return [(number, compile_cel(random_filter(rng))) for number in numbers]


@pytest.mark.spark
@pytest.mark.slow  # the next one changes filters as well
def test_changed_filters_match_as_new_ones_do(spark: SparkSession) -> None:
    rng = random.Random(1)
    frame = frame_of(spark, [random_event(rng) for _ in range(200)])
    builder = TableBuilder(spark)
    first = some(rng, range(20))
    more = [*first, *some(rng, range(20, 24))]
    changed = [*some(rng, range(4)), *more[6:]]
    for filters in (first, more, changed, some(rng, range(100, 110)), []):
        targets = [(number, BROKER, one) for number, one in filters]
        assert verdicts(frame, builder.build(wanted(targets))) == verdicts(frame, build_table(spark, targets))
    frame.unpersist()


def few_changes(
    rng: random.Random, filters: dict[int, CompiledFilter], pool: Sequence[CompiledFilter], fresh: int
) -> dict[int, CompiledFilter]:
    """One filter is another, one is gone, and two are new, one of which says what another one says."""
    changed, gone, twin = rng.sample(sorted(filters), 3)
    after = {number: one for number, one in filters.items() if number != gone}
    after[changed], after[fresh], after[fresh + 1] = rng.choice(pool), rng.choice(pool), filters[twin]
    return after


@pytest.mark.spark
def test_a_few_changed_filters_stand_over_the_broadcast_table_and_match_as_new_ones_do(spark: SparkSession) -> None:
    rng = random.Random(4)
    frame = frame_of(spark, [random_event(rng) for _ in range(200)])
    builder = TableBuilder(spark)
    pool = [one for _, one in some(rng, range(times(12, 25)))]
    filters = dict(enumerate(rng.choices(pool, k=60)))
    overlaid = []
    for generation in range(times(3, 6)):
        targets = [(number, BROKER, one) for number, one in filters.items()]
        table = builder.build(wanted(targets))
        overlaid.append(table.overlaid_rows)
        assert verdicts(frame, table) == verdicts(frame, build_table(spark, targets))
        filters = few_changes(rng, filters, pool, 1_000 + 2 * generation)
    assert overlaid[0] == 0
    assert sum(count > 0 for count in overlaid) >= len(overlaid) // 2 > 0, overlaid
    frame.unpersist()


@pytest.mark.spark
def test_nothing_of_a_changed_filter_is_left(spark: SparkSession) -> None:
    frame = frame_of(spark, [event('{"n":1}'), event('{"n":2}')])
    one, two, more = (compile_cel(f"data.n == {number}") for number in (1, 2, 3))
    others = [(number, "ns/other/1", compile_cel(f"data.n == {number}")) for number in range(100, 200)]
    builder = TableBuilder(spark)

    def matches(*targets: tuple[int, str, CompiledFilter]) -> set[tuple[int, int]]:
        table = builder.build(wanted([*targets, *others]))
        found = verdicts(frame, table)
        assert {*found.values()} <= {Verdict.MATCH}
        overlaid.append(table.overlaid_rows)
        return {*found}

    overlaid: list[int] = []
    assert matches((1, BROKER, one), (2, BROKER, one), (3, BROKER, two)) == {(0, 1), (0, 2), (1, 3)}
    assert matches((1, BROKER, one), (2, BROKER, two), (3, BROKER, two)) == {(0, 1), (1, 2), (1, 3)}  # changed
    assert matches((2, BROKER, two), (3, BROKER, two)) == {(1, 2), (1, 3)}  # gone, and no row of its key is left
    assert matches((2, BROKER, two), (3, BROKER, more)) == {(1, 2)}
    assert matches((1, BROKER, one), (2, BROKER, two), (3, BROKER, two)) == {(0, 1), (1, 2), (1, 3)}  # as before
    assert matches() == set()  # the broker has no filters any more
    assert matches((1, "ns/other/1", one), (2, BROKER, two)) == {(1, 2)}  # another broker's
    assert overlaid[0] == 0
    assert all(overlaid[1:]), "no generation broadcast the table anew"
    frame.unpersist()


@pytest.mark.spark
def test_the_table_is_broadcast_anew_for_another_pattern_and_for_too_many_rows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_table, "MATCH_OVERLAY_ROWS_MAX", 3)
    builder = TableBuilder(spark)
    filters = {number: compile_cel(f"data.n == {number}") for number in range(50)}

    def overlaid() -> int:
        return builder.build(wanted((number, BROKER, one) for number, one in filters.items())).overlaid_rows

    assert overlaid() == 0
    for number in (50, 51, 52):
        filters[number] = compile_cel(f"data.n == {number}")
        assert overlaid() == number - 49
    filters[53] = compile_cel("data.n == 53")
    assert overlaid() == 0
    del filters[0]
    assert overlaid() == 1  # a key without rows
    filters[54] = compile_cel("data.n == 54 && data.m > 1 && data.k < 2")
    assert overlaid() == 0
    filters[55] = compile_cel("data.n == 55 && data.k > 1 && data.m < 2")
    assert overlaid() == 1


@pytest.mark.spark
@pytest.mark.parametrize(("rows_max", "goes_on"), [(1, True), (0, False)])
def test_a_small_table_goes_on_to_what_most_filters_compare(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows_max: int, goes_on: bool
) -> None:
    monkeypatch.setattr(match_table, "MATCH_LIKELY_ROWS_MAX", rows_max)
    builder = TableBuilder(spark)
    first, more = (
        (n, BROKER, compile_cel(text)) for n, text in enumerate(("data.n == 1", "data.n == 2 && data.m > 2"))
    )
    builder.build(wanted([first]), 1)
    assert builder.offer(wanted([first, more]), 2) is goes_on


def test_most_filters_of_the_corpus_consist_of_likely_patterns() -> None:
    likely = 0
    for _, row in CORPUS:
        table = BrokerTable(BROKER, SECRETS)
        compiled = compile_filter(row.get("filter"), row.get("filters", ()))
        likely += set(LIKELY).issuperset(table.change({1: compiled}).patterns)
    assert likely >= len(CORPUS) / 2
    assert len(set(LIKELY)) == len(LIKELY)


@pytest.mark.spark
def test_rows_that_go_to_an_executor_are_the_same(spark: SparkSession) -> None:
    builder = TableBuilder(spark)
    filters = [(number, BROKER, compile_cel(f"data.n == {number}")) for number in range(50)]
    builder.build(wanted(filters))
    changed = builder.build(wanted(filters[1:]))
    assert changed.overlaid_rows == 1
    jvm = spark._jvm
    assert jvm is not None
    sent = changed.rows._jdf.queryExecution().executedPlan().executeBroadcast().value()
    tag = jvm.scala.reflect.ClassTag.Any()
    serializer = jvm.org.apache.spark.SparkEnv.get().serializer().newInstance()
    got = serializer.deserialize(serializer.serialize(sent, tag), sent.getClass().getClassLoader(), tag)
    rows = changed.rows.collect()
    assert sorted(target for row in rows for target in row.targets) == [-1, *range(1, 50)]
    for relation in (sent.asReadOnlyCopy(), got.asReadOnlyCopy()):
        for row in rows:
            found = relation.getValue(row.row_key)
            assert (found.getLong(0), found.getLong(1)) == (row.row_key, row.row_check)


@pytest.mark.spark
def test_after_a_failure_the_table_is_broadcast_anew(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = TableBuilder(spark)
    filters = [(number, f"ns/{number % 2}/1", compile_cel(f"data.n == {number}")) for number in range(50)]
    builder.build(wanted(filters))
    with monkeypatch.context() as patched:
        patched.setattr(BrokerTable, "change", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            builder.build(wanted(filters[1:]))
    assert builder.build(wanted(filters[1:])).overlaid_rows == 0
    assert builder.build(wanted(filters[2:])).overlaid_rows == 1


@pytest.mark.spark
def test_over_a_table_with_too_many_patterns_others_are_candidates(spark: SparkSession) -> None:
    frame = frame_of(spark, [event('{"n":1,"s":"x","f":true,"m":4}')])
    texts = ["data.m > 3", "data.s != 'y'", "data.m < 3", "data.m != 3"]
    filters = [(number, BROKER, compile_cel(f"data.n == {number} && {texts[number % 4]}")) for number in range(40)]
    builder = TableBuilder(spark, patterns_max=2)
    builder.build(wanted(filters))
    new = (50, BROKER, compile_cel("data.n == 1 && data.m >= 2 && data.m <= 5"))
    after = builder.build(wanted([*filters, new]))
    assert after.overlaid_rows > 0
    assert verdicts(frame, after)[0, 50] is Verdict.CANDIDATE
    frame.unpersist()


def test_a_table_tells_all_keys_that_changed_and_has_their_rows() -> None:
    rng = random.Random(4)
    table = BrokerTable(BROKER, SECRETS)
    pool = [one for _, one in some(rng, range(200))]
    filters = dict(enumerate(rng.choices(pool, k=60)))
    known: dict[int, CompiledFilter] = {}
    before: dict[object, dict[object, list[int]]] = {}
    sizes = []
    for generation in range(20):
        left = [number for number, one in known.items() if filters.get(number) is not one]
        joined = {number: one for number, one in filters.items() if known.get(number) is not one}
        change = table.change(joined, left)
        after = by_key(table.rows)
        found = {target for entries in after.values() for targets in entries.values() for target in targets}
        assert found == {number for number, one in filters.items() if one.rows}
        assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} <= change.keys
        assert by_key(table.rows_of(change.keys)) == {key: rows for key, rows in after.items() if key in change.keys}
        sizes.append(len(change.keys))
        known, before = dict(filters), after
        filters = few_changes(rng, filters, pool, 1_000 + 2 * generation)
    assert min(sizes) < len(before) / 2


def shared(table: BrokerTable) -> list[object]:
    """Operator and constants of each shared atom."""
    return [(op, constants) for _, op, _, _, constants in json.loads(table.key_spec)["shared"]]


def test_what_many_filters_compare_is_compared_once() -> None:
    rare = {number: compile_cel(f"ce.type == 't{number}' && data.n > {number}") for number in range(900)}
    below = {
        number: compile_filter({"cel": f"ce.type == 't{number}' && data.n > {number}"}, (), "data.region != 'mars'")
        for number in range(1_000, 1_000 + SHARED_ATOM_FILTERS_MIN)
    }
    table = BrokerTable(BROKER, SECRETS)
    table.change(rare | dict(list(below.items())[1:]))
    assert shared(table) == [], "a comparison is shared that too few filters have"
    table.change(dict(list(below.items())[:1]))
    assert shared(table) == [("eq", ["mars"])]
    more = compile_filter({"cel": "ce.type == 'more' && data.n > 5"}, (), "data.region != 'mars'")
    change = table.change({5_000: more})
    assert [[test.op for test in pattern] for pattern in change.patterns] == [[Op.GT]], "a wrong residual is left out"
    table.change(rare, [*rare, *below])
    assert shared(table) == [], "what nobody compares any more is forgotten"


def test_what_many_filters_compare_is_found_among_any_number_of_other_comparisons() -> None:
    often = compile_cel("data.region != 'mars'")
    table = BrokerTable(BROKER, SECRETS)
    for start in range(0, 40_000, 4_000):
        some = {n: often if n % 15 == 0 else compile_cel(f"data.n > {n}") for n in range(start, start + 4_000)}
        table.change(some)
    assert shared(table) == [("eq", ["mars"])]


def test_no_more_is_shared_than_has_a_bit() -> None:
    texts = [f"data.n > {number}" for number in range(2 * SHARED_ATOMS_MAX)]
    with share_atoms():
        table = BrokerTable(BROKER, SECRETS)
        table.change({number: compile_cel(text) for number, text in enumerate(texts)})
    assert len(shared(table)) == SHARED_ATOMS_MAX
    assert {len(pattern) for pattern in table.rows} == {0, 1}


@pytest.mark.spark
def test_filters_that_begin_to_share_match_as_before(spark: SparkSession) -> None:
    rng = random.Random(8)
    frame = frame_of(spark, [random_event(rng) for _ in range(200)])
    filters = dict(some(rng, range(times(12, 25))))
    builder = TableBuilder(spark)
    found = []
    for context in (nullcontext(), share_atoms(), share_atoms()):
        targets = [(number, BROKER, one) for number, one in filters.items()]
        with context:
            table = builder.build(wanted(targets))
        assert verdicts(frame, table) == verdicts(frame, build_table(spark, targets))
        found.append({row.shared != 0 for row in table.rows.collect()})
        filters |= {number + 1_000 * len(found): one for number, one in filters.items() if number < 5}
    assert found == [{False}, {False, True}, {False, True}]
    frame.unpersist()


def by_key(rows: Rows) -> dict[object, dict[object, list[int]]]:
    found: dict[object, dict[object, list[int]]] = {}
    for pattern, of_pattern in rows.items():
        for row, targets in of_pattern.items():
            found.setdefault(row[0], {})[pattern, row] = sorted(targets)
    return found


def test_one_filter_more_makes_the_rows_of_one_filter() -> None:
    table = BrokerTable(BROKER, SECRETS)
    table.change({number: compile_cel(f"ce.type == 't{number}' && data.n > {number}") for number in range(50)})
    (pattern, before), key_spec = *table.rows.items(), table.key_spec
    table.change({50: compile_cel("ce.type == 't50' && data.m > 50")})
    made = {id(row) for row in before}
    assert sum(id(row) not in made for row in table.rows[pattern]) == 1
    assert key_spec != table.key_spec


def test_what_nobody_asks_any_more_is_forgotten() -> None:
    table, other = BrokerTable(BROKER, SECRETS), BrokerTable(BROKER, SECRETS)
    table.change({number: compile_cel(f"data.p{number} == 1") for number in range(20)})
    left = {number: compile_cel(f"data.q{number} == 1") for number in range(10)}
    table.change(left, range(20))
    other.change(left)
    assert (table.key_spec, table.columns, table.rows) == (other.key_spec, other.columns, other.rows)


@pytest.mark.spark
def test_a_broker_with_too_many_kinds_of_keys_loses_no_match(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(2)
    frame = frame_of(spark, [random_event(rng) for _ in range(200)])
    filters = [(number, BROKER, one) for number, one in some(rng, range(times(15, 25)))]
    exact = verdicts(frame, build_table(spark, filters))
    monkeypatch.setattr(key_specs, "BROKER_KEYS_MAX", 4)
    builder = TableBuilder(spark)
    for _ in range(2):
        coarse = verdicts(frame, builder.build(wanted(filters)))
        assert Verdict.CANDIDATE in coarse.values()
        for pair, verdict in exact.items():
            if verdict is not Verdict.ERROR:
                assert coarse[pair] in {verdict, Verdict.CANDIDATE}
    frame.unpersist()
