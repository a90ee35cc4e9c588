"""Rows are delivered while the disk has not taken them yet. What must not be ahead of the disk, and is not?"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.deadletters.store import DeadLetterStore
from headgate.delivery.cursors import CursorStore
from headgate.log.directory import Partition
from headgate.log.files import FileOps
from headgate.log.reader import PartitionReader
from headgate.objects.kinds.routing import PullRules
from headgate_api import limits
from tests.delivery.harness import (
    EventLog,
    Peer,
    Routes,
    Running,
    Subscriber,
    event,
    matcher,
    refuse,
    run,
    running,
    target,
)
from tests.subscriptions.test_http import ids, serving, subscription
from tests.support import until

WAIT_S_MAX = 60.0
FLUSHES_S = 4 * limits.CURSOR_FLUSH_S


class HeldDisk(FileOps):
    """Syncs nothing while it is held, and refuses to where it is told to."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.is_broken = False

    def fdatasync(self, fd: int) -> None:
        self.free.wait(WAIT_S_MAX)
        if self.is_broken:
            raise OSError(errno.EIO, "broken")
        super().fdatasync(fd)


@contextlib.asynccontextmanager
async def sending(data: Path, subscriber: Subscriber, disk: HeldDisk) -> AsyncIterator[tuple[Running, Peer]]:
    """A dispatcher on such a disk with one target, and a matcher."""
    routes = Routes(target(1, subscriber.url))
    async with running(data, routes, files=disk) as work, matcher(work) as peer:
        yield work, peer


def stored(data: Path) -> tuple[int, int]:
    """The position of the cursors on disk, and the end of the outbox."""
    cursors = CursorStore.read(data / "dispatcher/0/dispatch.db")
    with PartitionReader(Partition(data / "dispatcher/0/outbox", "stop"), start=0) as reader:
        while reader.read() is not None:
            pass
        return cursors.position, reader.position


def test_cursors_wait_until_the_rows_below_them_are_durable(tmp_path: Path, log: EventLog):
    async def work() -> None:
        disk = HeldDisk()
        async with Subscriber() as subscriber, sending(tmp_path, subscriber, disk) as (work, peer):
            log.append([event(n) for n in range(10)])
            peer.match(*((offset, 1) for offset in range(5)))
            await until(lambda: stored(tmp_path) == (6, 6))
            disk.free.clear()
            peer.match(*((offset, 1) for offset in range(5, 10)))
            await until(lambda: len(subscriber.requests) == 10)
            await until(lambda: work.dispatcher.unfinished == 0)
            await asyncio.sleep(FLUSHES_S)
            assert stored(tmp_path) == (6, 6)
            disk.free.set()
            await until(lambda: stored(tmp_path) == (12, 12))

    run(work())


def test_a_target_that_lags_reads_rows_only_when_the_disk_has_them(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "TARGET_QUEUE_MAX", 8)
    count = 60

    async def work() -> None:
        disk = HeldDisk()
        async with Subscriber() as subscriber, sending(tmp_path, subscriber, disk) as (work, peer):
            log.append([event(n) for n in range(count)])
            disk.free.clear()
            peer.match(*((offset, 1) for offset in range(count)))
            await until(lambda: len(subscriber.requests) == 8)
            await asyncio.sleep(FLUSHES_S)
            assert len(subscriber.requests) == 8
            disk.free.set()
            await until(lambda: len(subscriber.requests) == count)
            await until(lambda: work.dispatcher.unfinished == 0)
        assert Counter(subscriber.ids) == {f"e{n}": 1 for n in range(count)}

    run(work())


def test_a_dead_letter_waits_for_its_row(tmp_path: Path, log: EventLog):
    def letters() -> set[int]:
        with contextlib.closing(DeadLetterStore(tmp_path / "dispatcher/0/deadletters.db")) as store:
            return store.positions()

    async def work() -> None:
        disk = HeldDisk()
        async with Subscriber(refuse) as subscriber:
            routes = Routes(target(1, subscriber.url, dead_letter_uri=""))
            async with running(tmp_path, routes, files=disk) as work, matcher(work) as peer:
                log.append([event(0)])
                disk.free.clear()
                peer.match((0, 1))
                await until(lambda: len(subscriber.requests) == 1)
                await asyncio.sleep(FLUSHES_S)
                assert letters() == set()
                disk.free.set()
                await until(lambda: letters() == {0})

    run(work())


@pytest.mark.parametrize("is_broken", [False, True])
def test_what_the_disk_never_took_is_matched_and_delivered_again(tmp_path: Path, log: EventLog, is_broken: bool):
    """Where the disk refuses the last rows until the stop; where it takes them, nothing is repeated."""

    async def work() -> None:
        disk = HeldDisk()
        async with Subscriber() as subscriber:
            async with sending(tmp_path, subscriber, disk) as (work, peer):
                log.append([event(n) for n in range(6)])
                peer.match((0, 1), (1, 1))
                await until(lambda: stored(tmp_path) == (3, 3))
                disk.is_broken = is_broken
                peer.match(*((offset, 1) for offset in range(2, 6)))
                # Rows that come while the disk refuses those before them are not handed on.
                await until(lambda: len(subscriber.requests) >= (3 if is_broken else 6))
                await until(lambda: work.dispatcher.unfinished == 0)
            before = len(subscriber.requests)
            position, end = stored(tmp_path)
            assert position == end
            assert (end == 3) == is_broken
            again = 2 if is_broken else 6
            async with running(tmp_path, Routes(target(1, subscriber.url))) as work:
                async with work.peer() as driver:
                    await driver.driver()
                    assert await driver.ask(op="resume") == {"op": "resume", "offsets": {"0": again}}
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(again, 6)))
                    await until(lambda: len(subscriber.requests) == before + 6 - again)
            assert subscriber.ids[before:] == [f"e{n}" for n in range(again, 6)]

    run(work())


def test_a_subscription_gets_rows_when_the_disk_has_them(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(limits, "PULL_POLL_S", WAIT_S_MAX)  # it is told, and does not look by itself

    async def work() -> None:
        log, disk = EventLog(tmp_path), HeldDisk()
        pulled = dataclasses.replace(subscription(1, "s"), pull=PullRules("shared", 3 * WAIT_S_MAX))
        async with serving(tmp_path, Routes(pulled), files=disk) as (work, ask), matcher(work) as peer:
            log.append([event(n) for n in range(4)])
            peer.match((0, 1))
            await until(lambda: stored(tmp_path)[1] == 2)
            assert ids(await ask("pull", consumer="a", max=9)) == ["e0"]
            disk.free.clear()
            waiting = asyncio.create_task(ask("pull", consumer="a", max=9, wait=30))
            peer.match((1, 1), (2, 1))
            await until(lambda: work.dispatcher.scheduler.handed == 5)
            await asyncio.sleep(FLUSHES_S)
            assert not waiting.done()
            disk.free.set()
            assert ids(await asyncio.wait_for(waiting, 15)) == ["e1", "e2"]  # not when its wait is over
        log.close()

    run(work(), 60)
