"""What do events answered 202 become when a server of two fronts and two dispatchers gets SIGKILL at any instant?

One server under load: each of its processes is killed alone, then all at once again and again at random instants (while
starting, matching, delivering, changing generation, handing out to consumers); then it is started a last time. One
run, several questions; a failure names its seed.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.system.kills import (
    DISPATCHERS,
    FAULTY,
    HEALTHY,
    KEYS,
    KILLS,
    ORDERED,
    PARTS,
    PULLED,
    SEED,
    Outcome,
    key_of,
    numbers,
    war,
)
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.system, pytest.mark.crash, pytest.mark.timeout(3_600)]

DUPLICATE_SHARE_MAX = 0.05
DUPLICATES_A_KILL_MAX = 100
"""What a trigger had in flight (32), and what had ended since its cursor was last written, while it caught up."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with Subscriber() as subscriber:
        return war(SEED, KILLS, tmp_path_factory.mktemp("war"), subscriber)


def test_the_load_was_real(outcome: Outcome) -> None:
    assert len(outcome.accepted) > 10 * KILLS
    assert all(outcome.expected(wanted) for _, wanted in HEALTHY.values())
    for name in FAULTY:
        assert [good for _, good in outcome.attempts[name]].count(False) >= 5, (name, SEED)
    for consumers in outcome.consumers.values():
        assert len(consumers.confirmed) > 2 * KILLS, SEED
    assert outcome.changes > KILLS, SEED
    assert outcome.parts.keys() == set(PARTS)
    for names in (HEALTHY, ORDERED, PULLED):
        assert {outcome.owners[name] for name in names} == set(range(DISPATCHERS)), "each dispatcher has some"


def test_every_acknowledged_publish_is_read_exactly_once_by_offset(outcome: Outcome) -> None:
    read = Counter(number for _, _, number in outcome.log)
    assert not set(outcome.accepted) - read.keys(), f"lost (seed {SEED})"
    assert max(read.values()) == 1, f"stored twice (seed {SEED})"
    for partition in {partition for partition, _, _ in outcome.log}:
        offsets = [offset for at, offset, _ in outcome.log if at == partition]
        assert offsets == list(range(len(offsets))), f"partition {partition} has holes (seed {SEED})"


def test_acknowledged_events_reach_every_matching_trigger(outcome: Outcome) -> None:
    lost = {name: outcome.expected(wanted) - numbers(outcome.delivered[name]) for name, (_, wanted) in HEALTHY.items()}
    assert not any(lost.values()), f"lost after {KILLS} kills (seed {SEED}): {lost}"
    deliveries = sum(ids.total() for ids in outcome.delivered.values())
    distinct = sum(len(ids) for ids in outcome.delivered.values())
    print(f"{len(outcome.accepted)} accepted, {distinct} delivered, {deliveries - distinct} repeated")
    assert deliveries - distinct <= most_repeated(outcome, distinct, len(HEALTHY)), SEED
    for name, (_, wanted) in HEALTHY.items():
        assert all(wanted(number) for number in numbers(outcome.delivered[name])), "only what it wants may be extra"


def test_subscribers_that_fail_hang_and_reset_lose_nothing_either(outcome: Outcome) -> None:
    for name, (_, wanted, _) in FAULTY.items():
        taken = Counter(number for number, good in outcome.attempts[name] if good)
        ended = taken.keys() | outcome.buried[name].keys()
        assert outcome.expected(wanted) <= ended, f"{name} lost events (seed {SEED})"
        assert all(wanted(number) for number in ended)
        repeated = taken.total() - len(taken) + outcome.buried[name].total() - len(outcome.buried[name])
        print(f"{name}: {len(outcome.attempts[name])} attempts, {len(ended)} ended, {repeated} repeated")
        assert repeated <= most_repeated(outcome, len(ended), 1), (name, SEED)
    assert outcome.buried["refusing"].keys() >= outcome.expected(FAULTY["refusing"][1]), SEED


def most_repeated(outcome: Outcome, distinct: int, triggers: int) -> float:
    """Only a dispatcher's death repeats anything, alone or with all others."""
    kills = outcome.kills + sum(count for part, count in outcome.parts.items() if part.startswith("dispatcher-"))
    return DUPLICATE_SHARE_MAX * distinct + DUPLICATES_A_KILL_MAX * kills * triggers


@pytest.mark.parametrize("name", ORDERED)
def test_order_is_kept_where_it_is_asked_for(outcome: Outcome, name: str) -> None:
    """Of a key no event is even tried before the one stored before it has ended, over all kills and failures."""
    _, wanted, _ = FAULTY[name]
    rows = [(partition, number) for partition, _, number in outcome.log if wanted(number)]
    of_key = {f"k{key}": [number for _, number in rows if key_of(number) == f"k{key}"] for key in range(KEYS)}
    for key, stored in of_key.items():
        assert len({partition for partition, number in rows if key_of(number) == key}) == 1
        place = {number: index for index, number in enumerate(stored)}
        buried = {place[number] for number in outcome.buried[name] if number in place}
        ended: set[int] = set()
        least = 0  # everything below has ended
        for number, good in outcome.attempts[name]:
            if number not in place:
                continue
            while least in ended or least in buried:
                least += 1
            assert place[number] <= least, f"{number} was tried before {stored[least]} had ended (seed {SEED})"
            if good:
                ended.add(place[number])


def test_what_a_consumer_acknowledged_is_never_handed_out_again(outcome: Outcome) -> None:
    for name, (_, wanted, _, _) in PULLED.items():
        consumers = outcome.consumers[name]
        seen = numbers({*consumers.confirmed, *consumers.doubtful})
        assert outcome.expected(wanted) <= seen, f"{name} lost events (seed {SEED})"
        assert all(wanted(number) for number in numbers(consumers.pulled))
        assert consumers.again == [], f"{name}: redelivered after its acknowledgement (seed {SEED})"
        assert max(consumers.confirmed.values()) == 1, f"{name}: acknowledged twice (seed {SEED})"
        repeated = consumers.pulled.total() - len(consumers.pulled)
        print(f"{name}: {len(consumers.pulled)} events pulled, {len(consumers.confirmed)} confirmed, {repeated} again")


def test_cursors_never_move_backwards(outcome: Outcome) -> None:
    for earlier, later in zip(outcome.cursors, outcome.cursors[1:], strict=False):
        for name, position in earlier.items():
            assert later[name] >= position, f"{name} (seed {SEED}): {outcome.cursors}"
    assert len(outcome.cursors[-1]) >= 1 + len(PULLED)
