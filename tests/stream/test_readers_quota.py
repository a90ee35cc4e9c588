"""A namespace has as many readers at work as its quota allows, and no other namespace notices."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from headgate.event.arrow import EVENT_SCHEMA
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.quotas import READERS
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.objects.store.store import Store
from headgate.objects.views.shared_quotas import SharedQuotas
from headgate.observe.metrics import QUOTA_READERS
from headgate.scan.chunks import ChunkLog
from headgate.stream.follow import Readers
from headgate.stream.request import read_request
from headgate_api.errors import OverloadedError
from tests.objects.quotas import limit, unlimit

BROKERS = {path: ServedBroker(f"{path}/1", DEFAULT_RULE) for path in ("ns/b", "ns/other", "free/b")}


class World:
    def __init__(self, folder: Path) -> None:
        self.store = Store.open(folder / "control.db")
        self.quotas = SharedQuotas(self.store)
        self.quotas.refresh()
        PartitionWriter(Partition(folder / "log" / "0", "stop"), EVENT_SCHEMA).close()
        self.readers = Readers(ChunkLog(LogDirectory(folder / "log", "stop")), BROKERS.get, self.quotas)

    def limit(self, readers: int) -> None:
        limit(self.store, self.quotas, {READERS: readers})

    async def open(self, stack: AsyncExitStack, broker: str = "ns/b") -> Any:
        """A reader that follows, behind its first turn."""
        wanted = read_request(BROKERS[broker], [], follow=True)
        reading = await stack.enter_async_context(aclosing(self.readers.reading(wanted)))
        await anext(reading)
        return reading


def test_readers_over_the_quota_are_refused_until_another_one_ends(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        async with AsyncExitStack() as stack:
            first = await world.open(stack)
            world.limit(2)
            await world.open(stack, "ns/other")
            with pytest.raises(OverloadedError, match=r"headgate\.dev/readers is limited to 2") as caught:
                await world.open(stack)
            assert (caught.value.code, caught.value.http_status) == ("readers-quota", 429)
            await world.open(stack, "free/b")
            world.quotas.show()
            assert {name: gauge.value for name, gauge in QUOTA_READERS.children.items()} == {"ns": 2}
            await first.aclose()
            await world.open(stack)
            world.limit(1)
            with pytest.raises(OverloadedError):
                await world.open(stack)
            unlimit(world.store, world.quotas)
            await world.open(stack)
        world.quotas.show()
        assert not QUOTA_READERS.children
        assert not world.readers._quota._held
        await world.readers.close()
        world.store.close()

    asyncio.run(asyncio.wait_for(work(), 60))
