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

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.appender import FencedProducing, NumberedWriter
from headgate.backend.kafka.client import KafkaAdmin
from headgate.backend.kafka.records import records_of
from headgate.backend.kafka.window_writer import READING, KafkaPartition, WindowWriter
from headgate.event.arrow import StoredEvent, from_batch_all
from headgate.ingress.encode import Entries
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import partition_of_key
from headgate.ingress.producers import produced
from headgate.ingress.publish_rpc import PublishRpc
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate_api import limits
from headgate_api.event.model import Event
from tests.backend.contract import PARTITIONS
from tests.backend.kafka_front import Front, until_shared
from tests.backend.numbered_contract import ONCE, NumberedContract, ids
from tests.backend.stores import SETTLE_S_MAX, KafkaReader, deployed
from tests.calls import Client, Refused, served
from tests.ingress.publisher import BROKER, answered, names, opened, replaced, request, run, said
from tests.support import eventually, until

pytestmark = pytest.mark.kafka


class _Front(Front):
    def __init__(self, config: KafkaConfig, others: list[Front]) -> None:
        self.brokers = {path: ServedBroker(f"{path}/1", DEFAULT_RULE) for path in (BROKER, "ns/other")}
        super().__init__(config, uuid.uuid4().hex, others, self._windows)

    def _windows(self) -> dict[str, int]:
        return {one.identity: one.rule.window_us for one in self.brokers.values() if one.rule.window_us}

    async def serve_once(self) -> None:
        self.brokers["ns/once"] = ONCE
        await until_shared([self])


class KafkaNumbered:
    """The topic of a deployment; each `publishing` is a front of a server of its own."""

    count = PARTITIONS

    def __init__(self, kafka: Kafka) -> None:
        self.config = deployed(kafka, "events")
        self._admin = AdminClient({"bootstrap.servers": self.config.bootstrap})
        self._fronts: list[Front] = []

    @contextlib.asynccontextmanager
    async def publishing(self) -> AsyncIterator[tuple[_Front, Client]]:
        front = _Front(self.config, self._fronts)
        self._fronts.append(front)
        rpc = PublishRpc(Intake(front.partitions, front.brokers.get), front.producers)
        try:
            async with served(rpc.service()) as client:
                yield front, client
        finally:
            self._fronts.remove(front)
            await front.close()

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
            assert await answered(old, request(0, 10)) == (0, 9, 0)
            new, following = await opened(second, "p")
            assert following == 10
            assert await answered(new, request(8, 4)) == (8, 11, 2)
            await old.write(request(10, 3))  # it does not know yet
            await replaced(old.rest())
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
    assert dead._writer is not None
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
            assert await answered(stream, request(0)) == (0, 0, 0)
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


# --- brokers with a window: owners of partitions store numbers with their events ------------------


def test_a_stream_at_another_front_ends_the_one_before_it_of_a_broker_with_a_window(store: KafkaNumbered) -> None:
    async def work() -> None:
        async with both(store) as ((_, first), (_, second)):
            old, _ = await opened(first, "p", "ns/once")
            assert await answered(old, request(0, 10)) == (0, 9, 0)
            new, following = await opened(second, "p", "ns/once")
            assert following == 10
            await old.write(request(10, 3))  # it does not know yet
            await replaced(old.rest())
            assert await answered(new, request(8, 4)) == (8, 11, 2)
            back, following = await opened(first, "p", "ns/once")
            assert following == 12
            await back.write(request(12))
            assert [said(message) for message in await back.rest()] == [(12, 12, 0)]

    run(work())
    assert sorted(name for each in ids(store) for name in each) == sorted(names(0, 13))


