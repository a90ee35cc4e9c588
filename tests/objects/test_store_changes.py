"""Who follows the store looks soon after every commit of anybody, and seldom while nobody writes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.objects.store import database
from headgate.objects.store.store import Store
from headgate.objects.store.writes import default_broker
from headgate.objects.views.copies import ServedBrokers, follow
from headgate_api import limits
from headgate_api.objects.kinds import Kind, Metadata, ObjectKey

ORDERS = msgspec.structs.replace(default_broker(), metadata=Metadata(namespace="shop", name="orders"))
WRITE = """
import sys
from pathlib import Path
from headgate.objects.store.store import Store
store = Store.open(Path(sys.argv[1]))
print("open", flush=True)
for line in sys.stdin:
    store.public_url.set(f"http://host-{line.strip()}.example")
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """One that nobody looks at without a reason."""
    monkeypatch.setattr(limits, "STORE_LOOK_S", 3_600.0)
    return Store.open(tmp_path / "control.db")


async def waits(pause: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """A pause that has begun, and does not end by itself."""
    task = asyncio.create_task(pause())
    await asyncio.sleep(5 * limits.STORE_APART_S)
    assert not task.done()
    return task


def test_a_commit_of_another_process_ends_the_pause_when_it_is_visible(store: Store, tmp_path: Path) -> None:
    async def work(loop: str) -> None:
        pauses = [store.change_watch.follow() for _ in range(3)]
        for pause in pauses:
            await pause()  # the first time there is no wait
        for number in range(20):
            seen = store.data_version()
            waiting = [await waits(pause) if not number else asyncio.create_task(pause()) for pause in pauses]
            assert writer.stdin is not None
            writer.stdin.write(f"{loop}-{number}\n")
            writer.stdin.flush()
            async with asyncio.timeout(60):
                await asyncio.gather(*waiting)
            assert store.data_version() != seen

    with subprocess.Popen(
        [sys.executable, "-c", WRITE, tmp_path / "control.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        for loop in ("one", "next"):
            asyncio.run(work(loop))
        writer.stdin.close()
    store.close()


def test_a_commit_between_two_pauses_ends_the_next_one(store: Store) -> None:
    async def work() -> None:
        pause = store.change_watch.follow()
        await pause()
        await asyncio.to_thread(store.public_url.set, "http://other.example")
        await asyncio.sleep(5 * limits.STORE_APART_S)
        async with asyncio.timeout(60):
            await pause()
        (await waits(pause)).cancel()

    asyncio.run(work())
    store.close()


def test_who_commits_all_the_time_has_nobody_look_at_each(store: Store) -> None:
    async def work() -> None:
        pause, loop = store.change_watch.follow(), asyncio.get_running_loop()
        await pause()
        last_s = loop.time()
        for number in range(5):
            for times in range(3):
                await asyncio.to_thread(store.public_url.set, f"http://host-{number}-{times}.example")
            await pause()
            assert loop.time() - last_s >= limits.STORE_APART_S
            last_s = loop.time()
        (await waits(pause)).cancel()

    asyncio.run(work())
    store.close()


@pytest.mark.parametrize(
    ("look_s", "apart_s"), [(0.01, 0.01 / limits.STORE_LOOKS_SHARE), (0.1, limits.STORE_APART_S_MAX)]
)
def test_looks_that_take_long_are_further_apart(store: Store, look_s: float, apart_s: float) -> None:
    async def work() -> None:
        pause, loop = store.change_watch.follow(), asyncio.get_running_loop()
        await pause()
        for number in range(3):
            began_s = loop.time()
            await asyncio.sleep(look_s)
            await asyncio.to_thread(store.public_url.set, f"http://host-{number}.example")
            await pause()
            assert loop.time() - began_s >= apart_s - 0.001
        (await waits(pause)).cancel()

    asyncio.run(work())
    store.close()


def test_the_store_is_looked_at_all_the_same_where_the_kernel_does_not_tell(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_watched", lambda _: -1)

    async def work() -> None:
        pause = store.change_watch.follow()
        async with asyncio.timeout(60):
            for _ in range(3):
                await pause()

    asyncio.run(work())
    store.close()


def test_a_commit_that_cannot_be_told_is_one_all_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(limits, "STORE_LOOK_S", 0.01)
    monkeypatch.setattr(database.os, "utime", refused)

    async def work() -> None:
        pause, seen = store.change_watch.follow(), store.data_version()
        await asyncio.to_thread(store.public_url.set, "http://other.example")
        async with asyncio.timeout(60):
            while store.data_version() == seen:
                await pause()

    asyncio.run(work())
    assert store.public_url.get() == "http://other.example"
    store.close()


def test_a_file_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    assert database._watched(tmp_path / "none") == -1


def test_copies_are_read_when_an_object_has_changed_and_else_not(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, looks = ServedBrokers(store), list[int]()
    monkeypatch.setattr(brokers, "refresh", lambda: (looks.append(1), ServedBrokers.refresh(brokers)))

    async def eventually(there: bool) -> None:
        async with asyncio.timeout(60):
            while (brokers.get("shop/orders") is not None) is not there:
                await asyncio.sleep(0.01)

    async def work() -> None:
        following = asyncio.create_task(follow(brokers))
        await asyncio.to_thread(store.create, ORDERS)
        await eventually(there=True)
        read = len(looks)
        store.counters.activate(0)  # a commit that changes no object
        await asyncio.sleep(10 * limits.STORE_APART_S)
        assert len(looks) == read
        await asyncio.to_thread(store.delete, ObjectKey(Kind.BROKER, "shop", "orders"))
        await eventually(there=False)
        following.cancel()

    asyncio.run(work())
    store.close()
