"""Two fronts and the process of the objects as real processes, without Spark: SIGKILL of one front after the other."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.event.arrow import from_batch_all
from headgate.ingress.partitions import partition_of_key
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.server import child, ready
from headgate.server.parts import Role, ServerPart
from headgate.settings import Settings
from headgate.testing.server import free_port
from headgate_client.aio import AsyncClient
from headgate_client.values import new_event
from tests.support import eventually

WAIT_S_MAX = 60.0
PARTITIONS = 4
KEYS = 6
KILLS = 5
FRONTS = (ServerPart(Role.FRONT, 0), ServerPart(Role.FRONT, 1))
PARTS = (ServerPart(Role.CONTROL), *FRONTS)
DOWN = (OSError, http.client.HTTPException)


class Processes:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._environment = child.environment(settings, bytes(32))
        self._running: dict[ServerPart, subprocess.Popen[bytes]] = {}

    def start(self, part: ServerPart) -> None:
        command = [sys.executable, "-m", "headgate.server", part.name]
        self._running[part] = subprocess.Popen(command, stdin=subprocess.PIPE, env=self._environment)

    def wait_ready(self) -> None:
        def are_ready() -> bool:
            return all(is_ready for part, is_ready in ready.parts_ready(self.settings).items() if part in PARTS)

        eventually(are_ready, lambda: ready.states(self.settings))

    def kill(self, part: ServerPart) -> None:
        """SIGKILL; returns when its successor works."""
        process = self._running[part]
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
        ready.ended(self.settings.run_directory, part.name, "killed")
        self.start(part)
        self.wait_ready()

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    listen, grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    settings = Settings(data=tmp_path / "data", listen=listen, grpc=grpc, fronts=2, partitions=PARTITIONS)
    settings.metrics_directory.mkdir(parents=True)
    running = Processes(settings)
    for part in PARTS:
        running.start(part)
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def stored(settings: Settings) -> dict[int, list[str]]:
    """Ids by partition, in order."""
    found: dict[int, list[str]] = {}
    for number in range(PARTITIONS):
        found[number] = []
        with PartitionReader(Partition(settings.log_directory / str(number), "stop"), start=0) as reader:
            while (chunk := reader.read()) is not None:
                found[number] += [one.event.id for one in from_batch_all(chunk.batch)]
    return found


class Load:
    """Publishers in threads, each with one event under way; one that is not accepted is sent again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self.accepted: list[str] = []
        self.failures: Counter[str] = Counter()
        """By key, the most tries of one event that were not accepted."""
        names = [("free0", ""), ("free1", ""), *((f"k{number}", f"k{number}") for number in range(KEYS))]
        self._threads = [threading.Thread(target=self._publish, args=one) for one in names]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _publish(self, name: str, key: str) -> None:
        connection = http.client.HTTPConnection(self._settings.host, self._settings.port, timeout=30)
        headers = {"ce-specversion": "1.0", "ce-source": "/s", "ce-type": "t"}
        if key:
            headers["ce-partitionkey"] = key
        for number in itertools.count():
            failures = 0
            while not self._stop.is_set():
                try:
                    connection.request("POST", "/default/default", b"", headers | {"ce-id": f"{name}-{number}"})
                    answer = connection.getresponse()
                    answer.read()
                except DOWN:
                    connection.close()
                    time.sleep(0.05)  # the system closes the sockets of a dead process one after the other
                else:
                    if answer.status == 202:
                        self.accepted.append(f"{name}-{number}")
                        break
                    assert (answer.status, answer.getheader("retry-after")) == (503, "5")
                    time.sleep(0.1)
                failures += 1
                self.failures[key] = max(self.failures[key], failures)
            if self._stop.is_set():
                connection.close()
                return


@pytest.mark.slow
def test_nothing_is_lost_and_keys_keep_their_order_though_fronts_are_killed(processes: Processes) -> None:
    rng = random.Random(7)
    load = Load(processes.settings)
    try:
        for kill in range(KILLS):
            time.sleep(rng.uniform(0.2, 1.0))
            processes.kill(FRONTS[kill % 2])
    finally:
        load.stop()
    found = stored(processes.settings)
    everything = {one for ids in found.values() for one in ids}
    assert len(load.accepted) > 200
    assert set(load.accepted) <= everything
    assert load.failures[""] <= 1, "who connects anew is at the other front"
    orders: defaultdict[str, list[int]] = defaultdict(list)
    for partition, ids in found.items():
        for id_ in ids:
            name, _, number = id_.partition("-")
            if name.startswith("k"):
                assert partition == partition_of_key(name, PARTITIONS)
                orders[name].append(int(number))
    for name, numbers in orders.items():
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers)), f"{name} lost its order"


@pytest.mark.slow  # as with fronts on Kafka, and in the contract of numbered events
def test_numbered_events_are_stored_once_though_fronts_are_killed(processes: Processes) -> None:
    names, count = ("p0", "p1", "p2"), 1_500

    async def publish(client: AsyncClient, name: str) -> None:
        async with client.producer("default", name=name) as producer:
            for number in range(count):
                key = {"partitionkey": f"k{number % KEYS}"} if number % 3 else None
                await producer.send(new_event("n", "/s", id=f"{name}-{number}", extensions=key))
                if number % 10 == 0:
                    await asyncio.sleep(0.03)

    async def work() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(AsyncClient(processes.settings.grpc, patience_s=120)) for _ in names
            ]
            publishing = [asyncio.create_task(publish(*one)) for one in zip(clients, names, strict=True)]
            for kill in range(3):
                await asyncio.sleep(0.7)
                await asyncio.to_thread(processes.kill, FRONTS[kill % 2])
            await asyncio.gather(*publishing)

    asyncio.run(asyncio.wait_for(work(), 240))
    found = Counter(one for ids in stored(processes.settings).values() for one in ids)
    assert found.keys() == {f"{name}-{number}" for name in names for number in range(count)}
    assert max(found.values()) == 1


@pytest.mark.slow  # tests/observe/test_metrics.py adds processes up, and system/test_tls.py runs two fronts
def test_numbers_of_both_fronts_are_on_one_page(processes: Processes) -> None:
    load = Load(processes.settings)
    time.sleep(0.5)
    load.stop()
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        with urllib.request.urlopen(f"{processes.settings.url}/metrics") as answer:
            page = answer.read().decode()
        lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        accepted = float(lines["headgate_events_accepted_total"]) == len(load.accepted)
        if accepted and "headgate_brokers" in lines:  # which another process writes, in its own time
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert float(lines["headgate_brokers"]) == 1
