"""What a power cut repeats: cursors are synced once a second, and what ended since is delivered again. Virtual time.

The cursors and their flusher are real, on a real file; the time of everything is the loop's. At any instant the power
may go: then the file says what the last synced flush said.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from pathlib import Path
from unittest import mock

import pytest

from headgate.delivery.cursors import CursorChange, CursorStore, Flusher
from tests.simulation.virtual import Disk, VirtualLoop, executors

REPEATED_S_MAX = 2.0
"""What docs/howto/damage.md promises."""
SPAN_S = 20.0


class PoweredStore(CursorStore):
    """Knows the position that a power cut leaves: that of the last synced flush."""

    kept = 0

    def flush(self, change: CursorChange) -> None:
        super().flush(change)
        if self.is_synced:
            self.kept = change.position


@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_repeats_the_deliveries_of_two_seconds_at_most(tmp_path: Path, seed: int) -> None:
    rng, loop = random.Random(seed), VirtualLoop()
    disk = Disk(loop, rng)
    disk.slow_s = rng.choice([0.0, 0.0, 0.2])
    ended: list[float] = []
    """When each delivery ended; its index is its position."""
    cuts: list[tuple[float, int, int]] = []
    """Of each instant: the age of the oldest delivery that is repeated, how many are, and how many ended lately."""

    async def deliver(flusher: Flusher) -> None:
        while loop.now < SPAN_S:
            for _ in range(rng.randint(1, 200)):
                ended.append(loop.now)
                flusher.wake()
                await asyncio.sleep(rng.expovariate(100.0))
            await asyncio.sleep(rng.choice([0.0, 0.3, 3.0]))

    async def cut(store: PoweredStore) -> None:
        """The power goes at every one of these instants, and each time it was only looked at."""
        while True:
            await asyncio.sleep(rng.expovariate(50.0))
            repeated = len(ended) - store.kept
            lately = len(ended) - bisect_right(ended, loop.now - REPEATED_S_MAX)
            cuts.append((loop.now - ended[store.kept] if repeated else 0.0, repeated, lately))

    async def work() -> None:
        flusher = Flusher(store, lambda: CursorChange(len(ended), {}, [], []), lambda: None)
        cutting = asyncio.create_task(cut(store))
        await deliver(flusher)
        await asyncio.sleep(REPEATED_S_MAX)
        assert store.kept == len(ended), "of what ended two seconds ago nothing is repeated"
        cutting.cancel()
        await flusher.close()

    asyncio.set_event_loop(loop)
    try:
        with mock.patch("headgate.storage.threads.ThreadPoolExecutor", executors(lambda: disk)):
            store = PoweredStore(tmp_path / "dispatch.db", clock=loop.time)
            loop.run_until_complete(work())
            store.close()
    finally:
        loop.close()
        asyncio.set_event_loop(None)
    age_s, most = max(age for age, _, _ in cuts), max(count for _, count, _ in cuts)
    print(f"{len(cuts)} power cuts among {len(ended)} deliveries repeat {most} at most, none older than {age_s:.2f} s")
    assert all(count <= lately for _, count, lately in cuts)
    assert 0.2 < age_s < REPEATED_S_MAX, "and one flush in many is synced"
