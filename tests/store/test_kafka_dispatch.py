"""Deliveries from a real Kafka to a real subscriber: isolation, catching up, change of owners, kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headgate import limits
from headgate.server.kafka.group import KafkaDispatcher, KafkaDispatcherOptions, kafka_dispatcher
from headgate.store.config import KafkaConfig
from headgate.store.kafka.admin import Admin
from headgate.testing.kafka import Kafka
from tests.delivery.harness import Request, Routes, Subscriber, run, until
from tests.store.dispatch_feed import KEYS, SOURCES, Feed, in_order, made_target
from tests.store.outbox_stream import OUTBOX_PARTITIONS, outbox_config

pytestmark = pytest.mark.kafka


@pytest.fixture
def config(kafka: Kafka) -> KafkaConfig:
    made = outbox_config(kafka.bootstrap, f"d{uuid.uuid4().hex[:8]}.")
    Admin(made).create_missing()
    return made


@contextlib.asynccontextmanager
async def dispatching(
    config: KafkaConfig, data: Path, routes: Routes, **more: object
) -> AsyncIterator[KafkaDispatcher]:
    """A dispatcher that runs, and has left the group at the end."""
    stop = asyncio.Event()
    options = KafkaDispatcherOptions(config=config, data=data, store=routes, **more)
    async with kafka_dispatcher(options, stop) as dispatcher:
        running = asyncio.create_task(dispatcher.run())
        try:
            yield dispatcher
        finally:
            stop.set()
            await running


def arrived(subscriber: Subscriber) -> dict[int, list[str]]:
    """Ids by target, in the order in which they came; a target's requests have its number as their path."""
    found: dict[int, list[str]] = defaultdict(list)
    for request in subscriber.requests:
        found[int(request.path.strip("/"))].append(request.id)
    return found


def live_counts(dispatcher: KafkaDispatcher) -> list[int]:
    return [each.scheduler.live_count for each in dispatcher.partitions.values() if each.scheduler is not None]


