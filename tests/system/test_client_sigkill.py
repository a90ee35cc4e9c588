"""Does a client get over the death of its server? SIGKILL in the middle of publishing and consuming, twice."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

from headgate.client import AsyncClient, Client, new_event
from headgate.testing import Server

pytestmark = [pytest.mark.system, pytest.mark.crash]

EVENTS = 20_000
KILLS_AFTER = (4_000, 12_000)
"""The server is killed when so many events were acknowledged to the producer."""
PATIENCE_S = 600.0


@pytest.mark.timeout(1_800)  # three starts of a server
def test_each_event_is_stored_once_and_ends_once_though_the_server_is_killed(tmp_path: Path) -> None:
    with Server(tmp_path / "data", log=tmp_path / "server.log") as server:
        server.create("subscriptions", "default", "all", {"broker": "default", "filter": {"expression": "true"}})
        server.wait_object_ready("subscriptions", "default", "all", seconds=120)
        published = threading.Event()
        found: Counter[int] = Counter()
        acknowledged: set[str] = set()
        repeated: list[str] = []

        async def publish() -> None:
            kills = iter(KILLS_AFTER)
            kill_at = next(kills)
            async with (
                AsyncClient(server.grpc, patience_s=PATIENCE_S) as client,
                client.producer("default", name="p") as producer,
            ):
                for number in range(EVENTS):
                    await producer.send(new_event("n", "/s", {"n": number}, id=str(number)))
                    if number - producer.unacknowledged >= kill_at:
                        kill_at = next(kills, EVENTS)
                        await asyncio.to_thread(restart, server)
            published.set()

        async def consume() -> None:
            async with (
                AsyncClient(server.grpc, patience_s=PATIENCE_S) as client,
                client.subscribe("all", consumer="c") as consumer,
            ):
                while not (published.is_set() and len(found) == EVENTS):
                    batch = await consumer.next_batch(200, wait_s=1.0)
                    for received in batch:
                        found[int(received.event.id)] += 1
                        if received.ack_id in acknowledged:
                            repeated.append(received.ack_id)
                    await consumer.ack(*batch)
                    acknowledged.update(one.ack_id for one in batch)

        async def both() -> None:
            await asyncio.gather(publish(), consume())

        asyncio.run(both())
        with Client(server.grpc) as client, client.read("default", follow=False) as reader:
            stored = [(read.partition, read.offset, int(read.event.id)) for read in reader]
        assert sorted(number for _, _, number in stored) == list(range(EVENTS))
        assert len({(partition, offset) for partition, offset, _ in stored}) == EVENTS
        assert repeated == []
        assert set(found) == set(range(EVENTS))
        assert max(found.values()) == 1
        with Client(server.grpc) as client:
            stats = client.stats("all")
            assert (stats.backlog, stats.unacknowledged) == (0, 0)


def restart(server: Server) -> None:
    server.kill()
    server.start()
