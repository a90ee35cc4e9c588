"""Events that are stored once on Kafka: whoever writes a partition knows what those before him have stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest
from clusters.kafka import Kafka
from confluent_kafka import Producer

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import KafkaAdmin
from headgate.backend.kafka.records import encode_record
from headgate.backend.kafka.server_pass import KnownPasses, OwnPass
from headgate.backend.kafka.window_writer import (
    READING,
    AnnouncedOwners,
    KafkaPartition,
    PartitionGoesError,
    StoredName,
    WindowWriter,
    WriterFencedError,
)
from headgate.event.arrow import StoredEvent, from_batch_all, to_batch
from headgate.ingress.partitions import EventPartitions
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded
from tests.backend.contract import PARTITIONS
from tests.backend.kafka_front import fronts, until_shared
from tests.backend.once_contract import BROKER as ONCE
from tests.backend.once_contract import WINDOWS, OnceContract, OnceStore, event
from tests.backend.stores import KafkaReader, deployed
from tests.support import eventually

pytestmark = pytest.mark.kafka
BROKER, PLAIN = ONCE.identity, "shop/plain/u2"


@pytest.fixture
def config(kafka: Kafka) -> KafkaConfig:
    return deployed(kafka, "events")


def chunk(*ids: str) -> Encoded:
    rows = [StoredEvent(BROKER, event(one)) for one in ids]
    return Encoded(to_batch(rows), ["" for _ in ids], windows=WINDOWS)


def writer(config: KafkaConfig, name: str = "here") -> WindowWriter:
    return WindowWriter(KafkaPartition(config, 0, name, KafkaAdmin(config, READING)), lambda: WINDOWS, events_max=1_000)


def appended(one: WindowWriter, *ids: str) -> tuple[list[int], list[bool]]:
    found = one.append(chunk(*ids))
    assert isinstance(found, Sifted)
    return list(found.offsets), list(found.was_there)


def stored(config: KafkaConfig, partition: int = 0) -> dict[str, int]:
    """Places of the events in a partition, by id; each is there once."""
    reader, found = KafkaReader(config, partition), list[tuple[str, int]]()
    while (page := reader.read()) is not None:
        found += zip(page.batch.column("id").to_pylist(), page.offsets, strict=True)
    reader.close()
    assert len(dict(found)) == len(found), "an event is stored twice"
    return dict(found)


def test_who_takes_over_knows_what_was_stored_and_the_one_before_is_fenced(config: KafkaConfig) -> None:
    first, second = writer(config, "first"), writer(config, "second")
    places, was_there = appended(first, "a", "b", "a")
    assert (was_there, places[2]) == ([False, False, True], places[0])
    other = Producer({"bootstrap.servers": config.bootstrap})  # another front, whose broker has no window
    record = encode_record(PLAIN, event("a"))
    other.produce(config.topic("events"), record.value, headers=list(record.headers), partition=0)
    assert other.flush(30) == 0
    owners = AnnouncedOwners(config)
    assert owners() == {0: "first"}

    (new,), _ = appended(second, "c")
    assert new > places[1] + 1, "marks of transactions, and what others store, have offsets"
    assert appended(second, "b", "a", "d")[0][:2] == [places[1], places[0]]
    assert owners() == {0: "second"}
    with pytest.raises(WriterFencedError):
        appended(first, "c", "e")
    assert appended(first, "c", "d", "e")[1] == [True, True, False], "it has taken over, and read, once more"
    with pytest.raises(WriterFencedError):
        appended(second, "e", "f")
    eventually(lambda: set(stored_of(config, BROKER)) == {"a", "b", "c", "d", "e"})
    for one in (first, second, owners):
        one.close()
    with pytest.raises(PartitionGoesError):
        first.append(chunk("z"))


def stored_of(config: KafkaConfig, broker: str) -> list[str]:
    reader, found = KafkaReader(config, 0), list[str]()
    while (page := reader.read()) is not None:
        rows = zip(page.batch.column("broker").to_pylist(), page.batch.column("id").to_pylist(), strict=True)
        found += [id_ for one, id_ in rows if one == broker]
    reader.close()
    assert len(set(found)) == len(found), "an event is stored twice"
    return found


def test_what_is_behind_an_open_transaction_is_waited_for(config: KafkaConfig) -> None:
    """Readers of committed records do not see it yet; to store it again would be twice."""
    first = writer(config)
    first.take()
    batch = Producer({"bootstrap.servers": config.bootstrap, "transactional.id": config.topic("front-dead")})
    batch.init_transactions()
    batch.begin_transaction()
    batch.produce(config.topic("events"), b"{}", partition=0)
    batch.flush(30)
    reading = threading.Event()

    class Watched(KafkaPartition):
        def names(
            self, start: int, end: int, brokers: Container[str], stopped: Callable[[], bool]
        ) -> Iterator[StoredName | None]:
            reading.set()
            return super().names(start, end, brokers, stopped)

    second = WindowWriter(Watched(config, 0, "second", KafkaAdmin(config, READING)), lambda: WINDOWS, events_max=1_000)
    place, _ = appended(first, "a")
    assert stored(config) == {}
    found: list[tuple[list[int], list[bool]]] = []
    taking = threading.Thread(target=lambda: found.append(appended(second, "a", "b")))
    taking.start()
    assert reading.wait(60)
    taking.join(0.5)
    assert taking.is_alive()
    batch.commit_transaction()
    taking.join(60)
    ((places, was_there),) = found
    assert (places[0], was_there) == (place[0], [True, False])
    first.close()
    second.close()


def test_servers_know_each_other_and_nobody_else(config: KafkaConfig) -> None:
    own, known = OwnPass(config, "a1-front-0"), KnownPasses(config)
    shown = own.show()
    assert known.check(shown)
    assert known.is_known(shown)
    name, _, word = shown.partition(b":")
    for wrong in (name + b":" + b"0" * len(word), b"another:" + word, name, b"", b":" + word, shown + b"0"):
        assert not known.check(wrong), wrong
    again = OwnPass(config, "a1-front-0")  # the process has started again
    assert known.check(again.show())
    assert not KnownPasses(config).check(shown)
    own.refused()
    assert KnownPasses(config).check(own.show())


class _Store:
    """Each of its fronts has taken all partitions over."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config

    @asynccontextmanager
    async def front(self) -> AsyncIterator[EventPartitions]:
        async with fronts(self._config, 1) as every:
            await until_shared(every)
            yield every[0].partitions

    def stored(self) -> Mapping[tuple[int, int], tuple[str, str]]:
        found = dict[tuple[int, int], tuple[str, str]]()
        for number in range(PARTITIONS):
            reader = KafkaReader(self._config, number)
            while (page := reader.read()) is not None:
                for offset, row in zip(page.offsets, from_batch_all(page.batch), strict=True):
                    found[number, offset] = row.broker, row.event.id
            reader.close()
        return found