@pytest.mark.parametrize("comes_between", [False, True])
def test_an_older_stream_stores_nothing_once_a_new_one_is_told_its_number(
    store: KafkaNumbered, comes_between: bool
) -> None:
    """Its producer may remember nothing: then an event with that number must not be the old stream's."""

    async def work() -> None:
        async with both(store) as ((one, first), (two, second)):
            old, _ = await opened(first, "p", "ns/once")
            assert await answered(old, request(0, 10)) == (0, 9, 0)
            one.held.clear()
            await old.write(request(10, 10))
            await until(lambda: one.waiting, "what goes to the other front is on its way")
            if comes_between:
                before = two.once.begin

                async def begin(producing: FencedProducing) -> None:  # it has read the numbers
                    stored = one.forwarded
                    one.held.set()
                    await until(lambda: one.forwarded > stored)
                    await before(producing)

                two.producers._begin = begin
            new, _ = await opened(second, "p", "ns/once")
            one.held.set()
            await new.write(request(10, 10))
            first_number, last, duplicates = said(await new.read())
            assert (first_number, last) == (10, 19)
            assert duplicates == 10 if comes_between else 0 < int(duplicates) < 10
            with contextlib.suppress(Refused):
                await old.rest()

    run(work())
    for found in ids(store):
        numbers = [int(name[1:]) for name in found]
        assert numbers == sorted({*numbers}), "in order, each once"
    assert sum(map(len, ids(store))) == 20


def test_a_stream_that_was_replaced_while_it_was_opened_is_not_opened(store: KafkaNumbered) -> None:
    """Also where its front's clock is ahead, so that owners take it for the newer one."""

    async def work() -> None:
        async with both(store) as ((_, first), (two, second)):
            begun, goes_on, before = asyncio.Event(), asyncio.Event(), two.once.begin

            async def begin(producing: FencedProducing) -> None:
                producing.stream += 3_600 * 10**9
                begun.set()
                await goes_on.wait()
                await before(producing)

            two.producers._begin = begin
            opening = asyncio.create_task(opened(second, "p", "ns/once"))
            await begun.wait()
            new, _ = await opened(first, "p", "ns/once")
            goes_on.set()
            await replaced(opening)
            await new.write(request(0, 10))
            assert said(await new.read())[2] == "producer-numbers", "owners know the other one"
            new, _ = await opened(first, "p", "ns/once")
            assert await answered(new, request(0, 10)) == (0, 9, 0)

    run(work())
    assert sorted(name for each in ids(store) for name in each) == sorted(names(0, 10))


def test_an_owner_that_is_fenced_ends_the_stream_and_nothing_is_lost(store: KafkaNumbered) -> None:
    async def work() -> None:
        async with store.publishing() as (front, client):
            await front.serve_once()
            stream, _ = await opened(client, "p", "ns/once")
            assert await answered(stream, request(0, 10)) == (0, 9, 0)
            admin = KafkaAdmin(store.config, READING)
            for number in range(PARTITIONS):
                partition = KafkaPartition(store.config, number, "other", admin)
                other = WindowWriter(partition, front._windows, events_max=1_000)
                await asyncio.to_thread(other.take)
                await asyncio.to_thread(other.close)
            await stream.write(request(10, 10))
            refused = await stream.read()
            assert said(refused) == (10, 19, "writer-fenced")
            assert refused.refused.problem.retriable
            stream, following = await opened(client, "p", "ns/once")
            assert following == 10
            assert await answered(stream, request(5, 15)) == (5, 19, 5)

    run(work())
    assert sorted(name for each in ids(store) for name in each) == sorted(names(0, 20))


def test_a_stream_that_was_there_before_the_window_is_opened_anew(store: KafkaNumbered) -> None:
    """Owners have not taken it for the newest one."""

    async def work() -> None:
        async with store.publishing() as (front, client):
            front.brokers["ns/once"] = ServedBroker(ONCE.identity, DEFAULT_RULE)
            stream, _ = await opened(client, "p", "ns/once")
            assert await answered(stream, request(0, 10)) == (0, 9, 0)
            await front.serve_once()
            await stream.write(request(10, 10))
            refused = await stream.read()
            assert refused.refused.problem.retriable
            stream, following = await opened(client, "p", "ns/once")
            assert following == 10
            assert await answered(stream, request(10, 10)) == (10, 19, 0)
            front.brokers["ns/once"] = ServedBroker(ONCE.identity, DEFAULT_RULE)
            assert await answered(stream, request(20, 10)) == (20, 29, 0), "without a window it goes on"

    run(work())
    assert sorted(name for each in ids(store) for name in each) == sorted(names(0, 30))


@contextlib.asynccontextmanager
async def both(store: KafkaNumbered) -> AsyncIterator[tuple[tuple[_Front, Client], tuple[_Front, Client]]]:
    """Two fronts that each own a partition."""
    async with store.publishing() as one, store.publishing() as two:
        for front, _ in (one, two):
            front.brokers["ns/once"] = ONCE
        await until_shared([one[0], two[0]])
        yield one, two