def test_who_hangs_or_fails_holds_nobody_and_catches_up_from_the_topic(
    config: KafkaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TARGET_QUEUE_MAX", 64)
    monkeypatch.setattr(limits, "EVENT_CACHE_BYTES_MAX", 100_000)
    monkeypatch.setattr(limits, "OUTBOX_CHECKPOINT_RECORDS", 100)
    healthy, hanging, failing = [1, 2, 3, 4, 5, 6], 7, 8
    everybody = [*healthy, hanging, failing]
    feed = Feed(config, lambda source, offset: everybody)
    heals = asyncio.Event()

    async def behave(request: Request) -> tuple[int, bytes]:
        if request.path == f"/{hanging}":
            await heals.wait()
        return (500 if request.path == f"/{failing}" and not heals.is_set() else 202), b""

    async def main() -> None:
        async with Subscriber(behave) as subscriber:
            rules = {"retry": None, "backoff_delay_s": 0.02, "timeout_s": 120.0}
            routes = Routes(*(made_target(number, f"{subscriber.url}{number}", **rules) for number in everybody))
            async with dispatching(config, tmp_path, routes) as dispatcher:
                most = 0
                for _ in range(5):
                    feed.store(120)
                    await until(lambda: all({*arrived(subscriber)[each]} == feed.expected(each) for each in healthy))
                    most = max(most, *live_counts(dispatcher))
                assert most <= 2 * limits.TARGET_QUEUE_MAX + 64, "what nobody takes is in the topic, not in memory"
                schedulers = [each.scheduler for each in dispatcher.partitions.values() if each.scheduler is not None]
                lagging = {state.target.id for each in schedulers for state in each.behind if state.lag is not None}
                assert lagging == {hanging, failing}
                assert len({*arrived(subscriber)[hanging]}) <= limits.TARGET_QUEUE_MAX
                heals.set()
                await until(lambda: {*arrived(subscriber)[failing]} == feed.expected(failing))
                await until(lambda: {*arrived(subscriber)[hanging]} == feed.expected(hanging))
                await until(lambda: not any(live_counts(dispatcher)))
            counts = Counter((target, id_) for target, ids in arrived(subscriber).items() for id_ in ids)
            assert all(count == 1 for (target, _), count in counts.items() if target != failing)

    run(main())


def test_an_orderly_change_of_owners_repeats_nothing_and_keeps_dead_letters(
    config: KafkaConfig, tmp_path: Path
) -> None:
    targets, refusing, lagging = [1, 2, 3, 4], 5, 6
    feed = Feed(config, lambda source, offset: [*targets, *([refusing] if offset % 50 == 0 else []), lagging])
    heals = asyncio.Event()

    async def behave(request: Request) -> tuple[int, bytes]:
        if request.path == f"/{refusing}":
            return 400, b"never"
        return (503 if request.path == f"/{lagging}" and not heals.is_set() else 202), b""

    async def main() -> None:
        async with Subscriber(behave) as subscriber:
            ordered = {"ordered": True, "timeout_s": 60.0}
            routes = Routes(
                *(made_target(number, f"{subscriber.url}{number}", **ordered) for number in targets),
                made_target(refusing, f"{subscriber.url}{refusing}", retry=0, dead_letter_uri=""),
                made_target(lagging, f"{subscriber.url}{lagging}", retry=None, backoff_delay_s=0.2),
            )

            def done() -> bool:
                return all({*arrived(subscriber)[each]} >= feed.expected(each) for each in [*targets, refusing])

            def letters(dispatcher: KafkaDispatcher) -> int:
                return sum(
                    each.dead_letters.totals.kept for each in dispatcher.partitions.values() if each.dead_letters
                )

            async with dispatching(config, tmp_path / "a", routes) as first:
                feed.store(100)
                await until(lambda: done() and letters(first) == len(feed.expected(refusing)))
                tried = len(arrived(subscriber)[lagging])
                assert tried
                async with dispatching(config, tmp_path / "b", routes) as second:
                    await until(lambda: len(first.partitions) == len(second.partitions) == OUTBOX_PARTITIONS // 2)
                    feed.store(100)
                    await until(done)
                    await until(lambda: letters(first) + letters(second) == len(feed.expected(refusing)))
                feed.store(100)
                await until(done)
                heals.set()
                await until(lambda: {*arrived(subscriber)[lagging]} == feed.expected(lagging))
                await until(lambda: letters(first) == len(feed.expected(refusing)))
            found = arrived(subscriber)
            repeats = sum(count - 1 for each in targets for count in Counter(found[each]).values())
            print(f"{sum(len(found[each]) for each in targets)} deliveries, {repeats} of them again")
            assert repeats == 0
            assert Counter(found[refusing]) == Counter(feed.expected(refusing)), "none is tried again"
            for each in targets:
                for source in range(SOURCES):
                    assert all(in_order(found[each], f"{source}-{key}") for key in range(KEYS))

    run(main())


class Process:
    """A dispatcher in a process of its own, and the partitions that it has."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.partitions: list[int] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, config: KafkaConfig, data: Path, url: str, targets: int) -> Process:
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.store.dispatch_process", config.bootstrap, config.topic_prefix),
                *(str(data), url, str(targets)),
                stdout=asyncio.subprocess.PIPE,
            )
        )

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.partitions = json.loads(line)

    async def end(self, how: Callable[[], None]) -> None:
        if self.process.returncode is None:
            how()
        await self.process.wait()
        await self._reading


def test_kill_of_a_process_under_load_loses_nothing_and_keeps_the_order(config: KafkaConfig, tmp_path: Path) -> None:
    count = 8
    feed = Feed(config, lambda source, offset: range(1, count + 1))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Subscriber() as subscriber, contextlib.AsyncExitStack() as stack:
            processes = []
            for name in ("a", "b"):
                process = await Process.start(config, tmp_path / name, subscriber.url, count)
                stack.push_async_callback(process.end, process.process.kill)
                processes.append(process)
            killed, left = processes
            await until(lambda: all(len(each.partitions) == OUTBOX_PARTITIONS // 2 for each in processes))
            for _ in range(20):
                await asyncio.to_thread(feed.store, 25)
            await until(lambda: len(subscriber.requests) >= count * SOURCES * 250)
            await killed.end(killed.process.kill)
            began = loop.time()
            for _ in range(20):
                await asyncio.to_thread(feed.store, 25)
            await until(lambda: len(left.partitions) == OUTBOX_PARTITIONS)
            taken_s = loop.time() - began
            everybody = range(1, count + 1)
            await until(lambda: all({*arrived(subscriber)[each]} == feed.expected(each) for each in everybody))
            found = arrived(subscriber)
            repeats = sum(times - 1 for each in everybody for times in Counter(found[each]).values())
            print(f"{len(subscriber.requests)} deliveries, {repeats} of them again, taken over in {taken_s:.1f} s")
            for each in everybody:
                if each % 2 == 0:
                    for source in range(SOURCES):
                        assert all(in_order(found[each], f"{source}-{key}") for key in range(KEYS)), each
            await left.end(left.process.terminate)
            assert left.process.returncode == 0

    run(main())
