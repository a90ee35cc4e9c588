"""Runs on Kafka put every match into the outbox, and progress never says more than is there."""

from __future__ import annotations

import random
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from clusters.kafka import Kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.match_run import (
    KafkaRun,
    KafkaRuns,
    OutboxPlaces,
    OutboxQueries,
    check_slots,
    start_kafka_run,
)
from headgate.backend.kafka.records import encode_record
from headgate.backend.kafka.runs import OutboxDriver, RunRegistry
from headgate.backend.kafka.topics import Admin
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.match.errors import RunFailedError
from headgate.match.table import MatchTable, build_table
from headgate.objects.kinds.routing import RoutingTable
from headgate.outbox.shards import dispatcher_of
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.event.model import Event
from tests.backend.stores import kafka_config
from tests.filter.hostile_events import random_event
from tests.filter.strategies import random_atom, random_filter
from tests.support import eventually, times

BROKER = "default/main/1"
SOURCES, OUTBOX = 2, 3
EVENTS, FILTERS, HARD = times(240, 1_200), times(200, 1_000), times(40, 200)
PATIENCE_S = 90.0
ALLOWED = {
    OutcomeKind.TRUE: {Verdict.MATCH, Verdict.CANDIDATE},
    OutcomeKind.FALSE: {None, Verdict.CANDIDATE},
    OutcomeKind.ERROR: {None, Verdict.CANDIDATE, Verdict.ERROR},
}
Headers = list[tuple[str, bytes]]


# --- the topic events ------------------------------------------------------------------------------


@dataclass
class Stored:
    """What is in the topic events: by source partition and offset, with the time at which Kafka stored it."""

    config: KafkaConfig
    events: dict[tuple[int, int], tuple[Event, int]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(SOURCES), 0))

    def add(self, events: Sequence[Event], *, transaction: str = "", aborted: bool = False) -> None:
        """Stores events, spread over the partitions; of an aborted transaction none counts."""
        options = {"transactional.id": f"{self.config.topic('t')}{transaction}"} if transaction else {}
        producer = Producer({"bootstrap.servers": self.config.bootstrap, **options})
        if transaction:
            producer.init_transactions()
            producer.begin_transaction()
        for number, event in enumerate(events):
            record = encode_record(BROKER, event)
            delivered = None if aborted else self._kept(event)
            self._produce(producer, number % SOURCES, record.key, record.value, record.headers, delivered)
        assert producer.flush(PATIENCE_S) == 0
        if transaction:
            (producer.abort_transaction if aborted else producer.commit_transaction)()

    def _kept(self, event: Event) -> Callable[..., None]:
        def kept(error: object, message) -> None:
            assert error is None
            self.events[message.partition(), message.offset()] = event, message.timestamp()[1] * 1_000
            self.ends[message.partition()] = max(self.ends[message.partition()], message.offset() + 1)

        return kept

    def add_foreign(self) -> None:
        """Records that no ingress of ours wrote. Nothing is asked of them but that they stop nothing."""
        ours = dict(encode_record(BROKER, random_event(random.Random(1))).headers)
        producer = Producer({"bootstrap.servers": self.config.bootstrap})
        foreign: list[tuple[bytes | None, Headers]] = [
            (b"no header", []),
            (None, [("ce_id", b"\xff\xfe")]),
            (b"{no JSON", [*(ours | {"headgate_data_kind": b"1"}).items()]),
            (b"{}", [*(ours | {"headgate_data_kind": b"many"}).items()]),
            (b"{}", [*(ours | {"headgate_broker": b""}).items()]),
            (b"{}", [*(ours | {"headgate_time_us": b"noon", "headgate_extensions": b"{"}).items()]),
            (b"{}", [*ours.items(), *ours.items()]),
        ]
        for value, headers in foreign:
            for partition in range(SOURCES):
                self._produce(producer, partition, None, value, headers, None)
        assert producer.flush(PATIENCE_S) == 0

    def _produce(self, producer: Producer, partition: int, key, value, headers, delivered) -> None:
        topic = self.config.topic("events")
        producer.produce(topic, value, key, partition, headers=headers, on_delivery=delivered)


