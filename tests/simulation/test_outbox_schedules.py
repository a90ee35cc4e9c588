"""Random schedules of the scaled takeover: runs with different filters, repeats, zombies, dispatchers that die.

HEADGATE_TEST_SEED is the first schedule's seed.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from unittest import mock

import msgspec
import pytest

from headgate.backend.kafka.outbox_records import EventRecord, OverRecord, PassedRecord
from headgate.backend.kafka.outbox_takeover import OutboxTakeover, Outcome
from headgate.outbox.link_format import Hello, Row
from headgate.outbox.takeover import Accepted, Step, Takeover, TakeoverState, _Contender, _Partition
from headgate_api import limits
from tests import support
from tests.simulation.outbox_world import OutboxWorld
from tests.support import times

SEED = support.SEED or times(1, 1, random.randrange(1, 1 << 31))
RUNS = times(40, 1_000)
RUNS_A_TEST = min(250, RUNS)
MUTANT_RUNS = 150


def schedule(seed: int) -> tuple[OutboxWorld, list[str]]:
    """Runs one schedule; returns what went wrong."""
    world = OutboxWorld(seed)
    patient = {"TAKEOVER_NEAR_EVENTS": world.near, "TAKEOVER_NEAR_MISSES_MAX": world.near_misses}
    with mock.patch.multiple(limits, TAKEOVER_NEAR_MISS_SHARE=1, **patient):
        world.run()
    return world, list(world.faults())


@pytest.mark.parametrize("done", range(0, RUNS, RUNS_A_TEST))
def test_each_event_counts_once_for_one_generation(done: int) -> None:
    totals: dict[str, int] = {}
    for seed in range(SEED + done, SEED + done + RUNS_A_TEST):
        world, found = schedule(seed)
        assert not found, "\n".join([f"schedule {seed}", *found[:10]])
        for name, count in world.totals.items():
            totals[name] = totals.get(name, 0) + count
    print(f"{RUNS_A_TEST} schedules from seed {SEED + done}: {totals}")
    assert all(totals.values()), "the schedules must be real"


def test_the_same_seed_is_the_same_schedule() -> None:
    one, two = (schedule(7)[0] for _ in range(2))
    assert [place.log for place in one.partitions] == [place.log for place in two.partitions]


# --- mutants of the rules -----------------------------------------------------------------------------


def _takes_what_is_below(
    _self: Takeover, rows: list[Row], _watermark: int, _limit: int | None
) -> tuple[list[Row], list[Row]]:
    return rows, []


def _accepts_repeats(
    _self: Takeover, partition: int, state: _Partition, owner: _Contender, rows: list[Row], reached: int
) -> list[Step]:
    state.watermark = max(state.watermark, reached)
    return [Accepted(partition, owner.generations[0][1], rows, reached)] if rows else []


_state = Takeover.state
_passed = OutboxTakeover._passed
_event = OutboxTakeover._event


def _forgets_over(_self: OutboxTakeover, _record: OverRecord) -> list[Step]:
    return []


def _passes_one_more(self: OutboxTakeover, record: PassedRecord) -> list[Outcome]:
    return _passed(self, msgspec.structs.replace(record, passed=record.passed + 1))


def _takes_the_first_part(self: OutboxTakeover, position: int, record: EventRecord) -> list[Outcome]:
    return _event(self, position, msgspec.structs.replace(record, more=False))


def _forgets_followers(self: Takeover) -> TakeoverState:
    state = _state(self)
    first = {p: replace(each, contenders=each.contenders[:1], near_misses=0) for p, each in state.partitions.items()}
    return replace(state, partitions=first)


def _forgets_near_misses(cls: type[Takeover], state: TakeoverState) -> Takeover:
    less = {p: replace(each, near_misses=0) for p, each in state.partitions.items()}
    restored: Takeover = _restored(cls, replace(state, partitions=less))
    return restored


_restored = Takeover.restored.__func__  # type: ignore[attr-defined]


def _starts_anywhere(self: Takeover, hello: Hello) -> list[Step]:
    return _open(self, replace(hello, start=0))


_open = Takeover.open


@pytest.mark.parametrize(
    ("mutations", "said"),
    [
        (((Takeover, "_split", _takes_what_is_below), (Takeover, "_accept", _accepts_repeats)), "repeated"),
        (((OutboxTakeover, "_over", _forgets_over),), "was over"),
        (((OutboxTakeover, "_passed", _passes_one_more),), "is lost"),
        (((OutboxTakeover, "_event", _takes_the_first_part),), "counts with"),
        (((OutboxTakeover, "resume_at", OutboxTakeover.next_position),), "a life"),
        (((Takeover, "state", _forgets_followers),), "a life"),
        (((Takeover, "restored", classmethod(_forgets_near_misses)),), "a life"),
        (((Takeover, "open", _starts_anywhere),), "is lost"),
    ],
    ids=["repeats", "over", "passed", "parts", "resume", "state", "misses", "gap"],
)
def test_a_broken_rule_is_found(mutations: tuple[tuple[type, str, object], ...], said: str) -> None:
    with contextlib.ExitStack() as stack:
        for owner, name, wrong in mutations:
            stack.enter_context(mock.patch.object(owner, name, wrong))
        found: list[str] = []
        for seed in range(1, MUTANT_RUNS + 1):
            found += schedule(seed)[1]
            if any(said in fault for fault in found):
                return
    raise AssertionError(f"not found; but {sorted({fault[:60] for fault in found})[:20]}")
