"""Consumers get no event before its deliverytime, and others meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.objects.kinds.routing import PullType
from tests.subscriptions.world import NAME, US, World, offsets, run

NOW = "1970-01-01T00:16:40Z"
"""What the clock says when a world begins."""


@pytest.mark.parametrize("type_", ["exclusive", "shared", "keyShared"])
def test_what_is_too_early_waits_and_holds_up_nothing(tmp_path: Path, type_: PullType) -> None:
    async def work() -> None:
        world = World(tmp_path, type_)
        world.outbox.key_of = lambda _: "one"
        world.outbox.due = {0: "1970-01-01T00:16:50Z", 2: NOW, 3: "1970-01-01T00:16:41Z"}
        world.add(5)
        first = await world.pull()
        assert offsets(first) == [1, 2, 4]
        await world.ack(first)
        assert offsets(await world.pull()) == []
        world.now_us += 1 * US
        assert offsets(await world.pull()) == [3]
        world.now_us += 9 * US
        assert 0 in offsets(await world.pull())
        stats = await world.subscriptions.stats(NAME)
        assert (stats.accepted, stats.acknowledged) == (5, 3)

    run(work())


def test_a_new_consumer_does_not_get_it_early(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.outbox.due = {0: "1970-01-01T00:17:40Z"}
        world.add(1)
        assert offsets(await world.pull()) == []
        world.subscriptions.leave(NAME, "a")
        assert offsets(await world.pull("d")) == []
        world.now_us += 60 * US
        assert offsets(await world.pull("d")) == [0]

    run(work())
