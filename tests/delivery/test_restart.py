"""What survives: a clean stop, kill -9 at bad moments, lost cursors. Nothing is lost; little comes twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from headgate.delivery.cursors import CursorStore
from headgate.delivery.lifecycle import BACKING_OFF
from headgate.delivery.retry import SYSTEM, Clocks
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.log.writer import PartitionWriter
from headgate.outbox.link_format import Hello
from headgate.outbox.writer import OUTBOX_SCHEMA
from headgate_api import limits
from headgate_api.event.json_format import decode_batch
from tests.delivery.harness import (
    EventLog,
    Peer,
    Request,
    Routes,
    Subscriber,
    event,
    matcher,
    outbox_rows,
    run,
    running,
    target,
)
from tests.support import times, until


def test_a_restart_delivers_what_was_left_and_nothing_else(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "TARGET_QUEUE_MAX", 16)
    hanging = True

    async def choose(request: Request) -> tuple[int, bytes]:
        if hanging and int(request.id[1:]) % 3 == 0:
            await asyncio.sleep(3_600)
        return 202, b""

    async def work() -> None:
        nonlocal hanging
        async with Subscriber(choose) as subscriber:
            routes = Routes(target(1, subscriber.url, timeout_s=60.0), target(2, subscriber.url + "two"))
            async with running(tmp_path, routes, drain_s=0.2) as work:
                log.append([event(n) for n in range(200)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(200)))
                    await until(lambda: len(subscriber.requests) >= 16)
                    await asyncio.sleep(0.1)
            answered = {request.id for request in subscriber.requests if int(request.id[1:]) % 3}
            assert answered
            subscriber.requests.clear()
            hanging = False
            async with running(tmp_path, routes) as work:
                await until(lambda: len(set(subscriber.ids)) >= 200 - len(answered))
                await until(lambda: work.dispatcher.unfinished == 0)
            left = {f"e{n}" for n in range(200)} - answered
            assert Counter(subscriber.ids) == dict.fromkeys(left, 1)
        cursors = CursorStore(tmp_path / "dispatcher" / "0" / "dispatch.db")
        assert cursors.load().targets == ()
        cursors.close()

    run(work())


def test_an_ordered_target_stays_in_order_over_a_restart(tmp_path: Path, log: EventLog):
    stuck_at = 7

    async def choose(request: Request) -> tuple[int, bytes]:
        if int(request.id[1:]) == stuck_at:
            await asyncio.sleep(3_600)
        return 202, b""

    async def work() -> None:
        nonlocal stuck_at
        async with Subscriber(choose) as subscriber:
            routes = Routes(target(1, subscriber.url, ordered=True, timeout_s=60.0))
            async with running(tmp_path, routes, drain_s=0.1) as work:
                log.append([event(n) for n in range(20)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(20)))
                    await until(lambda: len(subscriber.requests) == 8)
            stuck_at = -1
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(20, 30)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(20, 30)))
                    await until(lambda: len(subscriber.requests) == 8 + 23)
            assert subscriber.ids == [f"e{n}" for n in [*range(8), *range(7, 30)]]

    run(work())


@pytest.mark.parametrize("ordered", [pytest.param(False, marks=pytest.mark.slow), True])
def test_retries_survive_a_restart_at_the_right_time(tmp_path: Path, log: EventLog, ordered: bool):
    async def fail(request: Request) -> tuple[int, bytes]:
        return (503 if request.id == "e0" else 202), b""

    async def work() -> None:
        async with Subscriber(fail) as subscriber:
            rules = {"retry": 3, "backoff_policy": "linear", "backoff_delay_s": 0.5, "ordered": ordered}
            routes = Routes(target(1, subscriber.url, **rules))
            async with running(tmp_path, routes) as work:
                log.append([event(0), event(1)])
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1))
                    await until(lambda: "e0" in subscriber.ids and (ordered or "e1" in subscriber.ids))
                    await asyncio.sleep(0.05)
            async with running(tmp_path, routes) as work:
                await until(lambda: subscriber.ids.count("e0") == 4)
                await until(lambda: work.dispatcher.unfinished == 0)
            times = [request.at for request in subscriber.requests if request.id == "e0"]
            assert len(times) == 4, "the first process's attempt counts"
            gaps = [later - earlier for earlier, later in pairwise(times)]
            assert all(gap >= pause - 0.01 for gap, pause in zip(gaps, (0.5, 1.0, 1.5), strict=True)), gaps
            assert subscriber.ids.count("e1") == 1
            if ordered:
                assert subscriber.ids[-1] == "e1"

    run(work())


def test_an_ordered_batch_stays_in_order_when_the_clock_is_set_back_after_a_restart(tmp_path: Path, log: EventLog):
    set_back_us = 0
    tries: list[list[str]] = []

    async def fail(request: Request) -> tuple[int, bytes]:
        tries.append([one.id for one in decode_batch(request.body)])
        return (503 if len(tries) < 3 else 202), b""

    async def work() -> None:
        nonlocal set_back_us
        async with Subscriber(fail) as subscriber:
            rules = {"format": "batch", "batch_size": 3, "batch_wait_s": 0.01, "backoff_policy": "linear"}
            routes = Routes(target(1, subscriber.url, ordered=True, retry=5, backoff_delay_s=0.3, **rules))
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(3)])
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1), (2, 1))
                    await until(lambda: len(tries) == 1)
            clocks = Clocks(now_us=lambda: SYSTEM.now_us() - set_back_us)
            async with running(tmp_path, routes, clocks=clocks) as work:
                states = work.dispatcher.scheduler.states
                await until(lambda: any(state.deliveries.count(BACKING_OFF) for state in states))
                set_back_us = 1_500_000  # longer than the back-off of the first event, which follows
                await until(lambda: bool(states) and not work.dispatcher.unfinished)
            assert [id_ for batch in tries for id_ in batch] == ["e0", "e1", "e2", "e0", "e0", "e1", "e2"]

    run(work())


def test_lost_cursors_repeat_deliveries_and_lose_none(tmp_path: Path, log: EventLog):
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url))
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(10)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(10)))
                    await until(lambda: len(subscriber.requests) == 10)
            for path in tmp_path.glob("dispatcher/0/dispatch.db*"):
                path.unlink()
            async with running(tmp_path, routes) as work:
                await until(lambda: len(subscriber.requests) == 20)
                async with work.peer() as driver:
                    await driver.driver()
                    assert (await driver.ask(op="resume"))["offsets"] == {"0": 10}
            assert Counter(subscriber.ids) == {f"e{n}": 2 for n in range(10)}

    run(work())


def test_cursors_of_another_outbox_are_dropped(tmp_path: Path, log: EventLog):
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url))
            for expected in (5, 10):
                async with running(tmp_path, routes) as work:
                    if expected == 5:
                        log.append([event(n) for n in range(5)])
                    async with matcher(work, start=0) as peer:
                        peer.match(*((offset, 1) for offset in range(5)))
                        await until(lambda count=expected: len(subscriber.requests) == count)
                for path in (tmp_path / "dispatcher" / "0" / "outbox").iterdir():
                    path.unlink()

    run(work())


def test_the_outbox_has_one_owner(tmp_path: Path):
    async def work() -> None:
        async with running(tmp_path, Routes()):
            with pytest.raises(Exception, match="has a writer already"):
                PartitionWriter(Partition(tmp_path / "dispatcher/0/outbox", "stop"), OUTBOX_SCHEMA)

    run(work())


CHILD = """
import asyncio, sys
import uvloop
from pathlib import Path
from tests.delivery.harness import Routes, TOKEN, target
from headgate.server.processes.dispatcher import DispatcherOptions, opened

