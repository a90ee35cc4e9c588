"""Who follows the store looks soon after every write of anybody, and seldom while nobody writes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.objects.store import database
from headgate.objects.store.store import Store
from headgate_api import limits

WRITE = """
import sys
from pathlib import Path
from headgate.objects.store.store import Store
store = Store.open(Path(sys.argv[1]))
for line in sys.stdin:
    store.public_url.set(f"http://host-{line.strip()}.example")
    print("written", flush=True)
"""


async def settled(store: Store) -> None:
    """What opening the store wrote is no longer news."""
    await store.change_watch.pause()
    while (left := store.change_watch._quick_until - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(left)


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
