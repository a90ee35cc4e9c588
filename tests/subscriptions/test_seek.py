"""Do all consumers go on at the place that somebody sought, and nowhere else? Over restarts and beside sweeps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate.log.directory import Partition
from headgate.log.writer import PartitionWriter
from headgate.outbox.reader import RowPage
from headgate.outbox.writer import OUTBOX_SCHEMA
from headgate.scan.pages import Located, ScanPage, ScanRequest
from headgate.subscriptions.messages import (
    CompletedSeek,
    PlaceNotFoundError,
    SeekBusyError,
    SeekCancelledError,
    SeekGoal,
)
from headgate_api.errors import InvalidInputError
from headgate_api.positions import PositionError
from tests.delivery.harness import EPOCH, EventLog, event
from tests.subscriptions.world import NAME, World, offsets, run


def test_seek_tells_consumers_and_survives_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        log = EventLog(tmp_path)
        log.append([event(n, data=b'{"n":%d}' % n) for n in range(10)])
        log.close()
        world = World(tmp_path)
        world.add(10)
        before = await world.pull()
        assert await world.ack(before) == 10
        world.crash()
        for at in range(10):
            epoch = (await world.subscriptions.seek(NAME, SeekGoal(f"0:{at}"))).epoch
            world.crash()
            pulled = await world.pull()
            assert (offsets(pulled), pulled.epoch) == (list(range(at, 10)), epoch)
            stale = await world.subscriptions.ack(NAME, "a", ids=(before.events[9].id,))
            assert (stale.acknowledged, stale.stale) == (0, (before.events[9].id,))
            for after in (False, True):
                await world.subscriptions.seek(NAME, SeekGoal(first=f"data.n == {at}", after=after))
                assert offsets(await world.pull()) == list(range(at + after, 10))
                await world.subscriptions.seek(NAME, SeekGoal(last=f"data.n <= {at}", after=after))
                assert offsets(await world.pull()) == list(range(at + after, 10))
        await world.subscriptions.seek(NAME, SeekGoal("latest"))
        assert offsets(await world.pull()) == []
        with pytest.raises(PlaceNotFoundError):
            await world.subscriptions.seek(NAME, SeekGoal(first="data.n == 10"))
        world.add(1)
        assert offsets(await world.pull()) == [10]

    run(work())


class Slow:
    """Looks at one event a turn and waits for the test before each."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(0)

    async def scan_page(self, request: ScanRequest) -> ScanPage:
        await self.turns.acquire()
        ((partition, at),) = request.start.items()
        return ScanPage([Located(1, partition, at)] if at == 7 else [], {partition: at + 1})


def test_a_seek_tells_how_far_it_is_and_can_be_broken_off(tmp_path: Path) -> None:
    async def work() -> None:
        log = EventLog(tmp_path)
        log.append([event(n) for n in range(10)])
        log.close()
        world = World(tmp_path)
        world.scanner = slow = Slow()
        world.crash()
        world.add(10)
        before = await world.pull(count=3)
        told: list[tuple[int, int]] = []

        def seek() -> asyncio.Task[CompletedSeek]:
            place = SeekGoal(first="data.x == 1")
            return asyncio.create_task(world.subscriptions.seek(NAME, place, lambda *at: told.append(at)))

        for way in ("cancel", "task"):
            seeking = seek()
            for _ in range(4):
                slow.turns.release()
            while not told or told[-1] != (4, 10):
                await asyncio.sleep(0)
            under_way = world.subscriptions.running_seek(NAME)
            assert under_way is not None
            assert (under_way.scanned, under_way.total) == (4, 10)
            with pytest.raises(SeekBusyError):
                await world.subscriptions.seek(NAME, SeekGoal("latest"))
            if way == "cancel":
                assert world.subscriptions.cancel_seek(NAME)
                with pytest.raises(SeekCancelledError):
                    await seeking
            else:
                seeking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await seeking
            assert not world.subscriptions.cancel_seek(NAME)
            told.clear()
        assert await world.ack(before) == 3, "nothing has moved"
        seeking = seek()
        for _ in range(8):
            slow.turns.release()
        assert await seeking == CompletedSeek(EPOCH + 1, "0:7")
        assert offsets(await world.pull()) == [7, 8, 9]

    run(work())


@pytest.mark.parametrize(
    "place",
    [
        SeekGoal("there"),
        SeekGoal("next"),
        SeekGoal("0:1,0:2"),
        SeekGoal("7:1"),
        SeekGoal("latest", first="true"),
        SeekGoal("earliest", "true", "true"),
        SeekGoal(after=True),
    ],
    ids=str,
)
def test_a_place_that_makes_no_sense_is_refused(tmp_path: Path, place: SeekGoal) -> None:
    async def work() -> None:
        world = World(tmp_path)
        with pytest.raises(InvalidInputError):
            await world.subscriptions.seek(NAME, place)
        assert world.subscriptions.running_seek(NAME) is None

    run(work())


@pytest.mark.parametrize(
    "goal", [SeekGoal("0:11"), SeekGoal("0:11", first="true"), SeekGoal("0:11", last="true")], ids=str
)
def test_a_place_behind_the_end_of_the_log_is_refused(tmp_path: Path, goal: SeekGoal) -> None:
    """A subscription that went there would never get the events that are stored before that place."""

    async def work() -> None:
        log = EventLog(tmp_path)
        log.append([event(n) for n in range(10)])
        log.close()
        world = World(tmp_path)
        world.add(10)
        with pytest.raises(PositionError, match="0:11 is behind the end of this log, 0:10"):
            await world.subscriptions.seek(NAME, goal)
        assert offsets(await world.pull()) == list(range(10)), "the subscription stays where it was"
        await world.subscriptions.seek(NAME, SeekGoal("0:10"))
        assert offsets(await world.pull()) == []
        world.add(1)
        assert offsets(await world.pull()) == [10]

    run(work())


def test_a_seek_while_backlogs_are_looked_at_is_not_undone(tmp_path: Path) -> None:
    async def work() -> None:
        log = EventLog(tmp_path)
        log.append([event(n) for n in range(10)])
        log.close()
        PartitionWriter(Partition(tmp_path / "outbox", "stop"), OUTBOX_SCHEMA).close()
        world = World(tmp_path)
        world.add(5)
        assert await world.ack(await world.pull()) == 5
        world.add(5, target=2)
        begun, let = asyncio.Event(), asyncio.Event()
        read = world.outbox.read

        async def slow(*arguments: Any) -> RowPage:
            begun.set()
            await let.wait()
            return await read(*arguments)

        world.outbox.read = slow  # type: ignore[method-assign]
        sweeping = asyncio.create_task(world.subscriptions.sweep({1}, 0, 0, 0, 0))
        await begun.wait()
        seeking = asyncio.create_task(world.subscriptions.seek(NAME, SeekGoal("earliest")))
        await asyncio.wait([seeking], timeout=0.2)
        let.set()
        await sweeping
        await seeking
        assert offsets(await world.pull()) == [0, 1, 2, 3, 4]

    run(work())
