"""Random schedules of who stores events once: owners that stop, wake and take over, while others store, too.

Some producers number their events, and open another stream while an owner has something of the one before.

HEADGATE_TEST_SEED is the first schedule's seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from unittest import mock

import pytest

from headgate.backend.kafka.window_writer import WindowWriter, _Sink
from headgate.log.writer import Encoded, Numbers
from tests import support
from tests.simulation.once_world import Appends, Partition, World
from tests.support import times

SEED = support.SEED or times(1, 1, random.randrange(1, 1 << 31))
RUNS = times(40, 1_000)
MUTANT_RUNS = 150
TOTALS = {"new", "known", "fenced", "unknown", "killed", "stopped", "streams", "numbered", "moved"}


def schedule(seed: int) -> World:
    world = World(seed)
    world.run()
    return world


def test_nothing_is_stored_twice_within_its_window_and_nothing_that_was_accepted_is_lost() -> None:
    totals: dict[str, int] = {}
    for seed in range(SEED, SEED + RUNS):
        world = schedule(seed)
        found = list(world.faults())
        assert not found, "\n".join([f"schedule {seed}", *found[:10]])
        for name, count in world.totals.items():
            totals[name] = totals.get(name, 0) + count
    print(f"{RUNS} schedules from seed {SEED}: {totals}")
    assert totals.keys() == TOTALS, "the schedules must be real"


def test_the_same_seed_is_the_same_schedule() -> None:
    one, two = schedule(7), schedule(7)
    assert one.log == two.log
    assert one.accepted == two.accepted


def _stable_end(partition: Partition) -> int:
    return partition._world.stable()


def _any_stream(numbers: Numbers, newest: int, stream: int) -> bool:
    return numbers.after == newest


def _any_number(numbers: Numbers, newest: int, stream: int) -> bool:
    return numbers.stream >= stream


def _remembering(writer: WindowWriter, take: Callable[[WindowWriter], None] = WindowWriter.take) -> None:
    known = dict(writer._newest)
    take(writer)
    writer._newest |= known


def _without_numbers(
    sink: _Sink, chunk: Encoded, append: Callable[[_Sink, Encoded], Sequence[int]] = _Sink.append
) -> Sequence[int]:
    return append(sink, chunk) if chunk.batch.num_rows else []


MUTANTS = {
    "what others have stored is not read": (WindowWriter, "_catch_up", None),
    "what is not committed yet is not waited for": (Partition, "end", _stable_end),
    "nobody is fenced": (Appends, "_check", None),
    "what has failed is not looked at": (WindowWriter, "_drop_failed", None),
    "an older stream stores behind a newer one": (Numbers, "follow", _any_stream),
    "a stream begins while one before it stores": (Numbers, "follow", _any_number),
    "numbers are known over a takeover": (WindowWriter, "take", _remembering),
    "numbers go with their events alone": (_Sink, "append", _without_numbers),
}


@pytest.mark.parametrize("fault", MUTANTS)
def test_schedules_find_faults(fault: str) -> None:
    kind, name, instead = MUTANTS[fault]
    with mock.patch.object(kind, name, instead or mock.Mock(return_value=None)):
        assert any(next(schedule(seed).faults(), "") for seed in range(SEED, SEED + MUTANT_RUNS))
