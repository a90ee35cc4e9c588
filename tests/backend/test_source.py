"""Sources on a real Kafka: every record of a foreign topic is in `events` or in `refused`, once, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaError, Producer

from headgate.backend.config import SourceConfig
from headgate.backend.kafka.source import OpenGates, SourceReader
from headgate.objects.kinds.specs import ServedBroker
from headgate_api.errors import HeadgateError
from headgate_api.event.model import Event
from tests.backend.contract import BROKER
from tests.backend.scan_contract import known
from tests.backend.source_member import no_owner, served, topics
from tests.backend.sources import TOPIC_PARTITIONS, refused, store, topic
from tests.backend.stores import KafkaStore
from tests.support import eventually

__all__ = ["store", "topic"]
pytestmark = pytest.mark.kafka
RECORDS = 1_000
Headers = list[tuple[str, bytes | None]]
HOSTILE: Sequence[tuple[Headers, bytes | None]] = (
    ([], b"hello"),
    ([], None),
    ([("ce_specversion", b"1.0"), ("ce_id", b"h"), ("ce_id", b"h"), ("ce_source", b"/s"), ("ce_type", b"t")], b"{}"),
    ([("content-type", b"application/cloudevents+json")], b'{"specversion":"1.0","id":"h"'),
    ([("content-type", b"application/cloudevents-batch+json")], b"[]"),
    ([("ce_specversion", b"\xff")], b"{}"),
)


def record(number: int) -> tuple[Headers, bytes]:
    """Event `number`: binary mode where it is even, else structured mode."""
    name = f"e{number}"
    if number % 2:
        body = {"specversion": "1.0", "id": name, "source": "/s", "type": "t", "data": {"n": number}}
        return [("content-type", b"application/cloudevents+json")], json.dumps(body).encode()
    needed: Headers = [("ce_specversion", b"1.0"), ("ce_id", name.encode()), ("ce_source", b"/s"), ("ce_type", b"t")]
    return [*needed, ("content-type", b"application/json")], b'{"n":%d}' % number


class Written:
    """Where the records of a test stand."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": "0"})
        self.valid: dict[str, int] = {}
        """Partition of each event, by its id."""
        self.hostile: set[tuple[int, int]] = set()

    def write(self, numbers: range, rng: random.Random) -> None:
        for number in numbers:
            partition = rng.randrange(TOPIC_PARTITIONS)
            self._send(partition, *record(number))
            self.valid[f"e{number}"] = partition
            if rng.random() < 0.2:
                self._send(partition, *rng.choice(HOSTILE), hostile=True)
        assert self._producer.flush(30) == 0

    def _send(self, partition: int, headers: Headers, value: bytes | None, *, hostile: bool = False) -> None:
        def placed(error: KafkaError | None, message: object) -> None:
            assert error is None
            if hostile:
                self.hostile.add((partition, message.offset()))  # type: ignore[attr-defined]

        self._producer.produce(
            self._topic,
            value,
            partition=partition,
            headers=headers,
            on_delivery=placed,  # type: ignore[arg-type]
        )
        self._producer.poll(0)


