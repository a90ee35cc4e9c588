"""The history of a server's numbers, from files as processes write them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headgate.observe import metrics
from headgate.observe.exposition import ProcessMetrics
from headgate.observe.history import NumbersHistory, Snapshot, Sums, counted_by, quantile
from headgate_api import limits

BUCKETS = metrics.NAMESPACE_DELIVERY_SECONDS.buckets


class Server:
    """The files of a front and a dispatcher, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1_000.0
        self.history = self.empty()
        self.accepted = {"a/x": 0.0, "b/y": 0.0}
        self.delivered = {"a": [0] * (len(BUCKETS) + 1), "b": [0] * (len(BUCKETS) + 1)}
        self.lost = {"a": 0.0}

    def empty(self) -> NumbersHistory:
        return NumbersHistory(lambda: {"": counted_by(self.folder)}, lambda: self.now)

    def write(self) -> None:
        front = ProcessMetrics(self.now)
        front.counters["headgate_events_accepted_total"] = {"": sum(self.accepted.values())}
        front.counters[metrics.BROKER_EVENTS_ACCEPTED.name] = dict(self.accepted)
        (self.folder / "front-0.json").write_bytes(msgspec.json.encode(front))
        both = [sum(pair) for pair in zip(*self.delivered.values(), strict=True)]
        written = {
            "written_at": self.now,
            "counters": {
                "headgate_deliveries_total": {"delivered": sum(both), "dead_lettered": self.lost["a"], "filtered": 7.0},
                metrics.NAMESPACE_GIVEN_UP.name: self.lost,
            },
            "histograms": {
                "headgate_delivery_seconds": {"": [both, 1.0]},
                metrics.NAMESPACE_DELIVERY_SECONDS.name: {name: [one, 1.0] for name, one in self.delivered.items()},
            },
        }
        (self.folder / "dispatcher-0.json").write_bytes(msgspec.json.encode(written))

    def tick(self) -> None:
        self.write()
        self.history.sample()
        self.now += limits.HISTORY_POINT_S


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_nothing_is_known_at_first(server: Server) -> None:
    assert server.history.points(None)[1] == []
    assert server.history.last("a", 60).p50 is None
    server.history.sample()  # there are no files yet
    assert server.history.points(None)[1] == []
    assert server.history.broker("a/x").received == 0


def test_rates_of_a_server_and_of_each_namespace(server: Server) -> None:
    server.tick()
    server.accepted |= {"a/x": 100.0, "b/y": 50.0}
    server.delivered["a"][3] = 40
    server.lost["a"] = 10.0
    server.tick()
    begin, (whole,) = server.history.points(None)
    assert (begin, whole.received, whole.delivered, whole.failed) == (1_000.0, 15.0, 4.0, 1.0)
    (own,) = server.history.points("a")[1]
    assert (own.received, own.delivered, own.failed) == (10.0, 4.0, 1.0)
    assert own.p50 is not None
    assert own.p99 is not None
    assert BUCKETS[2] <= own.p50 < own.p99 <= BUCKETS[3]
    (other,) = server.history.points("b")[1]
    assert (other.received, other.delivered, other.failed, other.p50) == (5.0, 0.0, 0.0, None), "nothing of the other"
    assert server.history.points("c")[1][0].received == 0.0
    assert server.history.broker("a/x").received == 100
    assert server.history.broker("a/x").rate == 10.0
    assert server.history.broker("a/none").rate == 0.0


def test_points_are_bounded_and_a_minute_is_a_minute(server: Server) -> None:
    for _ in range(limits.HISTORY_POINTS_MAX + 20):
        server.accepted["a/x"] += 10
        server.tick()
    begin, points = server.history.points("a")
    assert len(points) == limits.HISTORY_POINTS_MAX
    assert begin == server.now - (limits.HISTORY_POINTS_MAX + 1) * limits.HISTORY_POINT_S
    server.accepted["a/x"] += 590
    server.tick()
    assert server.history.last("a", 60).received == pytest.approx((5 * 10 + 590) / 60)


def test_a_counter_that_begins_anew_is_no_negative_rate(server: Server) -> None:
    server.accepted["a/x"] = 1_000
    server.delivered["a"][0] = 1_000
    server.tick()
    server.accepted["a/x"] = 20
    server.delivered["a"][0] = 30
    server.tick()
    (point,) = server.history.points("a")[1]
    assert (point.received, point.delivered) == (2.0, 3.0)


def test_damaged_and_foreign_files_are_passed_over(server: Server) -> None:
    server.tick()
    (server.folder / "matcher.json").write_bytes(b"{")
    (server.folder / "old.json").write_bytes(
        msgspec.json.encode(
            {"written_at": 1, "histograms": {metrics.NAMESPACE_DELIVERY_SECONDS.name: {"a": [[1] * 99, 1.0]}}}
        )
    )
    server.tick()
    assert len(server.history.points("a")[1]) == 1


def test_a_namespace_that_is_called_other_gets_nothing_of_the_others(server: Server) -> None:
    few = {"other/x": 10.0}
    many = {f"n{number}/x": 1.0 for number in range(limits.BROKERS_COUNTED_MAX)} | {metrics.OTHER: 500.0}
    for accepted, received in ((few, 1.0), (many, 0.0)):
        server.history = server.empty()
        server.accepted = dict.fromkeys(accepted, 0.0)
        server.tick()
        server.accepted = accepted
        server.tick()
        assert server.history.points("other")[1][0].received == received


def test_servers_are_added_up_and_one_that_comes_or_goes_is_no_rate() -> None:
    """What a server had counted before it was met is not of the time since; it is in what a broker has taken."""
    buckets, counted, now = len(BUCKETS) + 1, dict[str, Snapshot](), [1_000.0]
    history = NumbersHistory(lambda: counted, lambda: now[0])

    def tick(**received: float) -> None:
        counted.clear()
        for name, count in received.items():
            sums = Sums(count, 0.0, (int(count),) + (0,) * (buckets - 1))
            counted[name] = Snapshot(0.0, sums, {"a": sums}, {"a/x": count})
        history.sample()
        now[0] += limits.HISTORY_POINT_S

    tick(one=100)
    tick(one=200, two=7_000)
    tick(one=300, two=7_050)
    tick(two=7_150)
    tick(two=50)  # it was started again
    for namespace in (None, "a"):
        points = history.points(namespace)[1]
        assert [(point.received, point.delivered) for point in points] == [(10, 10), (15, 15), (10, 10), (5, 5)]
    assert history.broker("a/x").received == 50
    tick(one=400, two=60)
    assert history.broker("a/x").received == 460


def test_quantiles() -> None:
    counts = [0.0] * (len(BUCKETS) + 1)
    assert quantile(counts, 0.5) is None
    counts[0] = 10
    assert quantile(counts, 0.5) == pytest.approx(BUCKETS[0] / 2)
    counts[-1] = 1_000
    assert quantile(counts, 0.99) == BUCKETS[-1]