# --- the topic outbox, read as its specification says ----------------------------------------------

HEAD = struct.Struct("<BBqqiq")
KINDS = {1: "event", 2: "passed", 3: "hello", 4: "over"}


@dataclass
class Told:
    """What one outbox partition has of one run."""

    kinds: list[str] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)
    first_passed_above: dict[int, int] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    verdicts: dict[tuple[int, int, int], Verdict] = field(default_factory=dict)
    records: int = 0
    open: dict[int, int] = field(default_factory=dict)  # events whose next record is awaited, by source
    split: int = 0


class Outbox:
    """A plain consumer of the whole outbox that checks what a reader may rely on."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self.told: defaultdict[tuple[int, int], Told] = defaultdict(Told)  # by run, outbox partition
        self._consumer = Consumer({"bootstrap.servers": stored.config.bootstrap, "group.id": "no commits"})
        topic = stored.config.topic("outbox")
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(OUTBOX)])

    def wait(self, until: Callable[[], bool], alive: Callable[[], object] = lambda: None) -> None:
        """Reads until something is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < deadline, {key: (one.passed, one.records) for key, one in self.told.items()}
            alive()
            for message in self._consumer.consume(500, timeout=0.2):
                assert message.error() is None
                self._take(message)

    def passed(self, run: int, source: int) -> int:
        """What every outbox partition says."""
        return min(self.told[run, number].passed.get(source, -1) for number in range(OUTBOX))

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message) -> None:
        (name, header), *headers = message.headers()
        assert name == "headgate_outbox"
        number, flag, run, generation, source, offset = HEAD.unpack_from(header)
        kind, rest = KINDS[number], header[HEAD.size :]
        assert generation == run + 100
        told = self.told[run, message.partition()]
        told.kinds.append(kind)
        if kind == "hello":
            assert source not in told.starts
            assert struct.unpack("<ii", rest) == (SOURCES, OUTBOX)
            told.starts[source] = told.passed[source] = offset
        elif kind == "passed":
            assert source in told.starts
            assert rest == b""
            told.passed[source] = max(told.passed[source], offset)
            if offset > told.starts[source]:
                told.first_passed_above.setdefault(source, offset)
        elif kind == "event":
            assert offset >= told.passed[source], "progress was told before a row"
            awaited = told.open.pop(source, None)
            assert offset == awaited if awaited is not None else offset > told.newest.get(source, -1)
            told.newest[source] = offset
            told.records += 1
            told.split += flag
            if flag:
                told.open[source] = offset
            self._take_event(message, told, source, offset, rest, headers)
        else:
            assert (source, offset, rest) == (-1, 0, b"")
        if kind != "event":
            assert flag == 0
            assert (message.key(), message.value(), headers) == (None, None, [])

    def _take_event(self, message, told: Told, source: int, offset: int, rest: bytes, headers: Headers) -> None:
        targets = [*struct.iter_unpack("<iB", rest[8:])]
        assert [target for target, _ in targets] == sorted({target for target, _ in targets})
        for target, verdict in targets:
            assert dispatcher_of(target, OUTBOX) == message.partition()
            assert (source, offset, target) not in told.verdicts
            told.verdicts[source, offset, target] = Verdict(verdict)
        if (known := self._stored.events.get((source, offset))) is not None:
            event, stored_us = known
            assert struct.unpack_from("<q", rest) == (stored_us,)
            record = encode_record(BROKER, event)
            assert (message.key(), message.value(), headers) == (record.key, record.value, record.headers)


