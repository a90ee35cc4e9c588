"""A broker that is deleted and made again under its name: objects, ingress and readers over one log, in one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import event_commit
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import PartitionWriter
from headgate.objects.api.admission import Admission
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ServedBrokers
from headgate.scan.chunks import ChunkLog
from headgate.stream.follow import Readers
from headgate.stream.request import read_request
from headgate_api.event.http import encode_binary
from headgate_api.event.model import Event
from headgate_api.objects.errors import UnknownBrokerError
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.ingress.support import call, fallback
from tests.objects.support import broker

KEY = ObjectKey(Kind.BROKER, "default", "re")
WAYS: dict[str, tuple[tuple[str, str], ...]] = {
    "all": (),
    "pinned": (("filter", 'ce.region == "eu"'),),
    "value": (("filterValue", "eu"),),
    "latest": (("from", "latest"), ("filter", 'ce.region == "eu"')),
}


class World:
    def __init__(self, store: Store, app: Ingress, readers: Readers) -> None:
        self.objects = Admission(store)
        self.store = store
        self.app = app
        self.readers = readers

    def make(self, filter_value: str) -> None:
        self.objects.create(Kind.BROKER, broker("re", log={"filterValue": filter_value}))

    async def publish(self, *names: str) -> list[int]:
        """The status of each event's request; all are under way at the same time."""
        events = [Event("1.0", name, "/s", "t", extensions={"region": "eu"}) for name in names]
        requests = [encode_binary(event) for event in events]
        answers = await asyncio.gather(
            *(call(self.app, path="/default/re", headers=headers, pieces=(body,)) for headers, body in requests)
        )
        return [answer.status for answer, _ in answers if answer is not None]

    async def read(self, way: str) -> list[str]:
        wanted = read_request(await self.readers.broker("default/re"), WAYS[way], follow=False)
        turns = [turn async for turn in self.readers.reading(wanted)]
        return [event.id for turn in turns for piece in turn.pieces for event in piece.events()]


@contextlib.asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    with (
        contextlib.closing(Store.open(directory / "control.db")) as store,
        PartitionWriter(Partition(directory / "log" / "0", "stop"), EVENT_SCHEMA) as writer,
    ):
        brokers = ServedBrokers(store)
        brokers.refresh()
        store.on_broker(brokers.refresh)
        commit = event_commit(writer)
        readers = Readers(ChunkLog(LogDirectory(directory / "log", "stop")), store.served)
        yield World(store, Ingress(Intake(Partitions([commit]), brokers.get), fallback), readers)
        await readers.close()
        await commit.close()


@pytest.mark.parametrize("way", WAYS)
def test_readers_miss_no_event_of_the_new_one_and_get_none_of_the_old_one(tmp_path: Path, way: str) -> None:
    async def work() -> None:
        async with world(tmp_path) as it:
            it.make("type")
            assert await it.publish("a", "b") == [202, 202]
            late = asyncio.create_task(it.publish("c"))
            for _ in range(5):
                await asyncio.sleep(0)  # it is accepted while the old one is there
            it.store.delete(KEY)
            with pytest.raises(UnknownBrokerError):
                await it.readers.broker("default/re")
            assert await it.publish("x") == [404]
            it.make("region")
            assert await it.read(way) == []
            assert await it.publish("d", "e") == [202, 202]
            assert await late == [202]
            found = await it.read(way)
            assert found == (["e"] if way == "latest" else ["d", "e"])

    asyncio.run(work())


def test_whoever_has_made_a_broker_publishes_into_it_at_once(tmp_path: Path) -> None:
    """Nothing goes to the deleted one by what was known of the time before."""

    async def work() -> None:
        async with world(tmp_path) as it:
            for number in range(5):
                it.make("type")
                assert await it.publish(f"e{number}") == [202]
                assert await it.read("all") == [f"e{number}"]
                it.store.delete(KEY)
                assert await it.publish("x") == [404]

    asyncio.run(work())