class TestKafkaOnce(OnceContract):
    @pytest.fixture
    def store(self, config: KafkaConfig) -> OnceStore:
        return _Store(config)


# --- fronts ---------------------------------------------------------------------------------------


def test_fronts_share_the_partitions_and_each_answers_for_all(config: KafkaConfig) -> None:
    async def run() -> None:
        async with fronts(config, 2) as (one, two):
            ids = [f"id-{number}" for number in range(30)]
            places = {id_: (await one.publish(id_)).place for id_ in ids}
            again = {id_: await two.publish(id_) for id_ in ids}
            assert {id_: stored.place for id_, stored in again.items()} == places
            assert {stored.before for stored in again.values()} == {1}
            assert len({place[0] for place in places.values() if place is not None}) == PARTITIONS
            assert (await one.publish(*ids[:5], "new", "new")).before == 6
            await asyncio.gather(*(each.publish(f"same-{number}") for number in range(20) for each in (one, two)))
            await asyncio.to_thread(eventually, lambda: len(found()) == 51)
            assert {id_: place for id_, place in found().items() if id_ in places} == places
            assert one.forwarded + two.forwarded > 0

    def found() -> dict[str, tuple[int, int]]:
        return {
            id_: (partition, offset)
            for partition in range(PARTITIONS)
            for id_, offset in stored(config, partition).items()
        }

    asyncio.run(run())