# --- the tests -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Topics with events, and filters."""

    stored: Stored
    filters: Sequence[CompiledFilter]
    rng: random.Random

    def events(self, count: int) -> list[Event]:
        return [random_event(self.rng) for _ in range(count)]

    def check(self, verdicts: Mapping[tuple[int, int, int], Verdict], offsets: Iterable[tuple[int, int]]) -> int:
        """Compares with cel-cpp; how many pairs are true."""
        programs = [program(one.cel) for one in self.filters]
        true = 0
        for source, offset in offsets:
            view = EventView(*self.stored.events[source, offset])
            for target, one in enumerate(programs):
                outcome, verdict = one.evaluate_view(view).kind, verdicts.get((source, offset, target))
                true += outcome is OutcomeKind.TRUE
                if verdict not in ALLOWED[outcome]:
                    assert one.refusal(view), (source, offset, target, outcome, verdict, one.cel)
        return true


@pytest.fixture(scope="module")
def world(kafka: Kafka) -> World:
    config = kafka_config(kafka.bootstrap, f"match{time.monotonic_ns()}.", events=SOURCES, outbox=OUTBOX)
    Admin(config).create_missing()
    rng = random.Random(7)
    texts = [*(random_filter(rng) for _ in range(HARD)), *(random_atom(rng) for _ in range(FILTERS - HARD))]
    return World(Stored(config), [compile_cel(text) for text in texts], rng)


@pytest.fixture
def outbox(world: World) -> Iterator[Outbox]:
    outbox = Outbox(world.stored)
    yield outbox
    outbox.close()


@pytest.fixture(scope="module")
def table(spark: SparkSession, world: World) -> MatchTable:
    return build_table(spark, ((number, BROKER, one) for number, one in enumerate(world.filters)))


def started(
    spark: SparkSession, world: World, table: MatchTable, scratch: Path, run: int, start: Mapping[int, int]
) -> KafkaRun:
    config = world.stored.config
    queries = OutboxQueries(spark, config, scratch)
    return start_kafka_run(queries, table, start, OutboxDriver(config), run=run, generation=run + 100)


def every(outbox: Outbox, run: int, below: Mapping[int, int] | None = None) -> dict[tuple[int, int, int], Verdict]:
    """The rows of a run in all outbox partitions; those of events below an offset only."""
    return {
        row: verdict
        for number in range(OUTBOX)
        for row, verdict in outbox.told[run, number].verdicts.items()
        if below is None or row[1] < below[row[0]]
    }


