"""A subscriber that never comes back keeps the log for a while, not for ever, and its end is told before it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.deadletters.store import DeadLetterStore
from headgate.delivery.lifecycle import Delivery
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.plan import Verdict
from headgate.log.directory import Partition
from headgate.log.recovery import list_segments
from headgate.log.retention import time_of_newest
from headgate.log.writer import Encoded, PartitionWriter
from headgate.observe import metrics
from headgate.retention.expiry import BacklogBounds, Expiry
from headgate.retention.floor import FloorFinder
from headgate.storage.files import DispatcherDirectory
from headgate.testing.server import free_port
from headgate_api import limits
from tests.delivery.harness import BROKER, EventLog, Routes, Running, Subscriber, event, matcher, run, running, target
from tests.support import until

COUNT = 40


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKLOG_SWEEP_S", 0.05)
    monkeypatch.setattr(limits, "REPORT_S_MIN", 0.01)
    monkeypatch.setattr(limits, "TARGET_QUEUE_MAX", 8)
    monkeypatch.setattr(limits, "CIRCUIT_FAILURES_MAX", 2)


def scene(
    data: Path,
    log: EventLog,
    wait: Callable[[Routes, Running], Any],
    *,
    verdict: int = Verdict.MATCH,
    cel: str = "true",
    **rules: Any,
) -> Routes:
    """One target that nobody answers for, most of its events unread, and one that takes everything."""
    found: list[Routes] = []

    async def work() -> None:
        async with Subscriber() as fine:
            dead = target(1, f"http://127.0.0.1:{free_port()}/", cel=cel, retry=None, backoff_delay_s=0.001, **rules)
            routes = Routes(dead, target(2, fine.url))
            found.append(routes)
            async with running(data, routes, bounds=BacklogBounds(seconds=0.5)) as work:
                log.append([event(n) for n in range(COUNT)])
                async with matcher(work) as peer:
                    peer.match(*((offset, n) for offset in range(COUNT) for n in (1, 2)), verdict=verdict)
                    await until(lambda: len(set(fine.ids)) == COUNT)
                    await wait(routes, work)

    run(work())
    return found[0]


def dropped(routes: Routes) -> int:
    return sum(report.dropped for report in routes.reports if report.target == 1)


@pytest.mark.parametrize("ordered", [False, True])
def test_it_is_told_and_then_dropped_and_counted_and_keeps_nothing(tmp_path: Path, log: EventLog, ordered: bool):
    before = metrics.DELIVERIES.labels("expired").value

    async def wait(routes: Routes, work: Running) -> None:
        await until(lambda: dropped(routes) == COUNT)
        await until(lambda: work.dispatcher.unfinished == 0)
        finder = FloorFinder(DispatcherDirectory.of(tmp_path, 0), Partition(tmp_path / "dispatcher/0/outbox", "stop"))
        while finder.find().offsets != {0: COUNT}:
            await asyncio.sleep(0.01)
        await until(lambda: [r.backlog for r in routes.reports if r.backlog is not None][-1:] == [""])

    routes = scene(tmp_path, log, wait, ordered=ordered)
    assert metrics.DELIVERIES.labels("expired").value - before == COUNT
    told = [index for index, report in enumerate(routes.reports) if (report.backlog or "").startswith("BacklogNearLim")]
    first = next(index for index, report in enumerate(routes.reports) if report.dropped)
    assert told, "a drop is visible before it happens"
    assert told[0] <= first
    assert {report.target for report in routes.reports if report.dropped} == {1}


def test_what_is_over_the_bound_already_is_told_all_the_same(tmp_path: Path, log: EventLog, monkeypatch):
    """As after a time in which nobody has swept."""
    monkeypatch.setattr(limits, "BACKLOG_SWEEP_S", 3_600.0)

    async def wait(routes: Routes, work: Running) -> None:
        await asyncio.sleep(0.6)
        await work.dispatcher._expiry.sweep()
        await until(lambda: any(report.backlog for report in routes.reports))
        assert dropped(routes) == 0
        while dropped(routes) < COUNT:
            await work.dispatcher._expiry.sweep()
            await asyncio.sleep(0.01)

    scene(tmp_path, log, wait)


def test_where_a_sink_is_wanted_it_is_a_dead_letter(tmp_path: Path, log: EventLog):
    async def wait(routes: Routes, work: Running) -> None:
        store = DeadLetterStore(DispatcherDirectory.of(tmp_path, 0).dead_letters)
        await until(lambda: store.totals().count == COUNT)
        assert {entry.reason for entry in store.reader.summaries("TRUE", (), after=0, limit=COUNT)} == {"expired"}
        store.close()
        await until(lambda: work.dispatcher.unfinished == 0)

    assert dropped(scene(tmp_path, log, wait, dead_letter_uri="")) == 0


def test_a_full_dead_letter_store_does_not_keep_the_log(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "DEADLETTERS_MAX", 5)

    async def wait(routes: Routes, work: Running) -> None:
        await until(lambda: work.dispatcher.unfinished == 0 and dropped(routes) >= COUNT - 5 - 8)

    scene(tmp_path, log, wait, dead_letter_uri="")


def test_room_that_goes_while_an_event_is_read_is_not_waited_for():
    class Queue:
        room = True

        def has_room(self, _namespace: str) -> bool:
            return self.room

        async def put(self, _dead_letter: object) -> None:
            raise AssertionError("it would wait until there is room, and no other backlog would end")

    queue, told = Queue(), []

    async def load(_partition: int, _offset: int) -> object:
        queue.room = False  # an attempt elsewhere was given up meanwhile
        return event(0)

    class Look:
        errors = SimpleNamespace(dropped=lambda *words: told.append(words))

        def __call__(self, _target: object, _delivery: object, event: object) -> object:
            return event

    expiry = Expiry(
        None,
        None,
        BacklogBounds(),
        scheduler=None,
        subscriptions=None,
        events=SimpleNamespace(load=load),
        final_check=Look(),
        dead_letters=queue,
        on_change=lambda: None,
        clock_us=lambda: 0,
    )
    state = SimpleNamespace(target=target(1, "http://127.0.0.1:9/", dead_letter_uri=""))

    async def work() -> None:
        assert await expiry._result(state, Delivery(0, 0, 0, Verdict.MATCH)) == "expired"

    run(work())
    assert len(told) == 1


def test_what_the_filter_does_not_want_is_not_dropped(tmp_path: Path, log: EventLog):
    async def wait(routes: Routes, work: Running) -> None:
        await until(lambda: work.dispatcher.unfinished == 0)
        finder = FloorFinder(DispatcherDirectory.of(tmp_path, 0), Partition(tmp_path / "dispatcher/0/outbox", "stop"))
        while finder.find().offsets != {0: COUNT}:
            await asyncio.sleep(0.01)

    routes = scene(tmp_path, log, wait, verdict=Verdict.CANDIDATE, cel="ce.id != 'e39'")
    assert dropped(routes) == COUNT - 1


def test_a_bound_in_bytes_is_the_time_of_the_oldest_newest_ones(tmp_path: Path):
    with PartitionWriter(Partition(tmp_path, "stop"), EVENT_SCHEMA, segment_bytes_max=1) as writer:
        assert time_of_newest(Partition(tmp_path, "stop"), 1) is None
        for number in range(4):
            batch = to_batch([StoredEvent(BROKER, event(number))])
            writer.append(Encoded(batch, ["t"], time_range_us=(1_000 * number, 1_000 * number)))
    sizes = [path.stat().st_size for _, path in list_segments(tmp_path)]
    assert time_of_newest(Partition(tmp_path, "stop"), sum(sizes)) is None
    times = [time_of_newest(Partition(tmp_path, "stop"), sum(sizes[-count:])) for count in (1, 2, 3)]
    assert all(time is not None for time in times)
    assert times == sorted(times, reverse=True)
    assert time_of_newest(Partition(tmp_path, "stop"), 1) == times[0], "the last segment counts whole"
