"""kill -9 of a broker of three, under load: nothing acknowledged is lost, and no batch is there in part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from clusters.kafka import Kafka

from headgate.backend.kafka.appender import KafkaAppender
from headgate.backend.kafka.topics import Admin
from headgate_api.errors import HeadgateError
from tests.backend.contract import PARTITIONS, entries, stored, whole
from tests.backend.stores import KafkaStore, kafka_config

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
Offsets = Mapping[int, Sequence[int]]
PRODUCERS = 6
LOAD_S = 2.0
"""Load before a kill, and after the silence that it brings."""


def test_no_acknowledged_event_is_lost(tmp_path: Path) -> None:
    with Kafka(tmp_path, 3, heap_mb=256) as kafka:
        store = KafkaStore(kafka_config(kafka.bootstrap, "t.", copies=3))
        Admin(store.config).create_missing()
        acknowledged, refused, silence_s = asyncio.run(_killed_under_load(store, kafka))
        ends = [max(offsets.get(number, [0])[-1] for offsets in acknowledged.values()) for number in range(PARTITIONS)]
        store.settle({number: [end] for number, end in enumerate(ends)})
        there = [each.id for number in range(PARTITIONS) for each in stored(store.reader(number)).values()]
        store.close()
    print(f"{len(acknowledged)} batches acknowledged, {refused} refused, longest silence {silence_s:.1f} s")
    assert len(acknowledged) > 50
    assert acknowledged.keys() <= whole(there).keys()


async def _killed_under_load(store: KafkaStore, kafka: Kafka) -> tuple[dict[str, Offsets], int, float]:
    """Kills two brokers, the second one when the first is back; returns the offsets of what was acknowledged."""
    appender = KafkaAppender(store.config, "test")
    acknowledged: dict[str, Offsets] = {}
    times = [time.monotonic()]
    refused = 0
    ending = asyncio.Event()

    async def produce(producer: int) -> None:
        nonlocal refused
        number = 0
        while not ending.is_set():
            number += 1
            size = (1, 20, 1, 5)[number % 4]
            name = f"{producer}.{number}"
            try:
                part = entries(*[f"{name}/{index}/{size}" for index in range(size)])
                offsets = await appender.append({number % PARTITIONS: part}, 100 * size)
            except HeadgateError:
                refused += 1
            else:
                acknowledged[name] = offsets
                times.append(time.monotonic())

    async def load() -> None:
        """Until so much time has passed in which there were acknowledgements."""
        before = len(times)
        started = time.monotonic()
        while len(times) == before or time.monotonic() - started < LOAD_S:
            await asyncio.sleep(0.1)

    producers = [asyncio.create_task(produce(number)) for number in range(PRODUCERS)]
    for node in (1, 2):
        await load()
        kafka.kill(node)
        await load()
        kafka.restart(node, wait=False)  # here: a node ends with the thread that started it
        await asyncio.to_thread(kafka.wait_ready)
    await load()
    ending.set()
    await asyncio.gather(*producers)
    await appender.close()
    return acknowledged, refused, max(after - before for before, after in pairwise(times))