@pytest.mark.spark
@pytest.mark.kafka
def test_the_outbox_has_every_match_and_nothing_else(
    spark: SparkSession, world: World, table: MatchTable, outbox: Outbox, tmp_path: Path
) -> None:
    stored = world.stored
    stored.add(world.events(EVENTS // 2))
    stored.add_foreign()
    run = started(spark, world, table, tmp_path, 1, {0: 0, 1: 0})
    try:
        # What a run reads that stands beside writers: transactions, given-up ones too, and single events.
        stored.add(world.events(EVENTS // 4), transaction="a")
        stored.add(world.events(50), transaction="b", aborted=True)
        stored.add(world.events(EVENTS // 4))
        outbox.wait(lambda: all(outbox.passed(1, source) == stored.ends[source] for source in range(SOURCES)))
        assert run.alive
    finally:
        run.stop()
    outbox.wait(lambda: all(outbox.told[1, number].kinds[-1:] == ["over"] for number in range(OUTBOX)))
    for number in range(OUTBOX):
        kinds = outbox.told[1, number].kinds
        assert kinds[:SOURCES] == ["hello"] * SOURCES
        assert kinds.count("hello"), kinds.count("over") == (SOURCES, 1)
    verdicts = every(outbox, 1)
    true = world.check(verdicts, stored.events)
    assert len(stored.events) == EVENTS
    assert true > EVENTS * FILTERS // 20  # the universe is not degenerate
    assert len(verdicts) > true / 2


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_a_run_from_the_progress_of_one_that_was_stopped_completes_it(
    spark: SparkSession,
    world: World,
    table: MatchTable,
    outbox: Outbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Progress of one outbox partition vouches for all of them: what the first run has above it is left out here."""
    monkeypatch.setattr(
        "headgate.backend.kafka.match_run.OUTBOX_RECORD_TARGETS_MAX", 20
    )  # an event has several records
    stored = world.stored
    start = dict(stored.ends)
    before = set(stored.events)
    stored.add(world.events(EVENTS // 4))
    first = started(spark, world, table, tmp_path, 2, start)
    try:
        outbox.wait(lambda: len(outbox.told[2, 1].first_passed_above) == SOURCES)
    finally:
        first.stop()
    middle = dict(outbox.told[2, 1].first_passed_above)
    stored.add(world.events(EVENTS // 10))
    second = started(spark, world, table, tmp_path, 3, middle)
    try:
        outbox.wait(lambda: all(outbox.passed(3, source) == stored.ends[source] for source in range(SOURCES)))
    finally:
        second.stop()
    outbox.wait(lambda: all(outbox.told[2, number].kinds[-1:] == ["over"] for number in range(OUTBOX)))
    union = every(outbox, 2, below=middle) | every(outbox, 3)
    assert world.check(union, stored.events.keys() - before) > 0
    assert {source for source, _, _ in every(outbox, 2, below=middle)} == set(range(SOURCES))
    assert sum(outbox.told[3, number].split for number in range(OUTBOX)) > 0


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow
def test_a_record_that_cannot_be_stored_ends_the_run(
    spark: SparkSession,
    world: World,
    table: MatchTable,
    outbox: Outbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing stands behind it, and no progress is told."""
    monkeypatch.setattr("headgate.backend.kafka.match_run.KAFKA_RECORD_BYTES_MAX", 500)
    stored = world.stored
    start = dict(stored.ends)
    run = started(spark, world, table, tmp_path, 4, start)
    stored.add(world.events(100))
    eventually(lambda: not run.alive)
    assert "larger than 500" in run.failure()
    run.stop()
    outbox.wait(lambda: all(outbox.told[4, number].kinds[-1:] == ["over"] for number in range(OUTBOX)))
    rows = every(outbox, 4)
    for source in range(SOURCES):
        offsets = [offset for (one, offset) in stored.events if one == source and offset >= start[source]]
        whole = [offset for offset in offsets if offset < outbox.passed(4, source)]
        world.check(rows, [(source, offset) for offset in whole])
        assert len(whole) < len(offsets)


def test_too_few_task_slots_are_an_error() -> None:
    check_slots(4, 2)
    with pytest.raises(InvalidInputError, match=r"Spark has 3 task slots, and .* need 4"):
        check_slots(3, 2)


def test_no_run_starts_with_filters_that_are_older_than_those_in_force() -> None:
    """As where the server of a new leader has not heard of the newest change yet."""

    class Registry:
        generation = 7

    registry = cast("RunRegistry", Registry())
    runs = KafkaRuns(cast("OutboxQueries", None), registry, cast("OutboxDriver", None), cast("OutboxPlaces", None))
    with pytest.raises(RunFailedError, match="generation 7 is in force, and this server's objects are of generation 6"):
        runs.start(RoutingTable.of(6, 1, {}, ()), 1, {0: 0}, KafkaRuns.address)


def test_an_end_that_is_not_told_does_not_hide_why_a_run_did_not_start() -> None:
    class Silent:
        partitions = 1

        def hello(self, *_: object) -> None: ...

        def over(self, *_: object) -> None:
            raise UnavailableError("Kafka is away")

    class Failing:
        def start(self, *_: object, **__: object) -> None:
            raise RunFailedError("Spark refuses")

    queries, filters, driver = (
        cast("OutboxQueries", Failing()),
        cast("MatchTable", None),
        cast("OutboxDriver", Silent()),
    )
    with pytest.raises(RunFailedError, match="Spark refuses"):
        start_kafka_run(queries, filters, {0: 0}, driver, run=1, generation=1)
