"""The whole matcher, with Spark and the filters' join, takes up changed filters while events flow."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate.filter.compile.compiler import compile_filter
from headgate.log.directory import LogDirectory
from headgate.match.driver_link import DriverLinks
from headgate.match.matcher import Matcher
from headgate.match.runner import SparkRunner
from headgate.objects.kinds.routing import DeliveryRules, RoutingTable, Target
from tests.match.events import append, event, writing
from tests.match.fakes import PATIENCE_S, FakeDispatcher

pytestmark = pytest.mark.spark

DELIVERY = DeliveryRules(0, "linear", 1.0, 1.0, False)


def target(number: int, **attributes: str) -> Target:
    wanted = compile_filter({"attributes": attributes})
    return Target(number, f"default/t{number}", "default/main/1", wanted, "http://localhost/", DELIVERY)


class Routing:
    """The control store's part, in memory."""

    def __init__(self, *targets: Target) -> None:
        self._table = RoutingTable(1, 1, {"default/main": "default/main/1"}, targets)
        self.active = 0

    def add(self, *targets: Target) -> None:
        number = self._table.generation + 1
        self._table = RoutingTable(number, number, self._table.brokers, self._table.targets + targets)

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

            routing.add(target(3, type="c"))
            assert dispatcher.driver_says.get(timeout=PATIENCE_S) == {"op": "started", "run": 2, "generation": 2}
            second = dispatcher.of(run=2)
            append(writer, [event(4, "c"), event(5, "b")])
            dispatcher.wait(lambda: first.passed == 6 and second.passed == 6)
            dispatcher.tell_driver(op="active", run=2, generation=2)
            dispatcher.wait(lambda: first.closed)
            append(writer, [event(6, "c")])
            dispatcher.wait(lambda: second.passed == 7)
        finally:
            stop.set()
            thread.join(PATIENCE_S)
    assert not thread.is_alive()
    dispatcher.wait(lambda: second.closed)
    assert routing.active == 2
    assert not ready.is_set()
    assert first.rows == [(0, 1, 3), (1, 2, 3), (3, 1, 3), (5, 2, 3)]
    assert second.start == 4
    assert second.rows == [(4, 3, 3), (5, 2, 3), (6, 3, 3)]
    assert list((tmp_path / "scratch").iterdir()) == []
