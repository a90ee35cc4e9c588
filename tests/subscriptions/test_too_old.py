"""A broker that keeps its events for a time of its own: consumers get none that is older, and are told how many."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headgate.objects.kinds.routing import RoutingTable
from tests.subscriptions.world import NAME, TIMEOUT_S, US, World, offsets, run


def test_what_its_broker_does_not_keep_any_more_is_handed_out_to_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        delivery = dataclasses.replace(world.target.delivery, retention_us=996 * US)
        world.target = dataclasses.replace(world.target, delivery=delivery)
        world.add(7)  # stored in the seconds 0 to 6, and it is second 1,000
        world.subscriptions.update(RoutingTable.of(1, 2, {}, (world.target,)))
        assert offsets(await world.pull(count=2)) == [4, 5]
        world.now_us += int(TIMEOUT_S * US)
        assert offsets(await world.pull()) == [], "neither what was handed out before nor what was not"
        stats = await world.subscriptions.stats(NAME)
        assert (stats.backlog, stats.unacknowledged, stats.expired) == (0, 0, 7)
        (report,) = world.errors.take()
        assert (report.dropped, report.last_dropped) == (7, "older than the broker's spec.log.retention")

    run(work())
