"""The whole matcher, with Spark and the filters' join, takes up changed filters while events flow."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.log.directory import LogDirectory
from headgate.match.driver_link import DriverLinks
from headgate.match.generations import Matcher
from headgate.match.spark_runner import SparkRunner
from headgate.objects.kinds.routing import DeliveryRules, RoutingTable, Target
from tests.match.events import append, event, writing
from tests.match.fakes import PATIENCE_S, FakeDispatcher
from tests.support import times

pytestmark = pytest.mark.spark

TYPES = "abcdef"
CHANGES = times(100, 1_000, 10_000)
DELIVERY = DeliveryRules(0, "linear", 1.0, 1.0, False)


def target(number: int, **attributes: str) -> Target:
    wanted = compile_filter({"attributes": attributes})
    return Target(number, f"default/t{number}", "default/main/1", wanted, "http://localhost/", DELIVERY)


class Routing:
    """The control store's part, in memory."""

    def __init__(self, *targets: Target) -> None:
        self._table = RoutingTable.of(1, 1, {"default/main": "default/main/1"}, targets)
        self.active = 0

    def add(self, *targets: Target) -> None:
        number = self._table.generation + 1
        self._table = RoutingTable.of(number, number, self._table.brokers, [*self._table.targets.values(), *targets])

    def data_version(self) -> int:
        return self._table.version

    def desired_generation(self) -> int:
        return self._table.generation

    def snapshot(self) -> RoutingTable:
        return self._table

    def set_active_generation(self, generation: int) -> None:
        self.active = generation


def test_filters_are_matched_and_changed_while_events_flow(
    spark: SparkSession, dispatcher: FakeDispatcher, tmp_path: Path
) -> None:
    routing = Routing(target(1, type="a"), target(2, type="b"))
    stop, ready = threading.Event(), threading.Event()
    matcher = Matcher(
        routing,
        SparkRunner(spark, LogDirectory(tmp_path / "log", "stop"), 1, tmp_path / "scratch"),
        lambda: DriverLinks.connect(dispatcher.address),
        on_active=routing.set_active_generation,
        on_ready=lambda is_ready: ready.set() if is_ready else ready.clear(),
    )
    thread = threading.Thread(target=matcher.run, args=(stop,))
    with writing(tmp_path / "log") as writer:
        append(writer, [event(0, "a")])
        thread.start()
        try:
            assert dispatcher.driver_says.get(timeout=PATIENCE_S) == {"op": "resume"}
            dispatcher.tell_driver(op="resume", offsets={"0": 0})
            assert dispatcher.driver_says.get(timeout=PATIENCE_S) == {"op": "started", "run": 1, "generation": 1}
            first = dispatcher.of(run=1)
            assert not ready.is_set()
            dispatcher.tell_driver(op="active", run=1, generation=1)
            assert ready.wait(PATIENCE_S)
            append(writer, [event(1, "b"), event(2, "c"), event(3, "a")])
            dispatcher.wait(lambda: first.passed == 4)

            # The plan has all that these need, so the run itself goes on to them, while it waits for events.
            routing.add(target(3, type="c"))
            dispatcher.wait(lambda: (3, 0, 0, 2) in first.frames)
            dispatcher.tell_driver(op="active", run=1, generation=2)
            append(writer, [event(4, "c"), event(5, "b")])
            dispatcher.wait(lambda: first.passed == 6)

            # No event's subject has been read so far.
            routing.add(target(4, subject="s4"))
            assert dispatcher.driver_says.get(timeout=PATIENCE_S) == {"op": "started", "run": 2, "generation": 3}
            second = dispatcher.of(run=2)
            append(writer, [event(6, "c"), event(7, "b")])
            dispatcher.wait(lambda: first.passed == 8 and second.passed == 8)
            dispatcher.tell_driver(op="active", run=2, generation=3)
            dispatcher.wait(lambda: first.closed)
            append(writer, [event(8, "c")])
            dispatcher.wait(lambda: second.passed == 9)
        finally:
            stop.set()
            thread.join(PATIENCE_S)
    assert not thread.is_alive()
    dispatcher.wait(lambda: second.closed)
    assert routing.active == 3
    assert not ready.is_set()
    assert first.rows == [(0, 1, 3), (1, 2, 3), (3, 1, 3), (4, 3, 3), (5, 2, 3), (6, 3, 3), (7, 2, 3)]
    changed = first.frames.index((3, 0, 0, 2))
    assert first.frames[changed - 1] == (2, 0, 0, 4), "from event 4 on"
    assert second.start == 6
    assert second.rows == [(6, 3, 3), (7, 2, 3), (8, 3, 3)]
    assert list((tmp_path / "scratch").iterdir()) == []


