"""Drivers one after the other on a real Kafka, without Spark: which of them may start runs that count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from clusters.kafka import Kafka
from confluent_kafka import Producer

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.match_run import OutboxPlaces
from headgate.backend.kafka.runs import MatcherLeadLostError, OutboxDriver, RunRegistry, follow_generations
from headgate.match.driver_link import Message
from headgate.objects.store.database import NotLeaderError
from headgate.outbox.link_format import RunActive, RunRejected
from tests.backend.matcher_world import OUTBOX, SOURCES, WAIT_S_MAX, Reader, Worker, world_config
from tests.backend.outbox_stream import Run
from tests.backend.stores import deployed
from tests.support import eventually

pytestmark = pytest.mark.kafka
START = dict.fromkeys(range(SOURCES), 0)


@pytest.fixture
def config(kafka: Kafka) -> KafkaConfig:
    return deployed(kafka, "events", "outbox", "runs", like=world_config)


class Driver:
    """A driver whose queries are the test's."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self.outbox = OutboxDriver(config)
        self.registry = RunRegistry(config, self.outbox.partitions)
        self.first_run = self.registry.newest_run + 1
        self.heard: list[Message] = []

    def start(self, run: int, generation: int) -> None:
        self.registry.started(run, generation, START)
        self.begin(run, generation)

    def begin(self, run: int, generation: int) -> None:
        self.outbox.hello(run, generation, START)
        self.outbox.passed(run, generation, START)

    def match(self, run: int, generation: int, below: int) -> None:
        """What the tasks of a query write."""
        producer = Producer({"bootstrap.servers": self._config.bootstrap})
        one = Run(run, generation, SOURCES, OUTBOX)
        for source in range(SOURCES):
            for offset in range(below):
                for each in one.events(source, offset):
                    producer.produce(
                        self._config.topic("outbox"), each.value, headers=each.headers, partition=each.partition
                    )
        assert producer.flush(WAIT_S_MAX) == 0

    def wait(self, message: Message) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while message not in self.heard:
            assert time.monotonic() < deadline, self.heard
            self.heard += self.registry.news(0.2)


@pytest.fixture
def driver(config: KafkaConfig) -> Iterator[Callable[[], Driver]]:
    made: list[Driver] = []

    def make() -> Driver:
        made.append(Driver(config))
        return made[-1]

    yield make
    for one in made:
        one.registry.close()


@pytest.fixture
def reader(config: KafkaConfig) -> Iterator[Reader]:
    reader = Reader(config)
    worker = Worker(reader.run)
    yield reader
    worker.end()


@pytest.mark.parametrize("stands_still", ["before its hello", "before its queries begin", "before it ends older runs"])
def test_a_driver_that_stood_still_starts_nothing_that_counts(
    driver: Callable[[], Driver], reader: Reader, stands_still: str
) -> None:
    old = driver()
    old.outbox.over_before(old.first_run)
    old.start(1, 10)
    old.wait(RunActive(1, 10))
    if stands_still != "before it ends older runs":
        old.registry.started(2, 11, START)
    if stands_still == "before its queries begin":
        old.outbox.hello(2, 11, START)

    new = driver()
    first = new.first_run
    assert first == old.registry.newest_run + (2 if stands_still != "before it ends older runs" else 1)
    new.outbox.over_before(first)
    new.start(first, 12)
    new.wait(RunActive(first, 12))

    with pytest.raises(MatcherLeadLostError, match="another matcher has taken the lead"):
        old.registry.started(first, 11, START)
    with pytest.raises(MatcherLeadLostError):
        old.registry.in_force(11)
    if stands_still == "before it ends older runs":
        old.outbox.over_before(old.first_run)
    else:
        old.begin(2, 11)
        old.match(2, 11, 20)
        old.outbox.over(2, 11)
    old.match(1, 10, 20)
    new.match(first, 12, 20)
    new.outbox.passed(first, 12, START | {0: 20, 1: 20})
    one = Run(first, 12, SOURCES, OUTBOX)
    wanted = {
        (partition, source, offset)
        for partition in range(OUTBOX)
        for source in range(SOURCES)
        for offset in range(20)
        if one.targets(source, offset, partition)
    }
    eventually(lambda: wanted <= reader.rows.keys())
    assert reader.rows.keys() == wanted, "rows of the old driver counted"
    assert {generation for found in reader.rows.values() for generation, _ in found} == {12}
    assert [message for message in new.heard if message.run == first] == [RunActive(first, 12)]


def test_a_refused_run_is_told_with_the_reason(driver: Callable[[], Driver], reader: Reader) -> None:
    one = driver()
    one.start(1, 10)
    one.wait(RunActive(1, 10))
    one.registry.started(2, 11, {})
    one.outbox.hello(2, 11, dict.fromkeys(range(SOURCES), 50))
    deadline = time.monotonic() + WAIT_S_MAX
    while not any(isinstance(message, RunRejected) and message.run == 2 for message in one.heard):
        assert time.monotonic() < deadline
        one.heard += one.registry.news(0.2)
    assert "a gap in partition" in str(one.heard[-1])


def test_the_next_run_begins_where_dispatchers_have_committed(
    config: KafkaConfig, driver: Callable[[], Driver], reader: Reader
) -> None:
    one, places = driver(), OutboxPlaces(config)
    assert (places.starts(), places.newest_run()) == (START, 0)
    events = Producer({"bootstrap.servers": config.bootstrap})
    for number in range(10 * SOURCES):
        events.produce(config.topic("events"), b"", partition=number % SOURCES)
    assert events.flush(WAIT_S_MAX) == 0
    one.start(3, 10)
    one.outbox.passed(3, 10, dict.fromkeys(range(SOURCES), 7))
    deadline = time.monotonic() + WAIT_S_MAX
    while places.starts() != dict.fromkeys(range(SOURCES), 7):
        assert time.monotonic() < deadline, places.starts()
    assert places.newest_run() == 3
    places.close()


def test_the_generation_in_force_reaches_the_objects_once_there_is_a_leader(
    config: KafkaConfig, driver: Callable[[], Driver]
) -> None:
    written: list[int] = []
    tried = threading.Event()

    def write(generation: int) -> None:
        if not tried.is_set():
            tried.set()
            raise NotLeaderError("this process does not lead")
        written.append(generation)

    one = driver()
    one.registry.in_force(4)
    follower = Worker(lambda stop: follow_generations(config, write, stop))
    assert tried.wait(WAIT_S_MAX)
    one.registry.in_force(5)
    deadline = time.monotonic() + WAIT_S_MAX
    while 5 not in written:
        assert time.monotonic() < deadline
        follower.check()
        time.sleep(0.02)
    follower.end()
    assert written in ([4, 5], [5])
