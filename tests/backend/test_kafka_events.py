"""The contract of event stores on Kafka, and what is Kafka's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from clusters.kafka import Kafka
from confluent_kafka import KafkaError, KafkaException, Producer
from structlog.testing import capture_logs

from headgate.backend.kafka.appender import KafkaAppender
from headgate.backend.kafka.client import KafkaUnreachableError
from headgate.backend.kafka.records import RecordError
from headgate.testing.server import free_port
from headgate_api.errors import UnavailableError
from tests.backend.contract import EventStoreContract, entries, event, stored
from tests.backend.stores import KafkaReader, KafkaStore, deployed, kafka_config

pytestmark = pytest.mark.kafka


@pytest.fixture
def store(kafka: Kafka) -> Iterator[KafkaStore]:
    store = KafkaStore(deployed(kafka, "events"))
    yield store
    store.close()


class TestKafka(EventStoreContract):
    @pytest.fixture
    def store(self, store: KafkaStore) -> KafkaStore:
        return store


def test_a_batch_over_two_partitions_that_cannot_be_stored_whole_is_not_stored(store: KafkaStore) -> None:
    """Partition 7 does not exist: what went to partition 0 before it is aborted."""

    async def run() -> None:
        appender = KafkaAppender(store.config, "test")
        with pytest.raises(UnavailableError):
            await appender.append({0: entries("a", "b"), 7: entries("c")}, 100)
        store.settle(await appender.append({0: entries("d", "e"), 1: entries("f")}, 100))
        await appender.close()

    asyncio.run(run())
    assert [each.id for each in stored(store.reader(0)).values()] == ["d", "e"]
    assert [each.id for each in stored(store.reader(1)).values()] == ["f"]


def test_a_foreign_record_stops_a_reader_or_is_passed_over(store: KafkaStore) -> None:
    asyncio.run(_append(store, "a"))
    foreign = Producer({"bootstrap.servers": store.config.bootstrap})
    foreign.produce(store.config.topic("events"), b"?", partition=0, headers=[("ce_id", b"\xff"), ("n\u00e9", b"")])
    foreign.produce(store.config.topic("events"), None, partition=0)
    assert foreign.flush(30) == 0
    asyncio.run(_append(store, "b"))

    reader = store.reader(0)
    assert reader.read() is not None
    for _ in range(2):
        with pytest.raises(RecordError, match="events/0 at offset 1: no event that Headgate stored: headgate_broker"):
            reader.read()
    assert reader.position == 1

    tolerant = KafkaReader(store.config, 0, on_corrupt="skip")
    with capture_logs() as logs:
        assert stored(tolerant) == {0: event("a"), 3: event("b")}
    assert [(one["event"], one["offset"]) for one in logs] == [("record passed over", 1), ("record passed over", 2)]
    tolerant.close()


async def _append(store: KafkaStore, name: str) -> None:
    appender = await store.appender()
    store.settle(await appender.append({0: entries(name)}, 100))
    await appender.close()


class FailedProducer:
    """A producer whose callbacks meet a fatal error, as the library tells it."""

    def __init__(self, producer: Producer, error: Exception) -> None:
        self._producer = producer
        self._error = error

    def poll(self, timeout_s: float) -> int:
        raise self._error

    def flush(self, timeout_s: float) -> int:
        raise self._error

    def __getattr__(self, name: str) -> object:
        return getattr(self._producer, name)


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._FATAL, fatal=True)), SystemError()])
def test_after_a_fatal_error_events_are_stored_again(store: KafkaStore, error: Exception) -> None:
    """It comes out of whatever call serves callbacks, the thread's that takes acknowledgements included."""

    async def run() -> None:
        appender = KafkaAppender(store.config, "test")
        await appender.append({0: entries("a", "b")}, 100)
        failed = appender._single
        for producer in (failed, appender._batches._producer):
            producer.raw = FailedProducer(producer.raw, error)
        while appender._single is failed:
            await asyncio.sleep(0.01)
        with pytest.raises(UnavailableError):
            await appender.append({0: entries("c", "d")}, 100)
        await appender.append({0: entries("e")}, 100)
        store.settle(await appender.append({0: entries("f", "g")}, 100))
        await appender.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [each.id for each in stored(store.reader(0)).values()] == ["a", "b", "e", "f", "g"]


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.backend.kafka.appender.KAFKA_APPEND_S_MAX", 2.0)
    monkeypatch.setattr("headgate.backend.kafka.transactions.KAFKA_TRANSACTION_S_MAX", 2.0)
    config = kafka_config(f"127.0.0.1:{free_port()}", "x.")

    async def run() -> None:
        appender = KafkaAppender(config, "test")
        for part in (entries("a"), entries("a", "b")):
            with pytest.raises(KafkaUnreachableError, match=config.bootstrap):
                await appender.append({0: part}, 100)
        await appender.close()

    asyncio.run(run())
