"""Consumers get no event whose expirytime has passed, neither for the first time nor again."""

from __future__ import annotations

from pathlib import Path

from tests.subscriptions.world import NAME, TIMEOUT_S, US, World, offsets, run


def test_what_is_too_late_is_counted_and_does_not_wait(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.outbox.expiry = {1: "1970-01-01T00:16:39Z", 2: "1970-01-01T00:16:41Z", 3: "1970-01-02T00:00:00Z"}
        world.add(4)
        pulled = await world.pull()
        assert offsets(pulled) == [0, 2, 3], "the clock says 00:16:40"
        stats = await world.subscriptions.stats(NAME)
        assert (stats.expired, stats.rejected, stats.unacknowledged) == (1, 0, 3)
        world.now_us += int(TIMEOUT_S * US)
        assert offsets(await world.pull()) == [0, 3]
        stats = await world.subscriptions.stats(NAME)
        assert (stats.expired, stats.unacknowledged, stats.backlog) == (2, 2, 2)
        assert world.errors.take() == [], "that is what its producer wants"

    run(work())
