"""Sources of a broker that stores an event once: owners know a record by its place, and an event by its id."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headgate.backend.kafka.source import AdmittedRecord, ForeignRecord, NumberedRecords, SourceReader, admit
from headgate.ingress.partitions import all_stored
from headgate.ingress.producers import NumbersMovedError
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded
from headgate.objects.kinds.specs import ServedBroker
from headgate_api.errors import HeadgateError, UnavailableError
from tests.backend.kafka_front import Front, fronts, until_shared
from tests.backend.once_contract import BROKER as ONCE
from tests.backend.once_contract import SHORT
from tests.backend.scan_contract import known
from tests.backend.source_member import topics
from tests.backend.sources import TOPIC_PARTITIONS, made, refused, store, topic
from tests.backend.stores import KafkaStore
from tests.support import eventually

__all__ = ["store", "topic"]
pytestmark = pytest.mark.kafka
IDS = [f"id-{number}" for number in range(24)]


class Owners:
    """Fronts that own all partitions, as sources ask them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, front: Front) -> None:
        self._loop = loop
        self._front = front

    def store(self, chunks: Mapping[int, Encoded]) -> Sequence[int | Sifted]:
        return self.begin(chunks).result()

    def begin(self, chunks: Mapping[int, Encoded]) -> Future[list[int | Sifted]]:
        async def stored() -> list[int | Sifted]:
            asked = [self._front.once.store_here(partition, chunk, 1_000) for partition, chunk in chunks.items()]
            return await all_stored([one for one in asked if one is not None])

        return asyncio.run_coroutine_threadsafe(stored(), self._loop)

    def publish(self, *ids: str) -> None:
        asyncio.run_coroutine_threadsafe(self._front.publish(*ids), self._loop).result()


@pytest.fixture
def owners(store: KafkaStore) -> Iterator[Owners]:
    ready, done = Future[Owners](), threading.Event()

    async def run() -> None:
        async with fronts(store.config, 1) as every:
            await until_shared(every)
            ready.set_result(Owners(asyncio.get_running_loop(), every[0]))
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    yield ready.result(60)
    done.set()
    thread.join()


def write(store: KafkaStore, topic: str, *ids: str, again: int = 1) -> None:
    """Each event so many times, in partitions turn by turn; the first one is none."""
    producer = Producer({"bootstrap.servers": store.config.bootstrap, "log_level": "0"})
    for number, one in enumerate(id_ for id_ in ids for _ in range(again)):
        headers: dict[str, str | bytes | None] = {"ce_specversion": "1.0", "ce_id": one, "ce_source": "/s"}
        if one:
            headers["ce_type"] = "t"
        producer.produce(topic, b"x", partition=number % TOPIC_PARTITIONS, headers=headers)
    assert producer.flush(30) == 0


@contextmanager
def admitting(
    store: KafkaStore, topic: str, ask: Callable[[Mapping[int, Encoded]], Sequence[int | Sifted]], broker: ServedBroker
) -> Iterator[Counter[str]]:
    """A source that admits records meanwhile, and how many there were."""
    stop, seen = threading.Event(), Counter[str]()

    def take(admitted: int, refused: int) -> None:
        seen.update(admitted=admitted, refused=refused)

    reader = SourceReader(store.config, topics(topic), "one", lambda _: broker, ask, take)
    running = threading.Thread(target=reader.run, args=(stop,))
    running.start()
    try:
        yield seen
    finally:
        stop.set()
        running.join(60)
    assert not running.is_alive()


def test_an_event_that_the_broker_has_is_not_stored_again_wherever_it_came_from(
    store: KafkaStore, owners: Owners, topic: str
) -> None:
    owners.publish(*IDS[:8])
    write(store, topic, *IDS[:16], "", again=3)
    with admitting(store, topic, owners.store, ONCE) as seen:
        eventually(lambda: seen == {"admitted": 8, "refused": 3}, lambda: seen)
        owners.publish(*IDS)
    assert Counter(one.event.id for one in known(store)) == Counter(IDS)
    assert len(refused(store.config)) == 3


def test_a_record_that_is_read_again_is_known_by_its_place_also_when_the_window_is_over(
    store: KafkaStore, owners: Owners, topic: str
) -> None:
    failures = [True, True]

    def ask(chunks: Mapping[int, Encoded]) -> Sequence[int | Sifted]:
        found = owners.store(chunks)
        if failures and failures.pop():  # nothing of it is committed in the group
            time.sleep(1.1)
            raise UnavailableError("the answer is lost")
        return found

    with admitting(store, topic, ask, SHORT) as seen:
        write(store, topic, *IDS[:12])
        eventually(lambda: seen["admitted"] == 12, lambda: seen, seconds=60)
        failures.append(True)
        write(store, topic, *IDS[12:])
        eventually(lambda: seen["admitted"] == 24, lambda: seen, seconds=60)
    assert Counter(one.event.id for one in known(store)) == Counter(IDS)
    assert not failures


def test_the_records_of_a_topic_that_was_made_anew_are_others(store: KafkaStore, owners: Owners, topic: str) -> None:
    write(store, topic, *IDS[:12])
    with admitting(store, topic, owners.store, ONCE) as seen:
        eventually(lambda: seen["admitted"] == 12, lambda: seen, seconds=60)
    admin = AdminClient({"bootstrap.servers": store.config.bootstrap})
    admin.delete_topics([topic])[topic].result()
    made(store, topic)
    write(store, topic, *IDS[12:])
    with admitting(store, topic, owners.store, ONCE) as seen:
        eventually(lambda: seen["admitted"] == 12, lambda: seen, seconds=60)
    assert Counter(one.event.id for one in known(store)) == Counter(IDS)


def records(store: KafkaStore, topic: str, offsets: range) -> list[tuple[ForeignRecord, AdmittedRecord]]:
    """Of one partition; which partitions they go to is the same for each that reads them."""
    found = []
    for offset in offsets:
        headers = [("ce_specversion", b"1.0"), ("ce_id", b"%d" % offset), ("ce_source", b"/s"), ("ce_type", b"t")]
        record = ForeignRecord(topic, 0, offset, None, b"x", headers)
        admitted = admit(record, SHORT, store.config.topics.events.partitions)
        assert isinstance(admitted, AdmittedRecord)
        found.append((record, admitted))
    return found


@pytest.mark.parametrize("comes_first", [True, False])
def test_what_a_process_stores_that_has_lost_its_partition_is_stored_once(
    store: KafkaStore, owners: Owners, topic: str, comes_first: bool
) -> None:
    held: list[Mapping[int, Encoded]] = []

    def hold(chunks: Mapping[int, Encoded]) -> Sequence[int | Sifted]:
        held.append(chunks)
        return []

    lost, found = (NumberedRecords(store.config, "group", ask) for ask in (hold, owners.store))
    found.store(SHORT, records(store, topic, range(20)))
    found.forget()
    lost.store(SHORT, records(store, topic, range(15, 40)))
    if comes_first:
        found.store(SHORT, records(store, topic, range(10, 20)))
        owners.store(held[0])
        with pytest.raises(NumbersMovedError):
            found.store(SHORT, records(store, topic, range(20, 50)))
        found.forget()
        time.sleep(1.1)  # no event is known by its id
    found.store(SHORT, records(store, topic, range(20, 50)))
    if not comes_first:
        with pytest.raises(HeadgateError, match="another stream"):
            owners.store(held[0])
    assert Counter(one.event.id for one in known(store)) == Counter(str(number) for number in range(50))
