"""What a matcher on Kafka needs around it, without a server: filters by generation, events, a dispatcher's reader."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Producer

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.outbox_reader import OutboxMember
from headgate.backend.kafka.outbox_records import Checkpoint, OutboxEvent, OutboxPage, OutboxState
from headgate.backend.kafka.records import RecordError, decode_stored, encode_record
from headgate.backend.kafka.runs import RunReports
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.objects.kinds.routing import DeliveryRules, RoutingTable, Target
from headgate.outbox.shards import dispatcher_of
from headgate_api.event.model import Event
from tests.backend.outbox_stream import commit
from tests.backend.stores import kafka_config
from tests.filter.hostile_events import random_event
from tests.filter.strategies import random_atom, random_filter

BROKER = "default/main/1"
SOURCES, OUTBOX = 2, 3
POOL, FILTERS, ALWAYS = 200, 30, 12
COMMIT_S = 0.5
WAIT_S_MAX = 120.0
RULES = DeliveryRules(retry=None, backoff_policy="exponential", backoff_delay_s=1.0, timeout_s=1.0)
ALLOWED = {
    OutcomeKind.TRUE: {Verdict.MATCH, Verdict.CANDIDATE},
    OutcomeKind.FALSE: {None, Verdict.CANDIDATE},
    OutcomeKind.ERROR: {None, Verdict.CANDIDATE, Verdict.ERROR},
}


def world_config(bootstrap: str, prefix: str) -> KafkaConfig:
    """A deployment with two source and three outbox partitions."""
    return kafka_config(bootstrap, prefix, events=SOURCES, outbox=OUTBOX)


@functools.cache
def filters_of(generation: int) -> tuple[tuple[int, CompiledFilter], ...]:
    """Targets of a generation, other ones in each: some take every event, so that each counts in every partition."""
    rng = random.Random(generation)
    texts = ["true"] * ALWAYS
    while len(texts) < ALWAYS + FILTERS:
        text = random_filter(rng) if len(texts) % 6 == 0 else random_atom(rng)
        if "publish_time" not in text:  # a pool's event is stored many times
            texts.append(text)
    first = generation * 1_000
    return tuple((first + number, compile_cel(text)) for number, text in enumerate(texts))


@functools.cache
def pool() -> tuple[Event, ...]:
    """Events that a store of ours would have."""
    rng, events = random.Random(11), []
    while len(events) < POOL:
        record = encode_record(BROKER, event := random_event(rng))
        with contextlib.suppress(RecordError):
            decode_stored(record.headers, record.value)
            events.append(event)
    return tuple(events)


class Filters:
    """A routing source whose generation a test sets; what comes into force comes back by the topic `runs`."""

    def __init__(self, generation: int = 1) -> None:
        self.generation = generation
        self.active: list[int] = []
        self.changed = threading.Condition()

    def data_version(self) -> int:
        return self.generation

    def desired_generation(self) -> int:
        return self.generation

    def snapshot(self) -> RoutingTable:
        generation = self.generation
        targets = tuple(Target(id, f"t/{id}", BROKER, one, "http://t", RULES) for id, one in filters_of(generation))
        return RoutingTable.of(generation, generation, {"t/main": BROKER}, targets)

    def set_active_generation(self, generation: int) -> None:
        with self.changed:
            self.active.append(generation)
            self.changed.notify_all()

    def wait_active(self, generation: int, alive: Callable[[], object] = lambda: None) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        with self.changed:
            while generation not in self.active:
                assert time.monotonic() < deadline, f"generation {generation} did not come into force: {self.active}"
                self.changed.wait(0.2)
                alive()


class Worker:
    """A function in a thread, whose error the test sees."""

    def __init__(self, run: Callable[[threading.Event], object]) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._run = run
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._run(self.stop)
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        self.stop.set()
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive()
        self.check()


AHEAD_MAX = 400
"""Events that are stored and have not reached the reader."""


class Load:
    """Stores events at a rate until it is told to stop, no faster than a reader can follow on a slow machine."""

    def __init__(self, config: KafkaConfig, rate: float, reader: Reader | None = None) -> None:
        self._reader = reader
        self.stored: dict[tuple[int, int], int] = {}  # number in the pool, by source and offset
        self._topic = config.topic("events")
        self._pause_s = 1 / rate
        self._producer = Producer(
            {"bootstrap.servers": config.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        )

    def run(self, stop: threading.Event) -> None:
        number, next_at = 0, time.monotonic()
        while not stop.is_set():
            if self._reader is not None and len(self.stored) - len(self._reader.delays_s) > AHEAD_MAX:
                stop.wait(0.05)
                next_at = time.monotonic()
                continue
            self.add(number)
            number += 1
            next_at += self._pause_s
            if (left := next_at - time.monotonic()) > 0:
                stop.wait(left)
        self.end()

    def end(self) -> None:
        """Waits until every event is stored."""
        assert self._producer.flush(WAIT_S_MAX) == 0

    def add(self, number: int) -> None:
        which = number % POOL
        record = encode_record(BROKER, pool()[which])

        def kept(error: object, message) -> None:
            assert error is None
            self.stored[message.partition(), message.offset()] = which

        self._producer.produce(
            self._topic, record.value, record.key, number % SOURCES, headers=record.headers, on_delivery=kept
        )
        self._producer.poll(0)


class Reader:
    """A dispatcher without deliveries: reads the outbox, reports on runs, commits now and then."""

    def __init__(self, config: KafkaConfig) -> None:
        self.rows: dict[tuple[int, int, int], list[tuple[int, dict[int, Verdict]]]] = defaultdict(list)
        """By outbox partition, source and offset: generation and targets, for each time that it counted."""
        self.delays_s: dict[tuple[int, int], float] = {}  # of the last row of an event
        self._waiting: dict[int, Checkpoint] = {}
        self._config = config

    def run(self, stop: threading.Event) -> None:
        self._reports = RunReports(self._config)
        member = OutboxMember(self._config, self)
        committed_at = time.monotonic()
        try:
            while not stop.is_set():
                for page in member.read(0.02):
                    self._take(page)
                    self._waiting[page.checkpoint.partition] = page.checkpoint
                if time.monotonic() - committed_at >= COMMIT_S:
                    committed_at = time.monotonic()
                    commit(member, self._waiting.values())
        finally:
            member.close()
            self._reports.close(5.0)

    def _take(self, page: OutboxPage) -> None:
        self._reports.take(page)
        now_us = time.time() * 1e6
        for event in page.events:
            self._row(page.checkpoint.partition, event, (now_us - event.stored_us) / 1e6)

    def _row(self, partition: int, event: OutboxEvent, delay_s: float) -> None:
        targets = {target: Verdict(verdict) for target, verdict in event.targets}
        self.rows[partition, event.source, event.offset].append((event.generation, targets))
        place = event.source, event.offset
        self.delays_s[place] = max(delay_s, self.delays_s.get(place, 0.0))

    def has(self, place: tuple[int, int]) -> bool:
        """Whether an event has counted in every outbox partition."""
        return all((partition, *place) in self.rows for partition in range(OUTBOX))

    def taking(self, partitions: Sequence[int]) -> None:
        pass

    def assigned(self, partition: int, state: OutboxState) -> None:
        self._reports.assigned(partition, state)

    def revoked(self, partitions: Sequence[int], *, is_lost: bool) -> None:
        for partition in partitions:
            self._reports.revoked(partition)
            self._waiting.pop(partition, None)

    def passed_over(self, partition: int, offset: int, error: RecordError) -> None:
        raise AssertionError(error)

    def removed(self, partition: int, first: int, end: int) -> None:
        raise AssertionError((partition, first, end))


@functools.cache
def _programs(generation: int):
    return [(target, program(one.cel)) for target, one in filters_of(generation)]


@functools.cache
def _outcomes(which: int, generation: int) -> dict[int, OutcomeKind | None]:
    """What cel-cpp says of an event of the pool, by target; None where the filter may refuse the event."""
    view = EventView(pool()[which], 0)
    return {
        target: None if compiled.refusal(view) else compiled.evaluate_view(view).kind
        for target, compiled in _programs(generation)
    }


@functools.cache
def _judged(which: int, generation: int, partition: int, verdicts: frozenset[tuple[int, Verdict]]) -> int:
    """Compares the verdicts of an event in an outbox partition with cel-cpp; how many are true."""
    told, true = dict(verdicts), 0
    for target, outcome in _outcomes(which, generation).items():
        if dispatcher_of(target, OUTBOX) != partition:
            assert target not in told
        elif outcome is not None:
            true += outcome is OutcomeKind.TRUE
            assert told.get(target) in ALLOWED[outcome], (which, generation, target, outcome, told.get(target))
        told.pop(target, None)
    assert told == {}, f"targets that generation {generation} does not have"
    return true


def check_rows(reader: Reader, stored: dict[tuple[int, int], int]) -> tuple[int, int]:
    """Every event counted once in each outbox partition, by one generation, with the verdicts of cel-cpp.

    Returns:
        How many pairs are true, and how many generations counted.
    """
    true, newest, counted = 0, defaultdict(int), set()
    for place in sorted(stored):
        for partition in range(OUTBOX):
            found = reader.rows.get((partition, *place), [])
            assert len(found) == 1, f"event {place} counted {len(found)} times in outbox partition {partition}"
            generation, verdicts = found[0]
            key = partition, place[0]
            assert generation >= newest[key], f"event {place} counts for an older generation than the one before"
            newest[key] = generation
            counted.add(generation)
            true += _judged(stored[place], generation, partition, frozenset(verdicts.items()))
    return true, len(counted)


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