@contextlib.contextmanager
def member(store: KafkaStore, topic: str, instance: str) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "tests.backend.source_member"]
    place = [store.config.bootstrap, store.config.topic_prefix, topic, instance]
    with subprocess.Popen([*line, *place], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def admitted(process: subprocess.Popen[str], transactions: int) -> int:
    """Waits for so many transactions; how many records they had."""
    assert process.stdout is not None
    return sum(sum(map(int, process.stdout.readline().split())) for _ in range(transactions))


@pytest.mark.slow
def test_each_record_is_admitted_or_refused_once_whatever_is_killed(store: KafkaStore, topic: str) -> None:
    rng = random.Random(5)
    written = Written(store.config.bootstrap, topic)
    written.write(range(200), rng)
    writing = threading.Thread(target=lambda: [written.write(range(n, n + 50), rng) for n in range(200, RECORDS, 50)])
    writing.start()
    for turn in range(2):
        with member(store, topic, "one") as process:
            assert admitted(process, 4 + turn) > 0
            process.send_signal(signal.SIGKILL)  # wherever it is now: most often in a transaction
    writing.join()
    with ExitStack() as members:
        for name in ("one", "two"):  # either may do all that is left
            members.enter_context(member(store, topic, name))
        deadline = time.monotonic() + 90
        while True:
            events = [one.event.id for one in known(store)]
            found = refused(store.config)
            if len(events) >= RECORDS and len(found) >= len(written.hostile):
                break
            assert time.monotonic() < deadline, (len(events), len(found), len(written.hostile))
            time.sleep(0.2)
    assert Counter(events) == Counter(list(written.valid))
    assert Counter(place[:2] for place in found) == Counter(written.hostile)
    assert len(written.hostile) > 100
    assert all(reason for *_, reason in found)


def run(store: KafkaStore, source: SourceConfig, written: Written, numbers: range) -> None:
    """Runs a source beside a producer until it has admitted each of these events."""
    stop = threading.Event()
    reader = SourceReader(store.config, source, "one", served, no_owner)
    running = threading.Thread(target=reader.run, args=(stop,))
    running.start()
    written.write(numbers, random.Random(1))
    wanted, deadline = {f"e{number}" for number in numbers}, time.monotonic() + 60
    while not wanted <= {one.event.id for one in known(store)}:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    stop.set()
    running.join(30)
    assert not running.is_alive()


def test_order_is_kept_and_what_was_there_before_may_be_left_out(store: KafkaStore, topic: str) -> None:
    written = Written(store.config.bootstrap, topic)
    written.write(range(20), random.Random(1))
    late = topics(topic, "latest")
    stop, joined = threading.Event(), threading.Event()
    reader = SourceReader(store.config, late, "one", served, no_owner, lambda _a, _r: joined.set())
    running = threading.Thread(target=reader.run, args=(stop,))
    running.start()
    number = 100
    while not joined.is_set():  # what comes before it has joined is before its beginning
        written.write(range(number, number + 1), random.Random(number))
        number += 1
        joined.wait(0.1)
    stop.set()
    running.join(30)
    before = written.hostile.copy()
    run(store, late, written, range(1_000, 1_200))
    found = [int(one.event.id[1:]) for one in known(store)]
    assert not [one for one in found if one < 100], "the group begins behind them"
    assert set(range(1_000, 1_200)) <= set(found)
    assert len(found) == len(set(found))
    for partition in range(TOPIC_PARTITIONS):
        own = [number for number in found if written.valid[f"e{number}"] == partition]
        assert own == sorted(own)
    assert before <= written.hostile


def test_records_wait_while_there_is_no_broker_and_go_to_the_one_that_is_there(store: KafkaStore, topic: str) -> None:
    written = Written(store.config.bootstrap, topic)
    written.write(range(10), random.Random(1))
    stop, done, seen = threading.Event(), threading.Event(), []
    brokers: dict[str, ServedBroker] = {}

    def take(admitted: int, refused: int) -> None:
        seen.append(admitted + refused)
        done.set()

    reader = SourceReader(store.config, topics(topic), "one", brokers.get, no_owner, take)
    running = threading.Thread(target=reader.run, args=(stop,))
    running.start()
    while not reader.problem:
        time.sleep(0.01)
    assert reader.problem == "source s1: there is no broker default/default"
    assert not seen
    brokers["default/default"] = served(BROKER)
    assert done.wait(60)
    assert not reader.problem
    stop.set()
    running.join(30)
    assert {one.event.id for one in known(store)} <= set(written.valid)


class Gate(OpenGates):
    """Refuses odd events, and holds the source while the test says so."""

    def __init__(self) -> None:
        self.wait = 1.0
        self.sizes: list[tuple[int, int]] = []

    def wait_s(self, source: SourceConfig) -> float:
        return self.wait

    def check(self, source: SourceConfig, event: Event) -> None:
        if int(event.id[1:]) % 2:
            raise HeadgateError("this one may not come in")

    def stored(self, source: SourceConfig, events: int, size_bytes: int) -> None:
        self.sizes.append((events, size_bytes))


def test_over_its_quota_a_source_waits_and_what_a_policy_refuses_is_kept_with_the_reason(
    store: KafkaStore, topic: str
) -> None:
    written, gate = Written(store.config.bootstrap, topic), Gate()
    stop, done, seen = threading.Event(), threading.Event(), Counter[str]()

    def take(admitted: int, refused: int) -> None:
        seen.update(admitted=admitted, refused=refused)
        if seen.total() >= 50 + len(written.hostile):
            done.set()

    reader = SourceReader(store.config, topics(topic), "one", served, no_owner, take, gate)
    running = threading.Thread(target=reader.run, args=(stop,))
    running.start()
    eventually(lambda: "has exceeded its quota" in reader.problem)
    written.write(range(50), random.Random(1))
    for _ in range(3):  # looks of a source that is held
        reader.problem = ""
        eventually(lambda: "has exceeded its quota" in reader.problem)
    assert not seen
    gate.wait = 0.0
    assert done.wait(60)
    stop.set()
    running.join(30)
    assert sorted(int(one.event.id[1:]) for one in known(store)) == list(range(0, 50, 2))
    reasons = [reason for *_, reason in refused(store.config)]
    assert reasons.count("this one may not come in") == 25
    assert sum(count for count, _ in gate.sizes) == 25
    assert all(size > 0 for count, size in gate.sizes if count)
