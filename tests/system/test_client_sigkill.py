"""Do clients get over the death of their server, and the server over that of its clients? SIGKILL, over and over."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from headgate.testing.server import Server
from headgate_client.aio import AsyncClient
from headgate_client.sync import Client
from headgate_client.values import new_event
from tests.support import eventually
from tests.system import mortal
from tests.system.kills import KILLS, SEED
from tests.system.publishing import broker

pytestmark = [pytest.mark.system, pytest.mark.crash]

EVENTS = 20_000
KILLS_AFTER = (4_000, 12_000)
"""The server is killed when so many events were acknowledged to the producer."""
PATIENCE_S = 600.0
LIFE_S_MAX = 3.0
"""A client is killed within this: while Python starts, while it connects, or at work."""
MORTAL_EVENTS = int(KILLS * mortal.RATE_PER_S * LIFE_S_MAX / 2)
"""What clients that get killed publish and consume: as long as that goes on."""
CONSUMERS = ("c0", "c1", "c2")


@pytest.mark.slow
@pytest.mark.timeout(1_800)  # two more starts of the server
def test_each_event_is_stored_once_and_ends_once_though_the_server_is_killed(server: Server) -> None:
    broker(server, "killed")
    server.create("subscriptions", "default", "killed", {"broker": "killed", "filter": {"expression": "true"}})
    server.wait_object_ready("subscriptions", "default", "killed", seconds=120)
    published = threading.Event()
    found: Counter[int] = Counter()
    acknowledged: set[str] = set()
    repeated: list[str] = []

    async def publish() -> None:
        kills = iter(KILLS_AFTER)
        kill_at = next(kills)
        async with (
            AsyncClient(server.grpc, patience_s=PATIENCE_S) as client,
            client.producer("killed", name="p") as producer,
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
            client.subscribe("killed", consumer="c") as consumer,
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
    with Client(server.grpc) as client, client.read("killed", follow=False) as reader:
        stored = [(read.partition, read.offset, int(read.event.id)) for read in reader]
    assert sorted(number for _, _, number in stored) == list(range(EVENTS))
    assert len({(partition, offset) for partition, offset, _ in stored}) == EVENTS
    assert repeated == []
    assert set(found) == set(range(EVENTS))
    assert max(found.values()) == 1
    with Client(server.grpc) as client:
        stats = client.stats("killed")
        assert (stats.backlog, stats.unacknowledged) == (0, 0)


def restart(server: Server) -> None:
    server.kill()
    server.start()


class Mortal:
    """A client in a process of its own, and the file in which all its lives write down what they were told."""

    def __init__(self, server: Server, work: str, name: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tests.system.mortal", work, server.grpc, name, str(MORTAL_EVENTS)]
        self._file = folder / name
        self.start()

    def start(self) -> None:
        with self._file.open("ab") as said:
            self._process = subprocess.Popen(self._command, stdout=said)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def said(self, word: str) -> list[tuple[int, int]]:
        """(nanoseconds, number) of each of its lines with the word."""
        lines = [line.split() for line in self._file.read_text().splitlines()]
        return [(int(moment), int(number)) for moment, said, number in lines if said == word]


@pytest.mark.timeout(900)
def test_no_event_is_lost_or_ends_twice_though_the_clients_are_killed(server: Server, tmp_path: Path) -> None:
    print(f"seed {SEED} (HEADGATE_TEST_SEED={SEED} repeats it)")
    rng = random.Random(SEED)
    server.create("brokers", "default", "mortal", {})
    spec = {"broker": "mortal", "filter": {"expression": "true"}, "type": "shared", "ackTimeout": "PT5M"}
    server.create("subscriptions", "default", "mortal", spec)
    server.wait_object_ready("subscriptions", "default", "mortal", seconds=120)
    producer = Mortal(server, "publish", "producer", tmp_path)
    consumers = [Mortal(server, "consume", name, tmp_path) for name in CONSUMERS]
    everything = list(range(MORTAL_EVENTS))
    try:
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.0, LIFE_S_MAX))
            killed = rng.choice([producer, *consumers])
            killed.kill()
            killed.start()
        with Client(server.grpc) as client:
            eventually(
                lambda: client.stats("mortal").acknowledged >= MORTAL_EVENTS,
                lambda: (client.stats("mortal"), SEED),
                seconds=300,
            )
            with client.read("mortal", follow=False) as reader:
                assert sorted(int(read.event.id) for read in reader) == everything, f"stored once each (seed {SEED})"
    finally:
        for one in (producer, *consumers):
            one.kill()
    told = [number for _, number in producer.said("stored")]
    assert told == sorted(set(told)), f"what was told to be stored was asked for again (seed {SEED})"
    got = [line for consumer in consumers for line in consumer.said("got")]
    acknowledged = [line for consumer in consumers for line in consumer.said("acknowledged")]
    done_at = {number: moment for moment, number in acknowledged}
    assert sorted({number for _, number in got}) == everything, SEED
    assert len(done_at) == len(acknowledged), f"acknowledged twice (seed {SEED})"
    late = [number for moment, number in got if moment > done_at.get(number, moment)]
    assert late == [], f"handed out after its acknowledgement (seed {SEED})"
    untold = MORTAL_EVENTS - len(done_at)
    print(
        f"{len(got)} handed out, {len(got) - MORTAL_EVENTS} of them again; of {untold} acknowledgements nobody was told"
    )
    assert len(got) > MORTAL_EVENTS >= len(done_at) > MORTAL_EVENTS / 2, SEED