async def main():
    targets = [target(n, f"http://127.0.0.1:{sys.argv[2]}/{n}", retry=1000, backoff_delay_s=0.05) for n in range(1, 6)]
    ready = lambda: print("ready", flush=True)
    routes = Routes(*targets)
    options = DispatcherOptions(
        data=Path(sys.argv[1]), on_corrupt="stop", token=TOKEN, store=routes, reports=routes, on_ready=ready
    )
    async with opened(options, asyncio.Event()) as dispatcher:
        await dispatcher.run()

uvloop.run(main())
"""


class Child:
    """A dispatcher process that can be killed."""

    def __init__(self, data: Path, port: int) -> None:
        command = [sys.executable, "-c", CHILD, str(data), str(port)]
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=root)

    async def ready(self) -> Child:
        assert self.process.stdout is not None
        while (line := await asyncio.to_thread(self.process.stdout.readline)) != b"ready\n":
            assert line, "the dispatcher ended"
        return self

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.crash
def test_kill_between_outbox_and_delivery_loses_nothing(tmp_path: Path, log: EventLog):
    """The subscriber takes nothing while the dispatcher lives: every row is in the outbox, none is delivered."""
    taking = False

    async def choose(_: Request) -> tuple[int, bytes]:
        return (202 if taking else 503), b""

    async def work() -> None:
        nonlocal taking
        async with Subscriber(choose) as subscriber:
            child = await Child(tmp_path, subscriber.port).ready()
            log.append([event(n) for n in range(100)])
            async with Peer(tmp_path) as driver, Peer(tmp_path) as peer:
                await driver.driver()
                await peer.hello(run_hello(1, 0))
                peer.match(*((offset, n) for offset in range(100) for n in range(1, 6)))
                while (await driver.ask(op="resume"))["offsets"] != {"0": 100}:
                    await asyncio.sleep(0.005)
                await until(lambda: len(outbox_rows(tmp_path)) == 500)  # what is accepted is sent before it is written
                await until(lambda: len({(r.path, r.id) for r in subscriber.requests}) >= 100)
            child.kill()
            await until(lambda: not subscriber.open)  # what was on its way has come
            subscriber.requests.clear()
            taking = True
            child = await Child(tmp_path, subscriber.port).ready()
            await until(lambda: len(subscriber.requests) >= 500)
            await asyncio.sleep(0.2)
            child.kill()
            got = Counter((request.path, request.id) for request in subscriber.requests)
            assert got == {(f"/{n}", f"e{offset}"): 1 for n in range(1, 6) for offset in range(100)}

    run(work())


def run_hello(number: int, start: int) -> Hello:
    return Hello(number, number, 0, 1, start)


def not_ended(data: Path) -> int:
    """How many outbox rows the cursors on disk do not know to have ended."""
    store = CursorStore(data / "dispatcher" / "0" / "dispatch.db")
    cursors = store.load()
    store.close()
    with PartitionReader(Partition(data / "dispatcher/0/outbox", "stop"), start=0) as reader:
        above = reader.committed_offset() - cursors.position
    return above + sum(len(cursor.pending) for cursor in cursors.targets)


@pytest.mark.crash
def test_kill_at_any_moment_loses_nothing_and_repeats_little(tmp_path: Path, log: EventLog):
    """Lives of some 10 to 100 ms under load; the matcher goes on where the dispatcher says."""
    per_life, lives = 60, times(2, 6)

    async def work() -> None:
        async with Subscriber() as subscriber:
            expected: Counter[tuple[str, str]] = Counter()
            repeated_max = 0
            for life in range(lives):
                child = await Child(tmp_path, subscriber.port).ready()
                log.append([event(n) for n in range(life * per_life, (life + 1) * per_life)])
                expected.update({(f"/{n}", f"e{e}"): 1 for n in range(1, 6) for e in range((life + 1) * per_life)})
                async with Peer(tmp_path) as driver, Peer(tmp_path) as peer:
                    await driver.driver()
                    start = (await driver.ask(op="resume"))["offsets"]["0"]
                    repeated_max += 5 * (life * per_life - start)  # what the killed one had not written comes again
                    await peer.hello(run_hello(life + 1, start))
                    for offset in range(start, (life + 1) * per_life):
                        peer.match(*((offset, n) for n in range(1, 6)))
                        await asyncio.sleep(0)
                    await asyncio.sleep(0.02 * life)
                    child.kill()
                    repeated_max += not_ended(tmp_path)
            child = await Child(tmp_path, subscriber.port).ready()
            async with Peer(tmp_path) as driver, Peer(tmp_path) as peer:
                await driver.driver()
                start = (await driver.ask(op="resume"))["offsets"]["0"]
                repeated_max += 5 * (lives * per_life - start)
                await peer.hello(run_hello(lives + 1, start))
                peer.match(*((offset, n) for offset in range(start, lives * per_life) for n in range(1, 6)))
                wanted = set(expected)
                await until(lambda: {(r.path, r.id) for r in subscriber.requests} >= wanted)
            child.kill()
            got = Counter((request.path, request.id) for request in subscriber.requests)
            assert set(got) == wanted
            assert sum(got.values()) - len(got) <= repeated_max, "only what no chunk or flush had recorded came again"

    run(work(), 120.0)
