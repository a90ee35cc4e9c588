"""Takeover: whatever runs start, stall and die, every event counts exactly once and in order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.outbox.link_format import Hello, Row, RunActive, RunRejected
from headgate.outbox.takeover import Accepted, Step, Takeover
from headgate_api import limits
from tests.support import examples


def rows(*offsets: int) -> list[Row]:
    return [(offset, 1, 3) for offset in offsets]


def hello(run: int, start: int, *, partition: int = 0, partitions: int = 1) -> Hello:
    return Hello(run, run * 10, partition, partitions, start)


def kinds(steps: list[Step]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_the_first_run_owns_at_once():
    takeover = Takeover({0: 5})
    assert takeover.open(hello(1, 5)) == [RunActive(1, 10)]
    assert takeover.frames(1, 0, rows(5, 6), 7) == [Accepted(0, 10, rows(5, 6), 7)]
    assert takeover.watermarks() == {0: 7}


def test_what_is_complete_already_is_dropped():
    takeover = Takeover({0: 5})
    takeover.open(hello(1, 2))
    assert takeover.frames(1, 0, rows(2, 4), 5) == []
    assert takeover.frames(1, 0, rows(6), 8) == [Accepted(0, 10, rows(6), 8)]


def test_a_gap_is_rejected():
    takeover = Takeover({0: 5})
    assert kinds(takeover.open(hello(1, 6))) == ["RunRejected"]
    assert takeover.watermarks() == {0: 5}
    assert kinds(takeover.open(hello(1, 5))) == ["RunRejected"], "a dead run stays dead"
    assert takeover.open(hello(2, 5)) == [RunActive(2, 20)]


def test_a_run_is_active_when_it_owns_all_its_partitions():
    takeover = Takeover({})
    assert takeover.open(hello(1, 0, partition=0, partitions=2)) == []
    assert takeover.open(hello(1, 0, partition=1, partitions=2)) == [RunActive(1, 10)]


def test_the_next_run_takes_over_when_it_has_caught_up():
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    takeover.frames(1, 0, rows(*range(10)), 10)
    assert takeover.open(hello(2, 10)) == []
    assert takeover.frames(2, 0, rows(10, 11), 12) == [Accepted(0, 20, rows(10, 11), 12), RunActive(2, 20)]
    assert takeover.frames(1, 0, rows(10, 11), 12) == [], "the old run is retired"
    assert takeover.close(1, 0) == [], "and may go"


def test_the_owner_covers_what_lies_before_the_next_runs_start():
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    assert takeover.open(hello(2, 20)) == []
    assert takeover.frames(2, 0, rows(21), 23) == []
    assert takeover.frames(1, 0, rows(3), 20) == [
        Accepted(0, 10, rows(3), 20),
        Accepted(0, 20, rows(21), 23),
        RunActive(2, 20),
    ]


def test_the_owner_stands_still_at_the_limit_until_the_next_run_is_there():
    near = limits.TAKEOVER_NEAR_EVENTS
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    takeover.frames(1, 0, [], 5_000)
    takeover.open(hello(2, 1_000))
    takeover.frames(2, 0, [], 4_500)  # near enough: the limit is 5,000 + near
    limit = 5_000 + near
    assert takeover.frames(1, 0, rows(5_001, limit, limit + 1), limit + 2) == [Accepted(0, 10, rows(5_001), limit)]
    assert takeover.held_rows(1, 0) == 2
    assert takeover.frames(2, 0, rows(5_001), limit - 1) == []
    assert takeover.held_rows(2, 0) == 0, "who walks to the limit holds nothing, so it is always read"
    assert takeover.frames(2, 0, rows(limit), limit + 1) == [
        Accepted(0, 20, rows(limit), limit + 1),
        RunActive(2, 20),
    ]


def test_the_owner_goes_on_when_the_next_run_dies_at_the_limit():
    near = limits.TAKEOVER_NEAR_EVENTS
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    takeover.frames(1, 0, [], 5_000)
    takeover.open(hello(2, 1_000))
    takeover.frames(2, 0, [], 4_500)
    limit = 5_000 + near
    takeover.frames(1, 0, rows(limit + 1), limit + 2)
    steps = takeover.close(2, 0)
    assert kinds(steps) == ["RunRejected", "Accepted"]
    assert steps[1] == Accepted(0, 10, rows(limit + 1), limit + 2)
    assert takeover.frames(1, 0, rows(limit + 2), limit + 3) == [Accepted(0, 10, rows(limit + 2), limit + 3)]


def test_the_owner_dies_before_the_takeover_ended():
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    takeover.frames(1, 0, [], 5_000)
    takeover.open(hello(2, 4_000))
    takeover.frames(2, 0, [], 4_100)
    assert kinds(takeover.close(1, 0)) == ["RunRejected", "RunActive"]
    assert takeover.frames(2, 0, rows(4_500, 5_000), 5_001) == [Accepted(0, 20, rows(5_000), 5_001)]


def test_the_owner_dies_and_the_next_run_starts_too_late():
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    takeover.frames(1, 0, [], 10)
    takeover.open(hello(2, 20))
    steps = takeover.close(1, 0)
    assert [step.run for step in steps if isinstance(step, RunRejected)] == [1, 2]
    assert takeover.watermarks() == {0: 10}


def test_a_run_that_lost_a_partition_to_a_dead_run_is_rejected():
    takeover = Takeover({})
    for partition in (0, 1):
        takeover.open(hello(1, 0, partition=partition, partitions=2))
    takeover.open(hello(2, 0, partition=0, partitions=2))
    takeover.frames(2, 0, [], 5)  # run 2 owns partition 0, run 1 owns partition 1
    takeover.open(hello(2, 0, partition=1, partitions=2))
    steps = takeover.close(2, 1)
    assert [step.run for step in steps if isinstance(step, RunRejected)] == [2, 1]


def test_an_older_run_that_comes_late_is_refused():
    takeover = Takeover({})
    takeover.open(hello(2, 0))
    assert kinds(takeover.open(hello(1, 0))) == ["RunRejected"]
    assert takeover.frames(2, 0, rows(0), 1) == [Accepted(0, 20, rows(0), 1)]


@pytest.mark.parametrize("second", [hello(1, 0), Hello(1, 11, 1, 2, 0), Hello(1, 10, 1, 3, 0)])
def test_a_run_that_contradicts_itself_is_refused(second: Hello):
    takeover = Takeover({})
    takeover.open(hello(1, 0, partitions=2))
    assert kinds(takeover.open(second)) == ["RunRejected"]


def test_held_rows_are_dropped_as_the_owner_passes_them():
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    takeover.frames(1, 0, [], 10_000)
    takeover.open(hello(2, 11_000))
    takeover.frames(2, 0, rows(*range(11_000, 11_100)), 11_100)
    assert takeover.held_rows(2, 0) == 100
    takeover.frames(1, 0, [], 10_999)
    assert takeover.held_rows(2, 0) == 100
    takeover.frames(1, 0, [], 11_050)
    assert takeover.held_rows(2, 0) == 0, "all has been taken"
    assert takeover.watermarks() == {0: 11_100}


def test_the_newest_run_that_has_passed_the_watermark_takes_over():
    """One in between that is far behind holds nobody up."""
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    takeover.frames(1, 0, [], 5_000)
    takeover.open(hello(2, 0))
    takeover.frames(2, 0, [], 10)
    takeover.open(hello(3, 4_000))
    assert kinds(takeover.frames(3, 0, rows(5_000), 5_001)) == ["Accepted", "RunActive"]
    assert takeover.owner(0) == 3
    assert takeover.frames(2, 0, rows(5_001), 5_002) == []


def test_a_run_goes_on_to_newer_filters_in_each_partition_between_two_events():
    takeover = Takeover({})
    for partition in (0, 1):
        takeover.open(hello(1, 0, partition=partition, partitions=2))
    takeover.frames(1, 1, rows(0), 4)
    assert takeover.frames(1, 0, rows(0, 2), 3, then=11) == [Accepted(0, 10, rows(0, 2), 3)]
    assert takeover.in_force() == {0: (3, 11), 1: (4, 10)}
    assert takeover.frames(1, 0, rows(3), 4) == [Accepted(0, 11, rows(3), 4)]
    assert takeover.frames(1, 1, [], 4, then=12) == [RunActive(1, 11)], "the oldest that a partition has come to"
    assert takeover.frames(1, 0, [], 4, then=12) == [RunActive(1, 12)]


def test_what_was_held_counts_by_the_generation_that_matched_it():
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    takeover.open(hello(2, 20))
    takeover.frames(2, 0, rows(21), 23, then=21)
    takeover.frames(2, 0, rows(23), 24, then=22)
    takeover.frames(2, 0, rows(24), 25)
    assert takeover.frames(1, 0, rows(3), 22) == [
        Accepted(0, 10, rows(3), 22),
        Accepted(0, 20, [], 23),
        Accepted(0, 21, rows(23), 24),
        Accepted(0, 22, rows(24), 25),
        RunActive(2, 22),
    ]


def test_the_owner_that_stands_at_the_limit_changes_behind_it():
    near = limits.TAKEOVER_NEAR_EVENTS
    takeover = Takeover({})
    takeover.open(hello(1, 0))
    takeover.frames(1, 0, [], 5_000)
    takeover.open(hello(2, 1_000))
    takeover.frames(2, 0, [], 4_500)
    limit = 5_000 + near
    assert takeover.frames(1, 0, rows(limit), limit + 2, then=11) == [Accepted(0, 10, [], limit)]
    assert takeover.in_force() == {0: (limit, 10)}
    assert takeover.close(2, 0)[1:] == [Accepted(0, 10, rows(limit), limit + 2), RunActive(1, 11)]


def followed(near_w: int) -> Takeover:
    """A log in which run 1 owns the partition up to `near_w`, and run 2 has said hello."""
    takeover = Takeover({}, holds=False)
    takeover.open(hello(1, 0))
    takeover.frames(1, 0, [], near_w)
    takeover.open(hello(2, 0))
    return takeover


def test_without_holding_a_run_takes_over_when_it_has_passed_the_watermark():
    takeover = followed(5_000)
    assert takeover.frames(2, 0, [], 0) == [], "it has begun, and brought nothing"
    assert takeover.frames(2, 0, [], 4_999) == []
    assert takeover.frames(1, 0, rows(5_000), 5_001) == [Accepted(0, 10, rows(5_000), 5_001)], (
        "nothing limits the owner"
    )
    assert takeover.frames(2, 0, rows(5_000), 5_001) == [RunActive(2, 20)]
    assert takeover.frames(1, 0, rows(5_001), 5_002) == []
    assert takeover.frames(2, 0, rows(5_001), 5_002) == [Accepted(0, 20, rows(5_001), 5_002)]


@pytest.mark.parametrize("behind", [1, 10, limits.TAKEOVER_NEAR_EVENTS])
def test_without_holding_a_run_that_is_near_for_long_takes_over(behind: int):
    """Both are equally fast, and the newer one is always so many events behind."""
    takeover = followed(9_000)
    for passed in range(9_001, 9_001 + 4 * limits.TAKEOVER_NEAR_MISSES_MAX * limits.TAKEOVER_NEAR_MISS_SHARE):
        assert takeover.frames(1, 0, [], passed)
        if takeover.frames(2, 0, rows(passed - behind - 1), passed - behind) == [RunActive(2, 20)]:
            break
    waited, due = passed - 9_000, limits.TAKEOVER_NEAR_MISSES_MAX * limits.TAKEOVER_NEAR_MISS_SHARE
    assert due / 2 < waited < due * 2
    assert takeover.frames(2, 0, rows(passed - 1, passed), passed + 1) == [Accepted(0, 20, rows(passed), passed + 1)]


def test_without_holding_a_run_that_is_far_behind_waits():
    takeover = followed(9_000)
    for passed in range(9_001, 9_001 + 2 * limits.TAKEOVER_NEAR_MISSES_MAX * limits.TAKEOVER_NEAR_MISS_SHARE):
        takeover.frames(1, 0, [], passed)
        assert takeover.frames(2, 0, [], passed - limits.TAKEOVER_NEAR_EVENTS - 1) == []
    assert takeover.state().partitions[0].near_misses == 0


def test_near_misses_of_offsets_with_a_pattern_count_as_well(monkeypatch: pytest.MonkeyPatch):
    """Batches of seven events and the marker of their transaction: no event's offset is a multiple of eight."""
    monkeypatch.setattr(limits, "TAKEOVER_NEAR_MISSES_MAX", 1 << 30)
    takeover = followed(10_000)
    for batch in range(9_000, 9_000 + 8 * 50, 8):
        for passed in range(batch + 1, batch + 8):
            takeover.frames(2, 0, [], passed)
    assert 20 < takeover.state().partitions[0].near_misses < 80


