"""The loop keeps one run in force, whatever happens to runs, filters and the dispatcher."""

from __future__ import annotations

import gc
import itertools
import math
import threading
from collections.abc import Mapping

import pytest

from headgate.match.driver_link import LinkAddress, Message
from headgate.match.errors import DriverLinkError, RunFailedError, SparkGoneError
from headgate.match.generations import Matcher
from headgate.objects.kinds.routing import RoutingTable
from headgate.outbox.link_format import LinkEndpoint, RunActive, RunRejected
from headgate_api import limits
from headgate_api.errors import UnavailableError

ADDRESS = LinkAddress((LinkEndpoint("127.0.0.1", 1),), bytes(32))
CHANGES_APART_S = 0.05


class FakeRouting:
    def __init__(self) -> None:
        self.generation = 1
        self.commits = 0
        self.active: list[int] = []
        self.broken = False
        self.outdated = 0

    def data_version(self) -> int:
        return self.commits

    def desired_generation(self) -> int:
        return self.generation

    def snapshot(self) -> RoutingTable:
        return RoutingTable(self.generation, self.generation, {}, {}, self.outdated)

    def set_active_generation(self, generation: int) -> None:
        if self.broken:
            raise UnavailableError("disk full")
        self.active.append(generation)

    def change(self) -> None:
        self.generation += 1
        self.commits += 1


class FakeRun:
    def __init__(self, number: int, generation: int, start: Mapping[int, int]) -> None:
        self.number = number
        self.generation = generation
        self.start = dict(start)
        self.alive = True
        self.stopped = False

    def failure(self) -> str:
        return "it died"

    def stop(self) -> None:
        self.alive = False
        self.stopped = True


