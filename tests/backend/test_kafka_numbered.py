"""The contract of numbered producers on a real Kafka, and streams at two fronts."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator

import grpc
import pytest
from clusters.kafka import Kafka
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from headgate.backend.kafka.appender import FencedProducers, KafkaAppender, NumberedWriter
from headgate.backend.kafka.records import records_of
from headgate.event.arrow import StoredEvent, from_batch_all
from headgate.ingress.encode import Entries
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import EventPartitions, partition_of_key
from headgate.ingress.producers import produced
from headgate.ingress.publish_rpc import PublishRpc
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate_api import limits
from headgate_api.event.model import Event
from tests.backend.contract import PARTITIONS
from tests.backend.numbered_contract import NumberedContract, ids
from tests.backend.stores import SETTLE_S_MAX, KafkaReader, deployed
from tests.calls import Client, Refused, served
from tests.ingress.test_publish_rpc import BROKER, names, opened, request, run, said
from tests.support import eventually

pytestmark = pytest.mark.kafka


class _Front:
    def __init__(self, producers: FencedProducers, intake: EventPartitions) -> None:
        self.producers = producers
        self.partitions = intake
        self.brokers = {path: ServedBroker(f"{path}/1", DEFAULT_RULE) for path in (BROKER, "ns/other")}
        self._is_stopped = False

    async def stop_in_order(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            await self.producers.stop()


class KafkaNumbered:
    """The topic of a deployment; each `publishing` is a front of a server of its own."""

    count = PARTITIONS

    def __init__(self, kafka: Kafka) -> None:
        self.config = deployed(kafka, "events")
        self._admin = AdminClient({"bootstrap.servers": self.config.bootstrap})

    @contextlib.asynccontextmanager
    async def publishing(self) -> AsyncIterator[tuple[_Front, Client]]:
        appender = KafkaAppender(self.config, uuid.uuid4().hex)
        producers = FencedProducers(self.config)
        front = _Front(producers, EventPartitions(appender, self.count))
        rpc = PublishRpc(Intake(front.partitions, front.brokers.get), producers)
        try:
            async with served(rpc.service()) as client:
                yield front, client
        finally:
            await appender.close()
            await front.stop_in_order()

    def stored(self) -> list[list[StoredEvent]]:
        def are_closed() -> bool:
            return self._ends(IsolationLevel.READ_COMMITTED) == self._ends(IsolationLevel.READ_UNCOMMITTED)

        eventually(are_closed, "a transaction stays open")
        return [self._events(number) for number in range(self.count)]

    def _ends(self, isolation: IsolationLevel) -> list[int]:
        topic = self.config.topic("events")
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(self.count)}
        found = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=SETTLE_S_MAX)
        return [answer.result().offset for answer in found.values()]

    def _events(self, partition: int) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        with contextlib.closing(KafkaReader(self.config, partition)) as reader:
            while (page := reader.read()) is not None:
                found += from_batch_all(page.batch)
        return found


@pytest.fixture
def store(kafka: Kafka) -> KafkaNumbered:
    return KafkaNumbered(kafka)


class TestKafkaNumbered(NumberedContract):
    @pytest.fixture
    def store(self, store: KafkaNumbered) -> KafkaNumbered:  # type: ignore[override]
        return store


def test_a_stream_at_another_front_fences_the_one_before_it(store: KafkaNumbered) -> None:
    async def work() -> None:
        async with store.publishing() as (_, first), store.publishing() as (_, second):
            old, _ = await opened(first, "p")
            await old.write(request(0, 10))
            assert said(await old.read()) == (0, 9, 0)
            new, following = await opened(second, "p")
            assert following == 10
            await new.write(request(8, 4))
            assert said(await new.read()) == (8, 11, 2)
            await old.write(request(10, 3))  # it does not know yet
            with pytest.raises(Refused) as refused:
                await old.rest()
            assert (refused.value.status, refused.value.code) == (grpc.StatusCode.ABORTED, "producer-replaced")
            back, following = await opened(first, "p")
            assert following == 12
            await back.write(request(12))
            assert [said(message) for message in await back.rest()] == [(12, 12, 0)]

    run(work())
    assert sorted(ids(store)) == [[], names(0, 13)]


def test_what_a_stream_has_sent_and_not_committed_is_not_there(store: KafkaNumbered) -> None:
    """A front that dies in a transaction: the next stream ends it, and is told to send the events."""
    own = partition_of_key("p", PARTITIONS)
    dead = NumberedWriter(store.config, f"{BROKER}/1", "p")
    events = [Event("1.0", f"e{n}", "/s", "t") for n in range(3)]
    records = records_of(Entries(f"{BROKER}/1", DEFAULT_RULE, events, produced("p", [0, 1, 2])))
    dead._writer.send_records(("events", own, record) for record in records)

    async def work() -> None:
        async with store.publishing() as (_, client):
            started = time.monotonic()
            stream, following = await opened(client, "p")
            assert following == 0
            assert time.monotonic() - started < limits.KAFKA_TRANSACTION_S_MAX, "its time is not waited for"
            await stream.write(request(0, 5))
            assert [said(message) for message in await stream.rest()] == [(0, 4, 0)]

    run(work())
    dead.close()
    assert sorted(ids(store)) == [[], names(0, 5)]


def test_nothing_is_stored_behind_what_failed(store: KafkaNumbered) -> None:
    """Else what failed, sent again, would pass for a duplicate and be lost."""

    async def work() -> None:
        async with store.publishing() as (front, client):
            stream, _ = await opened(client, "p")
            await stream.write(request(0))
            assert said(await stream.read()) == (0, 0, 0)
            producing = front.producers._open[f"{BROKER}/1", "p"]
            fence = await asyncio.to_thread(NumberedWriter, store.config, f"{BROKER}/1", "p")
            events = [Event("1.0", f"e{n}", "/s", "t") for n in range(4)]
            tasks = [
                asyncio.create_task(front.partitions.store_numbered(producing, DEFAULT_RULE, n, events[n : n + 1], 10))
                for n in (1, 2, 3)
            ]
            await asyncio.wait(tasks)
            assert all(task.exception() is not None for task in tasks)
            assert producing.newest == {partition_of_key("p", PARTITIONS): 0}
            await asyncio.to_thread(fence.close)
            stream, following = await opened(client, "p")
            assert following == 1

    run(work())
    assert sorted(ids(store)) == [[], ["e0"]]


def test_a_front_has_so_many_streams_of_numbered_producers(
    store: KafkaNumbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.backend.kafka.appender.KAFKA_PRODUCER_STREAMS_MAX", 2)

    async def work() -> None:
        async with store.publishing() as (front, client):
            streams = [(await opened(client, name))[0] for name in ("a", "b")]
            with pytest.raises(Refused) as refused:
                await opened(client, "c")
            assert refused.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await streams[0].rest() == []
            while len(front.producers._open) + len(front.producers._closing) > 1:
                await asyncio.sleep(0.01)
            await opened(client, "c")

    run(work())
