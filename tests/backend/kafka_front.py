"""What fronts on Kafka store, without the processes around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.appender import FencedProducers, KafkaAppender
from headgate.backend.kafka.client import KafkaAdmin
from headgate.backend.kafka.once import OnceAppender, WindowPartitions
from headgate.backend.kafka.window_writer import READING, KafkaPartition, WindowWriter
from headgate.ingress.partitions import EventPartitions, Stored
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded
from headgate_api.errors import UnavailableError
from tests.backend.contract import PARTITIONS
from tests.backend.once_contract import BROKER, WINDOWS, event
from tests.support import until


class Front:
    """One of them; `others` are asked as over HTTP."""

    def __init__(
        self, config: KafkaConfig, name: str, others: list[Front], windows: Callable[[], Mapping[str, int]]
    ) -> None:
        admin = KafkaAdmin(config, READING)

        def made(number: int) -> WindowWriter:
            return WindowWriter(KafkaPartition(config, number, name, admin), windows, events_max=1_000)

        self.once = WindowPartitions(PARTITIONS, made, windows, self._forward)
        self.every = KafkaAppender(config, name)
        self.appender = OnceAppender(self.every, self.once)
        self.partitions = EventPartitions(self.appender, PARTITIONS)
        self.producers = FencedProducers(config, self.once.begin)
        self.forwarded = self.waiting = 0
        self.held = asyncio.Event()
        """What is forwarded waits until it is set."""
        self.held.set()
        self._others = others
        self._sharing = asyncio.create_task(self.once.share(config, name, asyncio.Event()))
        self._is_stopped = False

    async def _forward(self, partition: int, chunk: Encoded) -> int | Sifted:
        self.waiting += 1
        await self.held.wait()
        self.waiting -= 1
        for other in self._others:
            storing = other.once.store_here(partition, chunk, 1_000)
            if storing is not None:
                try:
                    return await storing
                finally:
                    self.forwarded += 1
        raise UnavailableError("nobody has it")

    async def publish(self, *ids: str) -> Stored:
        """Until it is answered."""
        while True:
            try:
                return await self.partitions.store(BROKER, [event(one) for one in ids], 100)
            except UnavailableError:
                await asyncio.sleep(0.1)

    async def stop_in_order(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            await self.producers.stop()

    async def close(self) -> None:
        await self.stop_in_order()
        self._sharing.cancel()
        await asyncio.wait([self._sharing])
        await self.once.close()
        await self.appender.close()
        await self.every.close()


@asynccontextmanager
async def fronts(
    config: KafkaConfig, count: int, windows: Callable[[], Mapping[str, int]] = lambda: WINDOWS
) -> AsyncIterator[list[Front]]:
    every: list[Front] = []
    for number in range(count):
        every.append(Front(config, f"front-{number}", every, windows))
    try:
        yield every
    finally:
        for one in every:
            await one.close()


async def until_shared(every: list[Front]) -> None:
    """Returns when each partition has an owner that stores, and each of these fronts owns one."""

    def owned() -> bool:
        ready = [[one for one in front.once._owned.values() if one._ready.is_set()] for front in every]
        return all(ready) and sum(map(len, ready)) == PARTITIONS

    await until(owned)
