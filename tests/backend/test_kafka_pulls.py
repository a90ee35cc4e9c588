"""Pulls from a real Kafka, through what fronts pass requests on by: the contract, and subscriptions that move."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clusters.kafka import Kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from starlette.applications import Starlette
from starlette.routing import Route

from headgate.backend.config import KafkaConfig
from headgate.filter.compile.plan import Verdict
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.outbox.shards import dispatcher_of
from headgate.server.peers import instance
from headgate.server.peers.local_http import answering
from headgate.server.peers.partition_owners import PartitionOwners
from headgate.server.peers.servers import PeerServers
from headgate.server.processes.kafka.dispatcher import KafkaDispatcher
from headgate.server.processes.kafka.partition_answers import partitions_api
from headgate.settings import Settings
from headgate.subscriptions.api import METHODS, PREFIX
from headgate_api import limits
from headgate_api.errors import TooLargeError
from headgate_api.event.model import Event
from tests.backend.dispatch_feed import SOURCES, Feed
from tests.backend.outbox_stream import OUTBOX_PARTITIONS, outbox_config
from tests.backend.pulls_contract import BATCH, Consuming, PullsContract, stats
from tests.backend.stores import deployed
from tests.backend.test_kafka_dispatch import dispatching
from tests.delivery.harness import BROKER, Routes, event, run
from tests.subscriptions.test_http import Client, ids, subscription
from tests.support import until

pytestmark = pytest.mark.kafka
SHARD = dispatcher_of(1, OUTBOX_PARTITIONS)


@pytest.fixture
def config(kafka: Kafka) -> KafkaConfig:
    return deployed(kafka, "events", "outbox", "changelog", "reports", like=outbox_config)


def made(_source: int, offset: int, _size_bytes: int) -> Event:
    return event(offset, data=b'{"n":%d}' % offset)


class Owner:
    """Says that every subscription is in one partition, as the objects do of those that they know."""

    async def owner(self, *_: object) -> int:
        return SHARD


@contextlib.asynccontextmanager
async def fronted(data: Path, dispatchers: list[KafkaDispatcher]) -> AsyncIterator[Client]:
    """A front of a server whose dispatcher processes are these."""
    settings = Settings(data=data, dispatchers=len(dispatchers))
    url = instance.advertised_url(settings)
    owners = PartitionOwners(
        settings, OUTBOX_PARTITIONS, lambda: dict.fromkeys(range(OUTBOX_PARTITIONS), url), PeerServers(settings)
    )
    app = owners.subscriptions(Owner())  # type: ignore[arg-type] # the one question that is asked of a group
    routes = [Route(f"{PREFIX}/{name}", app, methods=list(methods)) for name, methods in METHODS.items()]
    front = Starlette(routes=routes, exception_handlers=ERROR_HANDLERS)
    async with contextlib.AsyncExitStack() as stack:
        for number, dispatcher in enumerate(dispatchers):
            api = partitions_api(dispatcher.partitions)
            await stack.enter_async_context(answering(api, settings.dispatcher_socket(number)))
        await stack.enter_async_context(answering(front, data / "front.sock"))
        yield Client(data / "front.sock")


@contextlib.asynccontextmanager
async def backlog(
    config: KafkaConfig, data: Path, events: int, *, cel: str = "true", verdict: int = Verdict.MATCH
) -> AsyncIterator[Client]:
    """See `Consuming`."""
    feed = Feed(config, lambda *_: [1], make=made, broker=BROKER, verdict=verdict)
    routes = Routes(subscription(1, "s", cel=cel))
    async with dispatching(config, data, routes) as dispatcher, fronted(data, [dispatcher]) as ask:
        for first in range(0, events, BATCH):
            await asyncio.to_thread(feed.store, min(BATCH, events - first), sources=[0])
        await until(lambda: answers(dispatcher))
        while (await stats(ask))["backlog"] < events:
            await asyncio.sleep(0.01)
        yield ask


def answers(dispatcher: KafkaDispatcher) -> bool:
    partition = dispatcher.partitions.get(SHARD)
    return partition is not None and partition.pulls is not None


class TestKafkaPulls(PullsContract):
    @pytest.fixture
    def consuming(self, config: KafkaConfig, tmp_path: Path) -> Consuming:
        return partial(backlog, config, tmp_path)


class Consumer:
    """Pulls and acknowledges, whatever is answered; and what became of it."""

    def __init__(self, ask: Client, name: str) -> None:
        self._ask = ask
        self._name = name
        self.ended: Counter[str] = Counter()
        """Events by what was answered: their acknowledgement is stored; and how often."""
        self.unknown: set[str] = set()
        """Those whose acknowledgement was not answered the first time: they may have ended."""
        self.handed: Counter[str] = Counter()
        self.refused: Counter[int] = Counter()

    async def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            status, pulled = await self._ask("pull", consumer=self._name, max=7, wait=0.2)
            if status != 200:
                self.refused[status] += 1
                continue
            found = {one["ackId"]: place_of(one) for one in pulled["events"]}
            self.handed.update(found.values())
            if found:
                await self._acknowledge(found)

    async def _acknowledge(self, found: dict[str, str]) -> None:
        is_sure = True
        while True:
            status, done = await self._ask("ack", consumer=self._name, ids=[*found])
            if status == 200:
                break
            is_sure = False
            self.refused[status] += 1
        self.ended.update(name for id_, name in found.items() if id_ not in done["stale"])
        if not is_sure:
            self.unknown.update(found[id_] for id_ in done["stale"])


def place_of(pulled: dict[str, Any]) -> str:
    return f"{pulled['position']} {pulled['event']['id']}"


@pytest.mark.slow
def test_what_is_acknowledged_stays_so_when_the_subscription_moves_to_another_dispatcher(
    config: KafkaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events come, are pulled and acknowledged all the time, while their owner leaves and the next one comes."""
    monkeypatch.setattr(limits, "OUTBOX_CHECKPOINT_RECORDS", 20)

    async def main() -> None:
        feed = Feed(config, lambda *_: [1], make=made, broker=BROKER)
        routes = Routes(subscription(1, "s"))
        async with contextlib.AsyncExitStack() as outer:
            stacks = [await outer.enter_async_context(contextlib.AsyncExitStack()) for _ in range(2)]
            both = [
                await stack.enter_async_context(dispatching(config, tmp_path / name, routes))
                for stack, name in zip(stacks, "ab", strict=True)
            ]
            await until(lambda: all(len(one.partitions) == OUTBOX_PARTITIONS // 2 for one in both))
            await until(lambda: any(map(answers, both)))
            ask = await outer.enter_async_context(fronted(tmp_path, both))
            is_over = False
            consumers = [Consumer(ask, name) for name in ("c", "d")]
            working = [asyncio.create_task(one.work(lambda: is_over)) for one in consumers]

            async def store(count: int) -> None:
                for _ in range(count // 20):
                    await asyncio.to_thread(feed.store, 20)

            await store(100)
            await until(lambda: sum(map(len, (one.ended for one in consumers))) > 100)
            (owner,) = (number for number, one in enumerate(both) if SHARD in one.partitions)
            leaving = asyncio.create_task(stacks[owner].aclose())
            await store(100)
            await leaving
            await store(40)
            stored = {f"{source}:{offset} e{offset}" for source in range(SOURCES) for offset in range(240)}
            while True:
                status, now = await ask("stats")
                known = consumers[0].ended.keys() | consumers[1].ended.keys() | unknown(consumers)
                if status == 200 and now["backlog"] == 0 and known == stored:
                    break
                await asyncio.sleep(0.05)
            is_over = True
            await asyncio.gather(*working)
            ended = consumers[0].ended + consumers[1].ended
            assert ended.keys() | unknown(consumers) == stored
            assert set(ended.values()) == {1}, "an event ends once"
            handed = consumers[0].handed + consumers[1].handed
            again = sum(handed.values()) - len(handed)
            print(f"refused {[dict(one.refused) for one in consumers]}, {again} events handed out again")
            assert set(itertools.chain(*(one.refused for one in consumers))) <= {503}
            assert now["acknowledged"] == len(stored)

    run(main(), 120)


def unknown(consumers: list[Consumer]) -> set[str]:
    return set[str]().union(*(one.unknown for one in consumers))


def set_largest_record(config: KafkaConfig, size_bytes: int) -> None:
    """Of the changelog."""
    topic = ConfigResource(ResourceType.TOPIC, config.topic("changelog"))
    entry = ConfigEntry("max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET)
    topic.add_incremental_config(entry)
    admin = AdminClient({"bootstrap.servers": config.bootstrap})
    for done in admin.incremental_alter_configs([topic]).values():
        done.result()


@pytest.mark.slow
def test_a_dispatcher_that_cannot_store_acknowledgements_any_more_ends(config: KafkaConfig, tmp_path: Path) -> None:
    """A producer of Kafka that has failed stays so: until the process begins anew, nothing would be acknowledged."""

    async def main() -> None:
        async with backlog(config, tmp_path, 10) as ask:
            (first, *_) = (await ask("pull", consumer="a", max=10))[1]["events"]
            await asyncio.to_thread(set_largest_record, config, 50)
            assert (await ask("ack", consumer="a", ids=[first["ackId"]]))[0] == 413

    with pytest.raises(TooLargeError, match="the state of deliveries cannot be written"):
        run(main(), 120)


@pytest.mark.slow
def test_a_seek_goes_back_behind_checkpoints_that_are_far_apart(
    config: KafkaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep is shorter than what is between two checkpoints: it goes on until it comes to the place."""
    monkeypatch.setattr(limits, "OUTBOX_CHECKPOINT_RECORDS", 400)
    monkeypatch.setattr("headgate.backend.kafka.outbox_walk.OUTBOX_SWEEP_RECORDS", 50)

    async def main() -> None:
        count = 600
        async with backlog(config, tmp_path, count) as ask:
            for at in (count - 3, 5, count // 2):
                assert (await ask("seek", to=f"0:{at}"))[0] == 200
                expected = [f"e{number}" for number in range(at, min(at + 20, count))]
                assert ids(await ask("pull", consumer="a", max=20)) == expected

    run(main(), 120)
