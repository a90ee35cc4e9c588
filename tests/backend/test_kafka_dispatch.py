"""Deliveries from a real Kafka to a real subscriber: isolation, catching up, change of owners, kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from pathlib import Path

import pytest
from clusters.kafka import Kafka

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.outbox_reader import OutboxMember
from headgate.delivery.scheduler import Scheduler
from headgate.server.processes.kafka.dispatcher import KafkaDispatcher, kafka_dispatcher
from headgate.server.processes.kafka.partition import KafkaDispatcherOptions
from headgate_api import limits
from tests.backend.dispatch_feed import KEYS, SOURCES, Feed, in_order, made_target
from tests.backend.outbox_stream import OUTBOX_PARTITIONS, outbox_config
from tests.backend.stores import deployed
from tests.delivery.harness import Request, Routes, Subscriber, run
from tests.support import until

pytestmark = pytest.mark.kafka


@pytest.fixture
def config(kafka: Kafka) -> KafkaConfig:
    return deployed(kafka, "events", "outbox", "changelog", "reports", like=outbox_config)


@contextlib.asynccontextmanager
async def dispatching(
    config: KafkaConfig, data: Path, routes: Routes, **more: object
) -> AsyncIterator[KafkaDispatcher]:
    """A dispatcher that runs, and has left the group at the end."""
    stop = asyncio.Event()
    options = KafkaDispatcherOptions(config=config, data=data, token=bytes(32), store=routes, **more)
    async with kafka_dispatcher(options, stop) as dispatcher:
        running = asyncio.create_task(dispatcher.run())
        try:
            yield dispatcher
        finally:
            stop.set()
            await running


class Ledger:
    """What came, by target, whose number is the path of its requests; and what is answered.

    Args:
        answer: Status by target; a target without one is answered 202.
    """

    def __init__(self, answer: Callable[[int], Awaitable[int]]) -> None:
        self._answer = answer
        self.ids: dict[int, list[str]] = defaultdict(list)
        self.seen: dict[int, set[str]] = defaultdict(set)

    async def behave(self, request: Request) -> tuple[int, bytes]:
        target, id_ = int(request.path.strip("/")), request.id
        self.ids[target].append(id_)
        self.seen[target].add(id_)
        return await self._answer(target), b""

    def has(self, feed: Feed, targets: Iterable[int]) -> bool:
        """Whether everything that is stored for them came, and nothing else."""
        return all(self.seen[each] == feed.expected(each) for each in targets)

    def repeats(self, targets: Iterable[int]) -> int:
        return sum(len(self.ids[each]) - len(self.seen[each]) for each in targets)

    def keeps_order(self, target: int) -> bool:
        return all(in_order(self.ids[target], f"{source}-{key}") for source in range(SOURCES) for key in range(KEYS))


async def taken(_: int) -> int:
    return 202


def schedulers_of(dispatcher: KafkaDispatcher) -> list[Scheduler]:
    return [each.deliveries.scheduler for each in dispatcher.partitions.values() if each.deliveries is not None]


def live_counts(dispatcher: KafkaDispatcher) -> list[int]:
    return [each.live_count for each in schedulers_of(dispatcher)]


def lagging(dispatcher: KafkaDispatcher) -> set[int]:
    return {state.target.id for each in schedulers_of(dispatcher) for state in each.behind if state.lag is not None}


@pytest.mark.slow
def test_who_hangs_or_fails_holds_nobody_and_catches_up_from_the_topic(
    config: KafkaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TARGET_QUEUE_MAX", 64)
    monkeypatch.setattr(limits, "EVENT_CACHE_BYTES_MAX", 300_000)
    monkeypatch.setattr(limits, "OUTBOX_CHECKPOINT_RECORDS", 100)
    healthy, hanging, failing = [1, 2, 3, 4, 5, 6], 7, 8
    everybody = [*healthy, hanging, failing]
    feed = Feed(config, lambda source, offset: everybody)
    heals = asyncio.Event()

    async def answer(target: int) -> int:
        if target == hanging:
            await heals.wait()
        return 500 if target == failing and not heals.is_set() else 202

    ledger = Ledger(answer)

    async def main() -> None:
        async with Subscriber(ledger.behave) as subscriber:
            rules = {"retry": None, "backoff_delay_s": 1.0, "timeout_s": 120.0}
            routes = Routes(*(made_target(number, f"{subscriber.url}{number}", **rules) for number in everybody))
            async with dispatching(config, tmp_path, routes) as dispatcher:
                most = 0
                for _ in range(4):
                    await asyncio.to_thread(feed.store, 100)
                    await until(lambda: ledger.has(feed, healthy))
                    most = max(most, *live_counts(dispatcher))
                assert most <= 2 * limits.TARGET_QUEUE_MAX, "what nobody takes is in the topic, not in memory"
                # One that was slow for a moment has everything before its sweep over the topic has ended.
                await until(lambda: lagging(dispatcher) == {hanging, failing})
                assert len(ledger.seen[hanging]) <= limits.TARGET_QUEUE_MAX
                print(f"{len(subscriber.requests)} deliveries before {hanging} answers, at most {most} in memory")
                heals.set()
                await until(lambda: ledger.has(feed, everybody))
                await until(lambda: not any(live_counts(dispatcher)))
            assert ledger.repeats([*healthy, hanging]) == 0

    run(main())


@pytest.mark.slow
def test_an_orderly_change_of_owners_repeats_nothing_and_keeps_dead_letters(
    config: KafkaConfig, tmp_path: Path
) -> None:
    targets, refusing, lagging = [1, 2, 3, 4], 5, 6
    feed = Feed(config, lambda source, offset: [*targets, *([refusing] if offset % 50 == 0 else []), lagging])
    heals = asyncio.Event()

    async def answer(target: int) -> int:
        if target == refusing:
            return 400
        return 503 if target == lagging and not heals.is_set() else 202

    ledger = Ledger(answer)

    async def main() -> None:
        async with Subscriber(ledger.behave) as subscriber:
            ordered = {"ordered": True, "timeout_s": 60.0}
            routes = Routes(
                *(made_target(number, f"{subscriber.url}{number}", **ordered) for number in targets),
                made_target(refusing, f"{subscriber.url}{refusing}", retry=0, dead_letter_uri=""),
                made_target(lagging, f"{subscriber.url}{lagging}", retry=None, backoff_delay_s=0.5),
            )

            def done() -> bool:
                return ledger.has(feed, [*targets, refusing])

            def letters(*dispatchers: KafkaDispatcher) -> int:
                partitions = [each for dispatcher in dispatchers for each in dispatcher.partitions.values()]
                found = [each.deliveries for each in partitions]
                return sum(each.dead_letters.totals.kept for each in found if each is not None)

            async with dispatching(config, tmp_path / "a", routes) as first:
                await asyncio.to_thread(feed.store, 100)
                await until(lambda: done() and letters(first) == len(feed.expected(refusing)))
                assert ledger.ids[lagging]
                async with dispatching(config, tmp_path / "b", routes) as second:
                    await until(lambda: len(first.partitions) == len(second.partitions) == OUTBOX_PARTITIONS // 2)
                    await asyncio.to_thread(feed.store, 100)
                    await until(lambda: done() and letters(first, second) == len(feed.expected(refusing)))
                await asyncio.to_thread(feed.store, 100)
                heals.set()
                await until(lambda: done() and ledger.has(feed, [lagging]))
                await until(lambda: letters(first) == len(feed.expected(refusing)))
            print(f"{len(subscriber.requests)} deliveries, {ledger.repeats(targets)} of them again")
            assert ledger.repeats([*targets, refusing]) == 0
            assert all(ledger.keeps_order(each) for each in targets)

    run(main())


@pytest.mark.slow
def test_pages_that_come_while_others_are_walked_do_not_pause_their_partition(
    config: KafkaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[int] = []
    pause = OutboxMember.pause

    def noted(member: OutboxMember, partitions: Collection[int]) -> None:
        paused.extend(partitions)
        pause(member, partitions)

    monkeypatch.setattr(OutboxMember, "pause", noted)
    targets = [1, 2, 3, 4]
    feed = Feed(config, lambda source, offset: targets)
    ledger = Ledger(taken)

    async def main() -> None:
        async with Subscriber(ledger.behave) as subscriber:
            routes = Routes(*(made_target(number, f"{subscriber.url}{number}") for number in targets))
            async with dispatching(config, tmp_path, routes):
                for _ in range(50):
                    await asyncio.to_thread(feed.store, 2)
                await until(lambda: ledger.has(feed, targets))
                assert not paused
                monkeypatch.setattr(limits, "OUTBOX_PARTITION_WAITING_BYTES_MAX", 1)
                for _ in range(50):
                    await asyncio.to_thread(feed.store, 2)
                await until(lambda: ledger.has(feed, targets))
                assert paused, "what has no room is paused, and goes on"
            assert ledger.repeats(targets) == 0

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
                *(sys.executable, "-m", "tests.backend.dispatch_process", config.bootstrap, config.topic_prefix),
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


@pytest.mark.slow
def test_kill_of_a_process_under_load_loses_nothing_and_keeps_the_order(config: KafkaConfig, tmp_path: Path) -> None:
    count, everybody = 8, range(1, 9)
    feed = Feed(config, lambda source, offset: everybody)
    ledger = Ledger(taken)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Subscriber(ledger.behave) as subscriber, contextlib.AsyncExitStack() as stack:
            processes = []
            for name in ("a", "b"):
                process = await Process.start(config, tmp_path / name, subscriber.url, count)
                stack.push_async_callback(process.end, process.process.kill)
                processes.append(process)
            killed, left = processes
            await until(lambda: all(len(each.partitions) == OUTBOX_PARTITIONS // 2 for each in processes))
            for _ in range(10):
                await asyncio.to_thread(feed.store, 20)
            await until(lambda: len(subscriber.requests) >= count * SOURCES * 50)
            await killed.end(killed.process.kill)
            killed_at = loop.time()
            for _ in range(10):
                await asyncio.to_thread(feed.store, 20)
            await until(lambda: len(left.partitions) == OUTBOX_PARTITIONS)
            taken_s = loop.time() - killed_at
            await until(lambda: ledger.has(feed, everybody))
            print(
                f"{len(subscriber.requests)} deliveries, {ledger.repeats(everybody)} of them again;"
                f" the other had the partitions after {taken_s:.1f} s"
            )
            assert all(ledger.keeps_order(each) for each in everybody if each % 2 == 0)
            await left.end(left.process.terminate)
            assert left.process.returncode == 0

    run(main())
