"""Who follows the store looks soon after every write of anybody, and seldom while nobody writes."""

from __future__ import annotations

import asyncio
import select
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.objects.store import database
from headgate.objects.store.database import StoreWrites
from headgate.objects.store.store import Store
from headgate_api import limits

WRITE = """
import sys
from pathlib import Path
from headgate.objects.store.database import StoreWrites
from headgate.objects.store.store import Store
store = Store.open(Path(sys.argv[1]))
for line in sys.stdin:
    store.public_url.set(f"http://host-{line.strip()}.example")
    print("written", flush=True)
"""


async def settled(store: Store) -> None:
    """What opening the store wrote is no longer news."""
    await store.change_watch.pause()
    await asyncio.sleep(limits.STORE_QUICK_S)
    while store.change_watch._writes.are_recent(asyncio.get_running_loop().time()):
        await asyncio.sleep(0.1)


def test_a_write_of_another_process_ends_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_LOOK_S", 3_600.0)
    path = tmp_path / "control.db"

    async def work() -> None:
        for number in range(2):
            seen = store.data_version()
            await settled(store)
            pauses = [asyncio.create_task(store.change_watch.pause()) for _ in range(3)]
            await asyncio.sleep(0)
            assert not any(pause.done() for pause in pauses)
            assert writer.stdin is not None
            writer.stdin.write(f"{number + 1}\n")
            writer.stdin.flush()
            async with asyncio.timeout(60):
                await asyncio.gather(*pauses)
                while store.data_version() == seen:
                    await store.change_watch.pause()

    store = Store.open(path)
    with subprocess.Popen(
        [sys.executable, "-c", WRITE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write("0\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
        for _ in range(2):  # on one event loop, and on the next
            asyncio.run(work())
        writer.stdin.close()
    store.close()


def test_the_store_is_looked_at_all_the_same_where_the_kernel_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORE_LOOK_S", 3_600.0)
    monkeypatch.setattr(database, "_watched", lambda _: -1)
    store = Store.open(tmp_path / "control.db")

    async def work() -> None:
        async with asyncio.timeout(60):
            await settled(store)
            await store.change_watch.pause()

    asyncio.run(work())
    store.close()


def test_a_file_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    assert database._watched(tmp_path / "none") == -1


def test_the_looks_after_a_write_are_ever_further_apart(tmp_path: Path) -> None:
    writes = StoreWrites(tmp_path / "none")
    assert writes.watch == -1
    writes._first, now, looks = 100.0, 100.0, list[float]()
    while now < 100.3:
        looks.append(writes.next_look_s(now))
        now += looks[-1]
    assert looks[0] == limits.STORE_SOON_S
    assert looks == sorted(looks)
    assert looks[-1] == limits.ROUTING_POLL_S


def test_who_writes_all_the_time_has_nobody_look_at_each_write(tmp_path: Path) -> None:
    log = tmp_path / "control.db-wal"
    log.write_bytes(b"")
    writes = StoreWrites(tmp_path / "control.db")
    for number in range(100):
        log.write_bytes(b"x")
        assert select.select([writes.watch], [], [], 5) == ([writes.watch], [], [])
        writes.hear(1_000 + number * limits.STORE_SILENCE_S * 0.9)
        assert select.select([writes.watch], [], [], 0) == ([], [], [])
    now = 1_000 + 100 * limits.STORE_SILENCE_S
    assert writes.next_look_s(now) == limits.ROUTING_POLL_S
    assert writes.are_recent(now)
    log.write_bytes(b"y")
    writes.hear(now + 1)
    assert writes.next_look_s(now + 1) == limits.STORE_SOON_S
    writes.close()