class World:
    """A clock, a dispatcher, Spark and the store, all of which do as they are told."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.routing = FakeRouting()
        self.runs: list[FakeRun] = []
        self.refusals = 0
        self.goes_on = False
        self.changes: list[tuple[int, int]] = []
        self.link_up = True
        self.address = ADDRESS
        self.inbox: list[Message] = []
        self.heard = 0
        self.until = 0.0
        self.told: list[tuple[int, int]] = []
        self.links = 0
        self.ready: list[bool] = []
        self.notes: list[str] = []
        self.spark_gone = False
        self.settled: list[float] = []
        self.matcher = Matcher(
            self.routing,
            self,
            self._connect,
            on_active=self.routing.set_active_generation,
            on_ready=self.ready.append,
            on_note=self.notes.append,
            on_settled=lambda: self.settled.append(self.now),
            first_run=5,
            clock=lambda: self.now,
        )

    # what the matcher sees of Spark
    def ends(self) -> dict[int, int]:
        return {0: 900, 1: 901}

    def start(self, *args: object) -> FakeRun:  # the runner's with four arguments
        table, number, start, link = args
        assert isinstance(table, RoutingTable)
        assert link == ADDRESS
        if self.refusals:
            self.refusals -= 1
            raise RunFailedError("no")
        run = FakeRun(number, table.generation, start)
        self.runs.append(run)
        return run

    def change(self, number: int, table: RoutingTable) -> bool:
        if self.goes_on:
            self.changes.append((number, table.generation))
        return self.goes_on

    # what it sees of the dispatcher
    def _connect(self) -> World:
        if not self.link_up:
            raise DriverLinkError("nobody there")
        self.links += 1
        return self

    def resume(self) -> dict[int, int]:
        return {0: 10, 1: 20}

    def started(self, run: int, generation: int) -> None:
        self.told.append((run, generation))

    def receive(self, timeout_s: float) -> list[Message]:
        if not self.link_up:
            raise DriverLinkError("broken")
        if not self.inbox and self.heard == self.routing.commits:  # a commit wakes it, too
            self.now = min(self.now + timeout_s, self.until if self.until > self.now else math.inf)
        self.heard = self.routing.commits
        messages, self.inbox = self.inbox, []
        return messages

    def close(self) -> None:
        pass

    # what tests do
    def step(self, seconds: float = 0.0) -> None:
        """At least one step, and as many as fill the time."""
        self.until = self.now + seconds
        self._step()
        while self.now < self.until:
            self._step()

    def _step(self) -> None:
        def pause(seconds: float) -> None:
            self.now += seconds

        self.matcher.step(pause)

    def hear(self, *messages: Message) -> None:
        self.inbox += messages
        self.step()

    def in_force(self, number: int) -> FakeRun:
        run = next(run for run in self.runs if run.number == number)
        self.hear(RunActive(run.number, run.generation))
        return run


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # it takes a second where thousands of tests are objects
    return World()


def test_the_first_run_starts_where_the_dispatcher_says(world: World) -> None:
    world.step(1)
    [run] = world.runs
    assert (run.number, run.generation, run.start) == (5, 1, {0: 10, 1: 20})
    assert world.told == [(5, 1)]
    assert world.ready == []
    assert world.routing.active == []
    world.in_force(5)
    assert world.ready == [True]
    assert world.routing.active == [1]
    world.step(5)
    assert world.runs == [run]
    assert not run.stopped


def test_it_waits_for_filters_that_are_to_be_compiled_anew(world: World) -> None:
    world.routing.outdated = 7
    world.step(60)
    assert world.runs == []
    assert world.notes[-1] == "waits for the control process, which has 7 filters to compile anew"
    world.routing.outdated = 0
    world.step()
    assert [run.start for run in world.runs] == [{0: 10, 1: 20}]


def test_it_waits_for_the_dispatcher(world: World) -> None:
    world.link_up = False
    world.step(60)
    assert world.runs == []
    world.link_up = True
    world.step()
    assert len(world.runs) == 1


def test_a_change_of_filters_starts_the_next_run_beside_and_from_the_end(world: World) -> None:
    world.step()
    first = world.in_force(5)
    world.routing.change()
    world.step(0.3)
    second = world.runs[1]
    assert (second.number, second.generation, second.start) == (6, 2, {0: 900, 1: 901})
    assert not first.stopped
    world.in_force(6)
    assert first.stopped
    assert world.routing.active == [1, 2]
    assert world.ready == [True]


def test_changes_in_a_row_cost_one_run(world: World) -> None:
    world.step(1)
    world.in_force(5)
    for _ in range(5):
        world.routing.change()
        world.step(limits.MATCH_QUIET_S_MAX / 2)
    assert len(world.runs) == 1
    world.step(2 * limits.MATCH_QUIET_S_MAX)
    assert [run.generation for run in world.runs] == [1, 6]


def test_changes_that_never_end_are_taken_up_all_the_same(world: World) -> None:
    world.step()
    world.in_force(5)
    began = world.now
    while len(world.runs) == 1:
        world.routing.change()
        world.step(CHANGES_APART_S)
        assert world.now < began + limits.MATCH_CHANGING_S_MIN + 0.2
    assert world.runs[1].generation == world.routing.generation


@pytest.mark.parametrize(
    ("took_s", "apart_s"), [(0.05, limits.MATCH_CHANGING_S_MIN), (1.0, 4.0), (3.0, 5.0), (8.0, 8.0)]
)
def test_changes_that_never_end_start_runs_the_less_often_the_longer_a_start_takes(
    world: World, took_s: float, apart_s: float
) -> None:
    starts = []
    for _ in range(6):
        while len(world.runs) == len(starts):
            world.routing.change()
            world.step(CHANGES_APART_S)
        starts.append(world.now)
        while world.now < starts[-1] + took_s:
            world.routing.change()
            world.step(CHANGES_APART_S)
        world.in_force(world.runs[-1].number)
    apart = [later - earlier for earlier, later in itertools.pairwise(starts[1:])]
    assert apart == pytest.approx([apart_s] * 4, abs=6 * CHANGES_APART_S)


def test_commits_that_change_no_filter_start_nothing(world: World) -> None:
    world.step()
    world.in_force(5)
    for _ in range(20):
        world.routing.commits += 1
        world.step(0.1)
    assert len(world.runs) == 1


def test_changes_during_a_takeover_skip_to_the_newest(world: World) -> None:
    world.step()
    world.in_force(5)
    world.routing.change()
    world.step(0.3)
    for _ in range(3):
        world.routing.change()
        world.step(1)
    assert len(world.runs) == 2
    world.in_force(6)
    world.step(1)
    assert [run.generation for run in world.runs] == [1, 2, 5]
    world.in_force(7)
    assert [run.stopped for run in world.runs] == [True, True, False]
    assert world.routing.active == [1, 2, 5]


# --- runs that go on to newer filters ---------------------------------------------------------------


@pytest.fixture
def running(world: World) -> World:
    """A run is in force that can go on to other filters."""
    world.step()
    world.in_force(5)
    world.goes_on = True
    return world


def test_the_run_in_force_goes_on_to_newer_filters(running: World) -> None:
    running.routing.change()
    running.step(0.3)
    assert (running.changes, running.routing.active) == ([(5, 2)], [1])
    running.hear(RunActive(5, 2))
    assert running.routing.active == [1, 2]
    running.step(5)
    assert (len(running.runs), running.changes, running.ready) == (1, [(5, 2)], [True])


def test_changes_while_a_run_goes_on_wait_and_skip_to_the_newest(running: World) -> None:
    for _ in range(4):
        running.routing.change()
        running.step(1)
    assert running.changes == [(5, 2)]
    running.hear(RunActive(5, 2))
    running.step(0.3)
    assert (running.changes, running.routing.active) == ([(5, 2), (5, 5)], [1, 2])
    running.hear(RunActive(5, 4))
    assert running.routing.active == [1, 2], "not what it was asked for"
    running.hear(RunActive(5, 5))
    assert running.routing.active == [1, 2, 5]


def test_the_quicker_a_run_goes_on_the_sooner_the_next_change_is_taken_up(running: World) -> None:
    for generation in (2, 3):
        running.routing.change()
        began = running.now
        while running.changes[-1:] != [(5, generation)]:
            running.step()
        waited = running.now - began
        running.hear(RunActive(5, generation))
    assert waited < limits.MATCH_QUIET_S_MAX


def test_where_a_run_cannot_go_on_one_starts_beside_it_and_changes_wait_for_it(running: World) -> None:
    running.goes_on = False
    running.routing.change()
    running.step(0.3)
    assert [run.generation for run in running.runs] == [1, 2]
    running.goes_on = True
    running.routing.change()
    running.step(1)
    assert running.changes == []
    running.in_force(6)
    running.step(0.3)
    assert running.changes == [(6, 3)]


def test_a_run_that_dies_while_it_goes_on_is_replaced_by_one_of_the_newest_filters(running: World) -> None:
    running.routing.change()
    running.step(0.3)
    running.runs[0].alive = False
    running.step(2)
    assert [(run.generation, run.start) for run in running.runs[1:]] == [(2, {0: 10, 1: 20})]
    running.in_force(6)
    running.routing.change()
    running.step(0.3)
    assert running.changes == [(5, 2), (6, 3)]


def test_a_run_that_never_comes_to_newer_filters_is_given_up(running: World) -> None:
    running.routing.change()
    running.step(limits.CANDIDATE_S_MAX + 2)
    assert running.runs[0].stopped
    running.step(limits.MATCH_RETRY_S_MAX)
    assert running.runs[1].generation == 2


def test_an_old_run_is_replaced_by_one_of_the_filters_that_it_went_on_to(running: World) -> None:
    running.routing.change()
    running.step(0.3)
    running.hear(RunActive(5, 2))
    running.now += limits.RUN_AGE_S_MAX
    running.step(1)
    assert [run.generation for run in running.runs] == [1, 2]


def test_a_rejected_first_run_is_tried_again_and_asks_anew(world: World) -> None:
    world.step()
    world.hear(RunRejected(5, "a gap"))
    assert world.runs[0].stopped
    world.step(2 * limits.MATCH_RETRY_S_MIN)
    assert [run.number for run in world.runs] == [5, 6]
    assert world.runs[1].start == {0: 10, 1: 20}


def test_a_candidate_that_lives_and_never_takes_over_is_given_up(world: World) -> None:
    world.step(1)
    first = world.in_force(5)
    world.routing.change()
    world.step(1)
    stuck = world.runs[-1]
    assert stuck is not first
    world.step(limits.CANDIDATE_S_MAX - 2)
    assert not stuck.stopped
    world.step(4)
    assert stuck.stopped
    assert not first.stopped, "what works stays in force"
    assert world.notes[-1].startswith("generation 1 stays in force; stuck: not in force after")
    world.step(limits.MATCH_RETRY_S_MAX)
    assert world.runs[-1] is not stuck, "and another is tried"


def test_a_rejected_candidate_leaves_the_run_in_force_alone(world: World) -> None:
    world.step()
    first = world.in_force(5)
    world.routing.change()
    world.step(0.3)
    world.hear(RunRejected(6, "no"))
    assert world.runs[1].stopped
    assert not first.stopped
    world.step(1)
    world.in_force(7)
    assert first.stopped
    assert world.ready == [True]


def test_a_run_that_dies_is_replaced_from_the_dispatchers_offsets(world: World) -> None:
    world.step()
    world.in_force(5).alive = False
    world.step(2)
    assert world.ready == [True, False]
    assert [run.number for run in world.runs] == [5, 6]
    assert world.runs[1].start == {0: 10, 1: 20}
    world.in_force(6)
    assert world.ready == [True, False, True]


def test_when_the_run_in_force_dies_the_candidate_goes_on(world: World) -> None:
    world.step()
    first = world.in_force(5)
    world.routing.change()
    world.step(0.3)
    first.alive = False
    world.step(2)
    assert len(world.runs) == 2
    world.in_force(6)
    assert world.ready == [True, False, True]
    assert world.routing.active == [1, 2]


def test_failures_in_a_row_are_retried_ever_more_slowly(world: World) -> None:
    world.refusals = 1_000
    world.step(100)
    tried = 1_000 - world.refusals
    assert 10 < tried < 20
    world.refusals = 0
    world.step(limits.MATCH_RETRY_S_MAX + 1)
    assert len(world.runs) == 1


def test_a_run_that_dies_again_and_again_once_in_force_is_retried_ever_more_slowly(world: World) -> None:
    for _ in range(500):
        world.step(0.2)
        for run in world.runs:
            if run.alive:
                world.in_force(run.number)
                run.alive = False
    assert 5 < len(world.runs) < 25


def test_a_long_good_run_makes_the_next_failure_a_first_one(world: World) -> None:
    world.refusals = 8
    while not world.runs:
        world.step(1)
    run = world.in_force(world.runs[0].number)
    world.step(limits.MATCH_STABLE_S + 1)
    run.alive = False
    world.step(limits.RUN_CHECK_S + 2 * limits.MATCH_RETRY_S_MIN)
    assert len(world.runs) == 2


def test_candidates_that_fail_beside_a_good_run_are_retried_ever_more_slowly(world: World) -> None:
    world.step()
    world.in_force(5)
    world.step(limits.MATCH_STABLE_S + 1)
    world.refusals = 1_000
    world.routing.change()
    world.step(100)
    assert 10 < 1_000 - world.refusals < 20


def test_a_lost_dispatcher_stops_every_run(world: World) -> None:
    world.step()
    world.in_force(5)
    world.routing.change()
    world.step(0.3)
    world.link_up = False
    world.step(1)
    assert [run.stopped for run in world.runs] == [True, True]
    assert world.ready == [True, False]
    world.link_up = True
    world.step(2)
    assert world.links == 2
    third = world.runs[2]
    assert (third.generation, third.start) == (2, {0: 10, 1: 20})
    world.in_force(third.number)
    assert world.ready == [True, False, True]


def test_a_run_is_replaced_before_its_batch_ends(world: World) -> None:
    world.step()
    first = world.in_force(5)
    world.now += limits.RUN_AGE_S_MAX - 10
    world.step(5)
    assert len(world.runs) == 1
    world.step(10)
    second = world.runs[1]
    assert (second.generation, second.start) == (1, {0: 900, 1: 901})
    assert world.now < 1_000 + limits.REAL_TIME_BATCH_S
    world.in_force(6)
    assert first.stopped
    world.step(60)
    assert len(world.runs) == 2


def test_a_store_that_refuses_is_told_later(world: World) -> None:
    world.step()
    world.routing.broken = True
    world.in_force(5)
    world.step(1)
    assert world.ready == [True]
    world.routing.broken = False
    world.step(1)
    assert world.routing.active == [1]
    assert len(world.runs) == 1


def test_memory_is_given_back_once_no_run_has_been_replaced_for_some_seconds(world: World) -> None:
    world.step(60)
    assert world.settled == []
    world.in_force(5)
    world.step(limits.RUN_SETTLED_S - 1)
    world.routing.change()
    world.step(1)
    world.in_force(6)
    replaced_at = world.now
    world.step(60)
    assert [settled_at - replaced_at for settled_at in world.settled] == [
        pytest.approx(limits.RUN_SETTLED_S, abs=limits.RUN_CHECK_S)
    ]


def test_messages_about_unknown_runs_change_nothing(world: World) -> None:
    world.step()
    world.in_force(5)
    world.hear(RunActive(4, 9), RunRejected(3, "old"), RunActive(5, 1))
    assert world.routing.active == [1]
    assert not world.runs[0].stopped


def test_stopping_ends_every_run(world: World) -> None:
    world.step()
    world.in_force(5)
    world.routing.change()
    world.step(0.3)
    stop = threading.Event()
    stop.set()
    world.matcher.run(stop)
    assert [run.stopped for run in world.runs] == [True, True]
    assert world.ready == [True, False]


def test_without_a_jvm_the_process_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> FakeRun:
        raise SparkGoneError("the JVM has ended")

    monkeypatch.setattr(world, "start", gone)
    with pytest.raises(SparkGoneError):
        world.matcher.run(threading.Event())