def test_without_holding_near_misses_are_those_of_the_newest_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "TAKEOVER_NEAR_MISS_SHARE", 1)
    takeover = followed(9_000)

    def missed() -> int:
        return takeover.state().partitions[0].near_misses

    takeover.frames(2, 0, [], 8_990)
    assert missed() == 1
    takeover.open(hello(3, 0))
    assert missed() == 0
    takeover.frames(2, 0, [], 8_991)
    assert missed() == 0
    takeover.frames(3, 0, [], 8_991)
    assert Takeover.restored(takeover.state()).state() == takeover.state()
    takeover.end(3, "over")
    assert missed() == 0
    takeover.frames(2, 0, [], 9_000)
    assert (missed(), takeover.owner(0)) == (0, 2)


def test_without_holding_a_run_that_starts_above_the_watermark_is_refused():
    takeover = Takeover({}, holds=False)
    takeover.open(hello(1, 0))
    assert kinds(takeover.open(hello(2, 1))) == ["RunRejected"]
    assert takeover.owner(0) == 1


def test_a_restored_takeover_goes_on_as_the_one_before():
    takeover = Takeover({}, holds=False)
    for run in (1, 2):
        for partition in (0, 1):
            takeover.open(hello(run, 0, partition=partition, partitions=2))
            takeover.frames(1, partition, [], 9_000)
    takeover.frames(2, 0, [], 9_000)  # run 2 owns partition 0, run 1 owns partition 1
    restored = Takeover.restored(takeover.state())
    assert restored.state() == takeover.state()
    assert (restored.owner(0), restored.owner(1)) == (2, 1)
    assert kinds(restored.frames(2, 1, [], 9_000)) == ["RunActive"]
    assert restored.end(1, "over") == [], "it was followed everywhere"


