"""A pull subscription with a transform: consumers get what it makes, and what it makes nothing of ends."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headgate.objects.kinds.routing import RoutingTable
from tests.subscriptions.test_max_deliveries import SINK, Grave, exhaust, tend
from tests.subscriptions.world import NAME, TIMEOUT_S, US, World, offsets, run

HUNDREDTH = '{"type": "t.v2", "data": {"n": 100 / (data.n - 1)}}'
"""Of every event but the second one."""


def transformed(world: World, transform: str = HUNDREDTH) -> World:
    world.target = dataclasses.replace(world.target, transform=transform)
    world.subscriptions.update(RoutingTable.of(2, 2, {}, (world.target,)))
    return world


def test_consumers_get_what_it_makes_again_and_again(tmp_path: Path) -> None:
    async def work() -> None:
        world = transformed(World(tmp_path))
        world.add(4)
        for turn in range(2):
            pulled = await world.pull()
            assert offsets(pulled) == [0, 2, 3]
            assert [(one.event.event.type, one.event.event.data) for one in pulled.events] == [
                ("t.v2", b'{"n":-100}'),
                ("t.v2", b'{"n":100}'),
                ("t.v2", b'{"n":50}'),
            ]
            world.now_us += int(TIMEOUT_S * US)
            assert {one.deliveries for one in pulled.events} == {turn + 1}
        stats = await world.subscriptions.stats(NAME)
        assert (stats.processed, stats.errors, stats.unacknowledged) == (4, 1, 3)
        (report,) = world.errors.take()
        assert report.filter_errors == 1
        assert report.last_error.startswith("transform: ")

    run(work())


def test_an_event_that_is_held_ends_where_a_new_one_makes_nothing_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.add(3)
        assert offsets(await world.pull()) == [0, 1, 2]
        transformed(world)
        world.now_us += int(TIMEOUT_S * US)
        assert offsets(await world.pull()) == [0, 2]
        stats = await world.subscriptions.stats(NAME)
        assert (stats.errors, stats.unacknowledged, stats.backlog) == (1, 2, 2)

    run(work())


def test_a_dead_letter_holds_what_was_handed_out(tmp_path: Path) -> None:
    async def work() -> None:
        grave = Grave()
        world = transformed(World(tmp_path, max_deliveries=1, dead_letters=grave, dead_letter_uri=SINK))
        world.add(1)
        await exhaust(world, 1)
        await tend(world)
        assert [(one.event.id, one.event.type) for one in grave.letters] == [("e0", "t.v2")]

    run(work())
