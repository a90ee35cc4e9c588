"""An event that consumers get again and again and never acknowledge: `maxDeliveries` ends that."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headgate.delivery.given_up import CODE_NO_ANSWER, DeadLetter
from tests.subscriptions.world import NAME, TIMEOUT_S, US, World, offsets, run

SINK = "http://sink/"


class Grave:
    """Takes letters while it has room."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []
        self.room = True

    async def put(self, letter: DeadLetter) -> None:
        await asyncio.sleep(0)
        self.letters.append(letter)

    def has_room(self, _namespace: str) -> bool:
        return self.room

    def is_over_quota(self, _namespace: str) -> bool:
        return False


async def exhaust(world: World, times: int) -> None:
    """Hand out everything so often, and let each ack timeout pass."""
    for turn in range(times):
        pulled = await world.pull()
        assert {one.deliveries for one in pulled.events} == {turn + 1}
        world.now_us += int(TIMEOUT_S * US)


async def tend(world: World) -> None:
    await world.subscriptions.give_up(world.state)


def test_after_so_many_times_it_is_a_dead_letter_and_the_others_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        grave = Grave()
        world = World(tmp_path, max_deliveries=3, dead_letters=grave, dead_letter_uri=SINK)
        world.add(1)
        await exhaust(world, 3)
        world.add(1)
        assert offsets(await world.pull()) == [1], "handed out three times: not a fourth"
        await tend(world)
        (letter,) = grave.letters
        assert (letter.event.id, letter.attempts, letter.reason, letter.sink) == ("e0", 3, "max-deliveries", SINK)
        assert (letter.destination, letter.code) == (
            "/apis/headgate.dev/v1/namespaces/default/subscriptions/s",
            CODE_NO_ANSWER,
        )
        stats = await world.subscriptions.stats(NAME)
        assert (stats.backlog, stats.unacknowledged, stats.expired) == (1, 1, 1)
        assert not world.errors.take(), "it is kept"

    run(work())


def test_without_a_sink_it_is_dropped_counted_and_told(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, max_deliveries=1, dead_letters=Grave())
        world.add(2)
        await exhaust(world, 1)
        await tend(world)
        (report,) = world.errors.take()
        assert (report.dropped, report.last_dropped) == (
            2,
            "partition 0, offset 1: handed out 1 times, not acknowledged",
        )
        assert (await world.subscriptions.stats(NAME)).expired == 2

    run(work())


def test_a_nack_counts_and_the_last_one_ends_it_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        grave = Grave()
        world = World(tmp_path, max_deliveries=2, dead_letters=grave, dead_letter_uri=SINK)
        world.add(1)
        for _ in range(2):
            pulled = await world.pull()
            await tend(world)
            assert not grave.letters, "it is with a consumer"
            await world.subscriptions.nack(NAME, (pulled.events[0].id,), 0.0)
        await tend(world)
        assert [letter.attempts for letter in grave.letters] == [2]

    run(work())


def test_the_count_outlives_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        grave = Grave()
        world = World(tmp_path, max_deliveries=2, dead_letters=grave, dead_letter_uri=SINK)
        world.add(1)
        await exhaust(world, 2)
        await world.subscriptions.flush()
        world.crash()
        assert offsets(await world.pull()) == []
        await tend(world)
        assert len(grave.letters) == 1

    run(work())


def test_what_is_acknowledged_late_is_no_loss(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, max_deliveries=1)
        world.add(1)
        pulled = await world.pull()
        world.now_us += int(TIMEOUT_S * US)
        assert await world.ack(pulled) == 1, "nobody has given it up yet"
        await tend(world)
        assert not world.errors.take()
        assert (await world.subscriptions.stats(NAME)).expired == 0

    run(work())


def test_a_full_store_loses_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        grave = Grave()
        grave.room = False
        world = World(tmp_path, max_deliveries=1, dead_letters=grave, dead_letter_uri=SINK)
        world.add(1)
        await exhaust(world, 1)
        await tend(world)
        assert (await world.subscriptions.stats(NAME)).unacknowledged == 1
        grave.room = True
        await tend(world)
        assert len(grave.letters) == 1

    run(work())


def test_a_waiting_pull_does_not_turn_in_circles_for_it(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, max_deliveries=1)
        world.add(1)
        await exhaust(world, 1)
        state = world.state
        assert state.cursor.leases.next_due_us("a", world.now_us, state.rules) is None

    run(work())