# --- simulation -----------------------------------------------------------------------------------------


@dataclass
class Query:
    """A Spark query as the dispatcher sees it: reads each partition from its start, at its own speed."""

    run: int
    starts: dict[int, int]
    newest: int
    at: dict[int, int] = field(default_factory=dict)
    connected: set[int] = field(default_factory=set)
    generations: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = dict(self.starts)
        self.generations = dict.fromkeys(self.starts, self.newest)


def verdict_of(generation: int) -> int:
    """Tells the rows of one generation from those of the next."""
    return 1 + generation % 3


class World:
    """Partitions of a synthetic log, runs that read it, and an outbox that takes what is accepted."""

    def __init__(self, seed: int, partitions: int) -> None:
        self.random = random.Random(seed)
        self.ends = dict.fromkeys(range(partitions), 0)
        self.matches: dict[int, list[list[int]]] = {p: [] for p in range(partitions)}
        self.outbox: dict[int, list[tuple[int, int]]] = {p: [] for p in range(partitions)}
        self.complete = dict.fromkeys(range(partitions), 0)
        self.takeover = Takeover({})
        self.queries: dict[int, Query] = {}
        self.runs = 0
        self.generation = 1
        self.active: dict[int, int] = {}

    def produce(self) -> None:
        partition = self.random.choice(list(self.ends))
        for _ in range(self.random.randint(1, 40)):
            self.matches[partition].append(self.random.sample(range(5), self.random.randint(0, 3)))
        self.ends[partition] = len(self.matches[partition])

    def start(self) -> None:
        """The matcher starts a run: at the watermark, sometimes at the end (beside another), sometimes in a gap."""
        if len(self.queries) >= 3:
            return
        self.runs += 1
        marks = self.takeover.watermarks()
        starts = {}
        for partition, end in self.ends.items():
            mark = marks.get(partition, 0)
            starts[partition] = self.random.choice([mark, end, self.random.randint(0, mark), max(mark, end - 3)])
        self.queries[self.runs] = Query(self.runs, starts, self.generation)

    def change(self) -> None:
        """Filters change, and the newest run goes on to them: each partition when it comes to it."""
        self.generation += 1
        if self.queries:
            self.queries[max(self.queries)].newest = self.generation

    def speak(self) -> None:
        if not self.queries:
            return
        query = self.random.choice(list(self.queries.values()))
        partition = self.random.choice(list(self.ends))
        if partition not in query.connected:
            query.connected.add(partition)
            first = query.generations[partition]
            said = Hello(query.run, first, partition, len(self.ends), query.starts[partition])
            self.apply(self.takeover.open(said))
            return
        at, end = query.at[partition], self.ends[partition]
        to = self.random.randint(at, end) if at < end else at
        verdict = verdict_of(query.generations[partition])
        spoken = [(o, t, verdict) for o in range(at, to) for t in self.matches[partition][o]]
        query.at[partition] = to
        then = None
        if query.newest > query.generations[partition] and self.random.random() < 0.5:
            then = query.generations[partition] = query.newest
        self.apply(self.takeover.frames(query.run, partition, spoken, to, then=then))

    def crash_run(self) -> None:
        if self.queries:
            run = self.random.choice(list(self.queries))
            query = self.queries.pop(run)
            if query.connected:
                self.apply(self.takeover.close(run, self.random.choice(sorted(query.connected))))

    def crash_dispatcher(self) -> None:
        self.takeover = Takeover(self.complete)
        self.queries.clear()

    def apply(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Accepted():
                    assert step.passed > self.complete[step.partition]
                    for offset, target, verdict in step.rows:
                        assert verdict == verdict_of(step.generation), "rows of another generation"
                        assert self.complete[step.partition] <= offset < step.passed
                        self.outbox[step.partition].append((offset, target))
                    self.complete[step.partition] = step.passed
                case RunRejected():
                    self.queries.pop(step.run, None)
                case RunActive():
                    assert self.active.get(step.run, 0) < step.generation
                    self.active[step.run] = step.generation
                    assert min(generation for _, generation in self.takeover.in_force().values()) >= step.generation
                    # The matcher stops what came before it.
                    for older in [run for run in self.queries if run < step.run]:
                        connected = sorted(self.queries.pop(older).connected)
                        for partition in connected[:1]:
                            self.apply(self.takeover.close(older, partition))

    def finish(self) -> None:
        """No more crashes: the world must come to an end."""
        for _ in range(5_000):
            if self.complete == self.ends:
                return
            if not self.queries:
                self.runs += 1
                marks = self.takeover.watermarks()
                starts = {p: marks.get(p, 0) for p in self.ends}
                self.queries[self.runs] = Query(self.runs, starts, self.generation)
            self.speak()
        raise AssertionError(f"stuck at {self.complete} of {self.ends}")

    def check(self) -> None:
        for partition, matches in self.matches.items():
            expected = [(offset, target) for offset, targets in enumerate(matches) for target in targets]
            assert self.outbox[partition] == expected


@settings(max_examples=examples(300))
@given(
    seed=st.integers(0, 2**32),
    partitions=st.integers(1, 3),
    near=st.sampled_from([0, 1, 5, 1_024]),
    crashes=st.integers(0, 30),
)
def test_every_event_counts_exactly_once_and_in_order(seed: int, partitions: int, near: int, crashes: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "TAKEOVER_NEAR_EVENTS", near)
        world = World(seed, partitions)
        acts = [world.produce] * 20 + [world.start] * 12 + [world.change] * 10 + [world.speak] * 100
        acts += [world.crash_run] * (crashes // 3) + [world.crash_dispatcher] * (crashes // 10)
        for _ in range(400):
            world.random.choice(acts)()
        world.finish()
        world.check()
