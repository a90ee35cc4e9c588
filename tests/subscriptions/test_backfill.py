"""Does a filter that counts from an earlier place give every event of its history once, and the live ones once?"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headgate.delivery.events import LogEvents
from headgate.delivery.verdicts import FilterErrors, FinalCheck, evaluate
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.filter.skipping.prune import filter_value_rule
from headgate.log.directory import LogDirectory
from headgate.objects.kinds.routing import PullRules, RoutingTable, Target
from headgate.outbox.reader import OutboxRow, OutboxView, RowPage, every_row
from headgate.scan.chunks import ChunkLog
from headgate.scan.pages import LogScanner
from headgate.subscriptions.messages import PlaceNotFoundError, SeekGoal
from headgate.subscriptions.registry import SubscriptionResources
from headgate.subscriptions.service import Subscriptions
from headgate.subscriptions.store import SubscriptionStore
from headgate_api import limits
from headgate_api.event.names import path_of
from tests.delivery.harness import BROKER, EPOCH, EventLog, event, run, spec

NAME = "default/s"
US = 1_000_000
TIMEOUT_S = 30.0
PARTITIONS = 2
Event = tuple[int, int]


class World:
    """A log, what the matcher made of it, and a dispatcher's part that can die."""

    def __init__(self, folder: Path, history: str, cel: str = "data.n % 2 == 0") -> None:
        self.folder = folder
        self.log = EventLog(folder)
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.rows: list[Event] = []
        self.generation = 0
        self.now_us = 1_000 * US
        self.threads = ThreadPoolExecutor(1)
        self.reports = FilterErrors()
        self.put(history, cel, "f1", needs=1)

    def put(self, history: str, cel: str, filter_id: str, needs: int) -> None:
        rules = PullRules("shared", TIMEOUT_S, history, filter_id)
        self.target = Target(1, NAME, BROKER, CompiledFilter(cel, ()), "", spec(), rules, needs)

    def start(self) -> None:
        self.store = SubscriptionStore(self.folder / "subscriptions.db")
        self.events = LogEvents(LogDirectory(self.folder / "log", "stop"))
        scanner = LogScanner(ChunkLog(LogDirectory(self.folder / "log", "stop")), self.threads)
        rule = filter_value_rule("type")
        view = OutboxView(self, self, lambda: len(self.rows))
        resources = SubscriptionResources(
            outbox=view,
            log=ChunkLog(LogDirectory(self.folder / "log", "stop")),
            scanner=scanner,
            rule_of=lambda _: rule,
            events=self.events,
            final_check=FinalCheck(evaluate, self.reports, lambda: self.now_us),
            in_force=lambda: {partition: (end, self.generation) for partition, end in self.ends.items()},
            clock_us=lambda: self.now_us,
        )
        self.subscriptions = Subscriptions(self.store, resources)
        self.update()

    def update(self) -> None:
        self.subscriptions.update(RoutingTable.of(1, 1, {}, (self.target,)))

    def kill(self) -> None:
        self.store.close()
        self.events.close()

    def before(self, floor: Mapping[int, int], since_us: int) -> int:
        return 0

    def stored_end(self) -> int:
        return len(self.rows)

    async def read(
        self, target: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        await asyncio.sleep(0)
        chosen = range(start, min(upto, start + count_max))
        found = [OutboxRow(position, *self.rows[position], Verdict.MATCH) for position in chosen]
        return RowPage(found, chosen.stop if len(found) == count_max else upto)

    def append(self, partition: int, count: int, broker: str = BROKER) -> None:
        """Events are stored and matched by the filters in force; data.n is the event's offset."""
        first = self.ends[partition]
        events = [event(n, data=b'{"n":%d}' % n) for n in range(first, first + count)]
        assert self.log.append(events, partition=partition, broker=broker) == first
        self.ends[partition] += count
        if self.generation >= 1:
            self.rows += [(partition, n) for n in range(first, first + count) if n % 2 == 0]
            self.subscriptions.wake(1)

    async def pull(self, count: int = 100) -> list[Any]:
        return (await self.subscriptions.pull(NAME, "a", count_max=count)).events

    async def drain(self) -> list[Event]:
        seen: list[Event] = []
        while events := await self.pull(7):
            seen += [(one.partition, one.offset) for one in events]
            await self.subscriptions.ack(NAME, "a", ids=tuple(one.id for one in events))
        return seen

    def close(self) -> None:
        self.kill()
        self.log.close()
        self.threads.shutdown()


@pytest.mark.parametrize("seed", range(10))
def test_every_event_once_whatever_dies_when(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def work() -> None:
        history = rng.choice(["beginning", "0:3,1:2", "1:5"])
        first = {"beginning": {}, "0:3,1:2": {0: 3, 1: 2}, "1:5": {1: 5}}[history]
        world = World(tmp_path, history)
        world.start()
        for partition in range(PARTITIONS):
            world.append(partition, rng.randint(5, 12))
        acked: set[Event] = set()
        out: dict[str, Event] = {}
        for step in range(60):
            if step == 10:
                assert not out, "nothing before the filter is in force"
                world.generation = 1
            match rng.choice(["append", "pull", "pull", "ack", "ack", "kill", "wait", "flush"]):
                case "append":
                    world.append(rng.randrange(PARTITIONS), rng.randint(1, 4))
                case "pull":
                    for one in await world.pull(rng.randint(1, 5)):
                        place = (one.partition, one.offset)
                        assert place not in acked
                        out[one.id] = place
                case "ack" if out:
                    chosen = rng.sample(sorted(out), rng.randint(1, len(out)))
                    done = await world.subscriptions.ack(NAME, "a", ids=tuple(chosen))
                    acked |= {out[one] for one in chosen if one not in done.stale}
                case "kill":
                    world.kill()
                    world.start()
                case "wait":
                    world.now_us += rng.choice([1, 31]) * US
                case "flush":
                    await world.subscriptions.flush()
        world.now_us += 100 * US
        rest = await world.drain()
        assert len(rest) == len(set(rest))
        assert not set(rest) & acked
        wanted = {(p, n) for p, end in world.ends.items() for n in range(first.get(p, 0), end) if n % 2 == 0}
        assert set(rest) | acked == wanted
        stats = await world.subscriptions.stats(NAME)
        assert (stats.backlog, stats.history_left) == (0, 0)
        world.close()

    run(work(), 120)


def test_history_comes_first_and_in_order_and_a_seek_goes_back_into_it(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, "beginning")
        world.start()
        for partition in (1, 0, 1):
            world.append(partition, 4)
        assert await world.pull() == []
        world.generation = 1
        world.append(0, 2)
        await world.pull(1)
        world.append(1, 2)
        stats = await world.subscriptions.stats(NAME)
        assert (stats.epoch, stats.backlog) == (EPOCH + 1, 2), "one with its consumer, one that was matched since"
        world.now_us += 31 * US
        everything = [(0, 0), (0, 2), (0, 4), (1, 0), (1, 2), (1, 4), (1, 6), (1, 8)]
        assert await world.drain() == everything
        await world.subscriptions.seek(NAME, SeekGoal("0:3,1:5"))
        assert await world.drain() == [(0, 4), (1, 6), (1, 8)]
        await world.subscriptions.seek(NAME, SeekGoal("latest"))
        assert await world.drain() == []
        await world.subscriptions.seek(NAME, SeekGoal())
        assert await world.drain() == everything
        world.close()

    run(work(), 60)


def test_a_changed_filter_counts_from_its_place_on_and_keeps_what_is_older(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, "")
        world.start()
        world.generation = 1
        world.append(0, 10)
        world.append(1, 0) if world.ends[1] else world.append(1, 1)
        before = await world.pull(2)
        assert [(one.partition, one.offset) for one in before] == [(0, 0), (0, 2)]
        world.put("0:4,1:1", "data.n % 3 == 0", "f2", needs=2)
        world.update()
        assert await world.pull() == [], "the new filter is not in force"
        world.generation = 2
        done = await world.subscriptions.ack(NAME, "a", ids=tuple(one.id for one in before[:1]))
        assert done.acknowledged == 1
        assert await world.drain() == [(0, 6), (0, 9), (1, 0)], "what was matched for the old filter stays, once"
        stale = await world.subscriptions.ack(NAME, "a", ids=(before[1].id,))
        assert stale.stale, "consumers were told"
        world.now_us += 31 * US
        assert await world.drain() == [(0, 2)]
        world.put("0:4,1:1", "data.n % 3 == 0", "f2", needs=3)
        world.update()
        assert await world.drain() == [], "the same filter, compiled anew, has no new history"
        world.close()

    run(work(), 60)


def test_a_history_behind_the_end_of_the_log_is_refused_and_said(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, "0:7")
        world.start()
        world.generation = 1
        world.append(0, 6)
        assert await world.drain() == [(0, 0), (0, 2), (0, 4)], "without history, it has what is matched"
        (report,) = world.reports.take()
        assert report.backlog.startswith(
            "HistoryRefused: spec.filterFrom: position 0:7 is behind the end of this log, 0:6"
        )
        world.close()

    run(work(), 60)


@pytest.mark.parametrize("history", ["beginning", ""])
def test_a_broker_made_anew_has_its_own_history(tmp_path: Path, history: str) -> None:
    """What was matched, or handed out, for the one before does not come any more, wherever the subscription goes on."""
    anew = f"{path_of(BROKER)}/2"

    async def work() -> None:
        world = World(tmp_path, history)
        world.start()
        world.generation = 1
        for partition in range(PARTITIONS):
            world.append(partition, 6)
        assert len(await world.pull(1)) == 1
        # The broker is made anew: the routing table says so before the matcher has its filters in force.
        world.put(history, "data.n % 2 == 0", "f1/2", needs=2)
        world.target = dataclasses.replace(world.target, broker=anew)
        world.update()
        world.generation = 0
        world.append(0, 2, anew)
        if history:
            assert await world.pull() == []
        world.generation = 2
        world.append(1, 2, anew)
        world.now_us += 31 * US
        wanted = [(0, 6), (1, 6)] if history else [(1, 6)]
        assert await world.drain() == wanted
        for place in (SeekGoal("1970-01-01T00:00:00Z"), SeekGoal(), SeekGoal(first="data.n >= 0")):
            await world.subscriptions.seek(NAME, place)
            assert await world.drain() == wanted, place
        with pytest.raises(PlaceNotFoundError):
            await world.subscriptions.seek(NAME, SeekGoal(first="data.n < 6"))
        world.close()

    run(work(), 60)


def test_filter_errors_of_a_history_are_counted_once_however_little_a_pull_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        world = World(tmp_path, "beginning", "12 / (data.n % 4) > 0")
        world.start()
        world.append(0, 8)
        world.generation = 1
        monkeypatch.setattr(limits, "PULL_BYTES_MAX", 0)
        for offset in (1, 2, 3, 5, 6, 7):
            assert [one.offset for one in await world.pull()] == [offset]
        assert await world.pull() == []
        stats = await world.subscriptions.stats(NAME)
        assert (stats.processed, stats.accepted, stats.errors) == (6, 6, 2)
        world.close()

    run(work(), 60)
