"""Hundreds of random schedules of faults, kills, clock jumps and bad disks, none of which may lose anything.

HEADGATE_TEST_SEED is the first schedule's seed; schedule n has the seed plus n. One that fails is named with the
command that begins with it. Nothing in it depends on the machine: same seed, same schedule.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import structlog

from headgate.deadletters.pending import Pending
from headgate.delivery import retry
from headgate.delivery.events import SharedEvent
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Fate, Outcome, judge
from headgate.delivery.targets import TargetState
from headgate.delivery.verdicts import FinalCheck
from headgate.objects.kinds.routing import DeliveryRules, Target
from headgate.outbox.link_format import RunActive
from headgate.outbox.shards import Shard
from headgate.outbox.takeover import Step, Takeover
from tests import support
from tests.simulation import matcher
from tests.simulation.verdicts import faults, repeated
from tests.simulation.world import World
from tests.support import times

SEED = support.SEED or times(1, 1, random.randrange(1, 1 << 31))
RUNS = times(20, 400, 10_000)
RUNS_A_TEST = 100
COUNTED = ("events", "attempts", "repeated", "buried", "dropped", "kills", "replies", "pairs", "takeovers", "changes")
"""What schedules have to show; `pairs` are those with two dispatchers."""
MEMORY = Path("/dev/shm")
"""Where files cost no disk, if the system has it: power cuts are not simulated, so nothing has to be durable."""


@pytest.fixture
def quiet() -> Iterator[None]:
    """Hundreds of dispatchers have much to say."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


def schedule(seed: int, *, later: bool = False) -> World:
    """Run one schedule."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-sim-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        world = World(seed, folder, later=later)
        world.run()
        return world
    finally:
        shutil.rmtree(folder)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("done", range(0, RUNS, RUNS_A_TEST))
def test_nothing_is_lost_and_all_is_kept(quiet: None, done: int) -> None:
    totals = dict.fromkeys(COUNTED, 0)
    runs = min(RUNS_A_TEST, RUNS - done)
    for seed in range(SEED + done, SEED + done + runs):
        again = f"HEADGATE_TEST_SEED={seed} .venv/bin/python -m pytest -x tests/simulation"
        try:
            world = schedule(seed)
        except BaseException:
            print(f"schedule {seed} failed; repeat it with: {again}")
            raise
        found = list(faults(world))
        assert not found, "\n".join([f"schedule {seed}; repeat it with: {again}", *found[:10]])
        ledger = world.ledger
        totals["events"] += len(ledger.accepted)
        totals["attempts"] += len(ledger.attempts)
        totals["repeated"] += repeated(ledger)
        totals["buried"] += len(ledger.buried)
        totals["dropped"] += ledger.dropped
        totals["kills"] += sum(life.killed_at is not None for life in ledger.lives)
        totals["pairs"] += world.dispatchers == 2
        totals["takeovers"] += world.takeovers
        totals["changes"] += world.changes
        totals["replies"] += len(ledger.replies)
    print(f"{runs} schedules from seed {SEED + done}: {totals}")
    assert runs < RUNS_A_TEST or all(totals.values()), "the schedules must be real"


@pytest.mark.timeout(3600)
def test_what_waits_for_its_time_is_neither_lost_nor_early(quiet: None) -> None:
    attempts = pending = 0
    for seed in range(SEED, SEED + times(30, 200, 5_000)):
        world = schedule(seed, later=True)
        found = list(faults(world))
        assert not found, "\n".join([f"schedule {seed}", *found[:10]])
        attempts, pending = attempts + len(world.ledger.attempts), pending + world.pending
    assert attempts > pending > 100, "the schedules must be real"


def _remembers_nothing(state: TargetState) -> None:
    return None


def _tries_once_more(rules: DeliveryRules, outcome: Outcome, failures: int, tried_s: float) -> bool:
    return judge(outcome) is Fate.AGAIN and (rules.retry is None or failures <= rules.retry + 1)


def _owns_all(shard: Shard, target: int) -> bool:
    return True


async def _not_stored(pending: Pending, target: Target, delivery: Delivery, event: SharedEvent, due_us: int) -> None:
    pass


def _sent_to_the_first(target: int, dispatchers: int) -> int:
    return 0


def _active_with_the_first(self: Takeover, number: int) -> list[Step]:
    run = self._runs[number]
    if len(run.owned) < run.partitions:
        return []
    generation = max(self._partitions[partition].contenders[0].generations[0][1] for partition in run.owned)
    if run.active is not None and generation <= run.active:
        return []
    run.active = generation
    return [RunActive(number, generation)]


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "said"),
    [
        (TargetState, "cursor", _remembers_nothing, "is lost"),
        (retry, "is_left", _tries_once_more, "allowed"),
        (retry, "is_left", _tries_once_more, "tried for longer"),
        (TargetState, "startable", property(lambda state: bool(state.deliveries.queue)), "at once"),
        (Shard, "owns", _owns_all, "own"),
        (matcher, "dispatcher_of", _sent_to_the_first, "is lost"),
        (Takeover, "_activate", _active_with_the_first, "filters of before"),
    ],
)
def test_a_dispatcher_that_breaks_a_promise_is_found(
    quiet: None, owner: object, name: str, wrong: object, said: str
) -> None:
    with mock.patch.object(owner, name, wrong):
        assert any(said in fault for seed in range(1, 31) for fault in faults(schedule(seed)))


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "said"),
    [
        (FinalCheck, "is_time", lambda *_: True, "is early"),
        (Pending, "put", _not_stored, "is lost"),
    ],
)
def test_a_store_that_breaks_a_promise_is_found(
    quiet: None, owner: object, name: str, wrong: object, said: str
) -> None:
    with mock.patch.object(owner, name, wrong):
        assert any(said in fault for seed in range(1, 31) for fault in faults(schedule(seed, later=True)))


def test_the_same_seed_is_the_same_schedule(quiet: None) -> None:
    one, two = (schedule(7).ledger for _ in range(2))
    assert one.attempts == two.attempts
    assert one.lives == two.lives