def changing(count: int, rng: random.Random) -> Iterator[RoutingTable]:
    """Generations in which filters join, leave, and say something else; the first has all that any plan needs."""
    texts = [*(f"ce.type == '{one}'" for one in TYPES), *(f"data.n > {n}" for n in range(0, 200, 20))]
    texts += [f"ce.type == '{one}' && data.n <= {n}" for one in TYPES for n in (30, 90, 150)]
    filters = [compile_cel(text) for text in texts]
    for number in range(1, count + 1):
        chosen = filters if number == 1 else rng.sample(filters, rng.randint(0, len(filters)))
        ids = rng.sample(range(1, 60), len(chosen))
        targets = (
            Target(n, f"default/t{n}", "default/main/1", one, "http://localhost/", DELIVERY)
            for n, one in zip(ids, chosen, strict=True)
        )
        yield RoutingTable.of(number, number, {"default/main": "default/main/1"}, targets)


def test_filters_change_between_two_events_and_each_event_is_matched_by_the_generation_that_is_told(
    spark: SparkSession, dispatcher: FakeDispatcher, tmp_path: Path
) -> None:
    """By cel-cpp, event for event, while events flow."""
    rng = random.Random(4)
    tables = list(changing(CHANGES, rng))
    runner = SparkRunner(spark, LogDirectory(tmp_path / "log", "stop"), 1, tmp_path / "scratch")
    with writing(tmp_path / "log") as writer:
        events = [event(0, "a")]
        append(writer, events)
        run = runner.start(tables[0], 1, {0: 0}, dispatcher.address)
        try:
            link = dispatcher.of(run=1)
            there: dict[int, int] = {}
            for table in tables[1:]:
                more = [event(len(events) + n, rng.choice(TYPES)) for n in range(rng.randint(0, 3))]
                if more:
                    append(writer, more)
                events += more
                there[table.generation] = len(events)
                assert runner.change(1, table)
            dispatcher.wait(lambda: (3, 0, 0, CHANGES) in link.frames)
            events.append(event(len(events), "a"))
            append(writer, events[-1:])
            dispatcher.wait(lambda: link.passed == len(events))
        finally:
            run.stop()
    generations, passed = {0: 1}, 0
    for kind, _, _, number in link.frames:
        if kind == 2:
            passed = number
        elif kind == 3:
            generations[passed] = number
    assert len(generations) > CHANGES / 10, "most were taken up between two events"
    early = [(offset, number) for offset, number in generations.items() if offset < there.get(number, 0)]
    assert early == [], "what was stored before a change was asked for is matched by the filters of before"
    came: dict[int, set[int]] = defaultdict(set)
    for offset, number, _ in link.rows:
        came[offset].add(number)
    generation = 0
    for offset, stored in enumerate(events):
        generation = generations.get(offset, generation)
        wanted = {
            one.id
            for one in tables[generation - 1].targets.values()
            if program(one.filter.cel).evaluate(stored.event).kind is OutcomeKind.TRUE
        }
        assert came[offset] == wanted, f"event {offset}, generation {generation}"


def test_a_run_goes_on_only_where_its_plan_has_all_that_is_needed(
    spark: SparkSession, dispatcher: FakeDispatcher, tmp_path: Path
) -> None:
    def table(number: int, *texts: str) -> RoutingTable:
        targets = (
            Target(n, f"default/t{n}", "default/main/1", compile_cel(text), "http://localhost/", DELIVERY)
            for n, text in enumerate(texts)
        )
        return RoutingTable.of(number, number, {"default/main": "default/main/1"}, targets)

    runner = SparkRunner(spark, LogDirectory(tmp_path / "log", "stop"), 1, tmp_path / "scratch")
    with writing(tmp_path / "log") as writer, ExitStack() as runs:
        append(writer, [event(0, "a")])

        def start(number: int, table: RoutingTable) -> None:
            run = runner.start(table, number, {0: 0}, dispatcher.address)
            runs.pop_all().close()
            runs.callback(run.stop)

        start(1, table(1, "ce.type == 'a'", "data.n > 1"))
        assert runner.change(1, table(2, *(f"ce.type == '{n}' && data.m > {n}" for n in range(100))))
        another_comparison = table(3, "data.n < 1 && data.m < 1")
        assert not runner.change(1, another_comparison)
        start(2, another_comparison)
        assert not runner.change(1, table(4, "data.n < 2 && data.m < 3")), "it is not the one that has the newest table"
        assert runner.change(2, table(4, "data.n < 2 && data.m < 3"))
        another_column = table(5, "ce.subject == 'a' && data.n < 1")
        assert not runner.change(2, another_column)
        start(3, another_column)
        assert runner.change(3, table(6, "ce.subject == 'b' && data.n < 3"))
