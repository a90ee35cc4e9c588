"""End to end on real sockets and files: rows on the link become POSTs, once, whatever stops in between."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

from headgate.delivery.cursors import CursorStore
from headgate.filter.compile.plan import Verdict
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.routing import RoutingTable, Target
from headgate_api import limits
from headgate_api.errors import UnavailableError
from tests.delivery.harness import (
    EventLog,
    Request,
    Routes,
    Subscriber,
    event,
    matcher,
    outbox_rows,
    run,
    running,
    target,
)
from tests.support import until


def test_a_row_becomes_a_post_with_the_event_as_it_was(tmp_path: Path, log: EventLog):
    data = bytes(range(256)) + '{"ü": 1.0}'.encode()

    async def work() -> None:
        async with Subscriber() as subscriber:
            async with running(tmp_path, Routes(target(7, subscriber.url + "hook?a=b"))) as work:
                offset = log.append([event(1, data=data)])
                async with matcher(work) as peer:
                    peer.match((offset, 7))
                    await until(lambda: len(subscriber.requests) == 1)
            request = subscriber.requests[0]
            assert (request.method, request.path) == ("POST", "/hook?a=b")
            assert request.body == data
            assert request.header("ce-id") == "e1"
            assert request.header("ce-source") == "/tests"
            assert request.header("ce-specversion") == "1.0"
            assert request.header("content-type") == "application/json"
            assert request.header("prefer") == "reply"
            assert request.header("accept-encoding") == "identity"

    run(work())


def test_every_target_of_an_event_gets_it_once_over_kept_connections(tmp_path: Path, log: EventLog):
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(*(target(n, f"{subscriber.url}{n}") for n in range(1, 6)))
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(50)])
                async with matcher(work) as peer:
                    peer.match(*((offset, n) for offset in range(50) for n in range(1, 6)))
                    await until(lambda: len(subscriber.requests) >= 250)
            got = Counter((request.path, request.id) for request in subscriber.requests)
            assert got == {(f"/{n}", f"e{offset}"): 1 for offset in range(50) for n in range(1, 6)}
            assert subscriber.connections < 250

    run(work())


def test_verdicts_of_one_event_and_target_are_one_row(tmp_path: Path, log: EventLog):
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url))
            async with running(tmp_path, routes) as work, matcher(work) as peer:
                log.append([event(0)])
                for verdict in (Verdict.ERROR, Verdict.MATCH, Verdict.CANDIDATE):
                    peer.writer.write(bytes([1, verdict]) + (1).to_bytes(4, "little") + (0).to_bytes(8, "little"))
                peer.passed(1)
                await until(lambda: len(subscriber.requests) == 1)
        assert outbox_rows(tmp_path) == [(0, 1, Verdict.MATCH)]

    run(work())


@pytest.mark.parametrize(
    ("verdict", "cel", "delivered"),
    [
        (Verdict.MATCH, "false", 1),  # the matcher's word is enough
        (Verdict.CANDIDATE, 'ce.type == "t"', 1),
        (Verdict.CANDIDATE, 'ce.type == "u"', 0),
        (Verdict.CANDIDATE, 'data.missing == "u"', 0),
        (Verdict.CANDIDATE, 'publish_time > timestamp("2020-01-01T00:00:00Z")', 1),
        (Verdict.CANDIDATE, 'publish_time < timestamp("2020-01-01T00:00:00Z")', 0),
        (Verdict.ERROR, "true", 0),
    ],
)
def test_what_the_matcher_left_open_is_decided_by_the_filter(
    tmp_path: Path, log: EventLog, verdict: Verdict, cel: str, delivered: int
):
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url + "a", cel=cel), target(2, subscriber.url + "b"))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1), verdict=verdict)
                    peer.passed(1)
                    log.append([event(1)])
                    peer.match((1, 2))
                    await until(lambda: len(subscriber.requests) == delivered + 1)
            assert [request.path for request in subscriber.requests].count("/a") == delivered

    run(work())


def test_filter_errors_are_counted_and_reported_with_words(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "REPORT_S_MIN", 0.05)

    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(
                target(1, subscriber.url, cel="data.gone.far == 1"), target(2, subscriber.url, cel="data.x")
            )
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(10)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(10)), verdict=Verdict.ERROR)
                    log.append([event(10)])
                    peer.match((10, 2), verdict=Verdict.CANDIDATE)
                    await until(lambda: sum(report.filter_errors for report in routes.reports) == 11)
            assert subscriber.requests == []
            words = {report.target: report for report in routes.reports if report.last_error}
            assert set(words) == {1, 2}
            assert words[2].last_error_event == "/tests e10"

    run(work())


@pytest.mark.parametrize("other", ["default/other/1", "default/default/0"])
def test_an_event_of_another_broker_is_never_delivered(tmp_path: Path, log: EventLog, other: str):
    """Neither of one that shares a key's hash by chance, nor of the one that had the broker's name before."""

    async def work() -> None:
        async with Subscriber() as subscriber:
            async with running(tmp_path, Routes(target(1, subscriber.url))) as work:
                log.append([event(0)], broker=other)
                log.append([event(1)])
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1))
                    await until(lambda: len(subscriber.requests) == 1)
            assert subscriber.ids == ["e1"]

    run(work())


def test_a_target_that_is_newer_than_our_table_is_looked_up(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "ROUTING_POLL_S", 3_600.0)

    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes()
            async with running(tmp_path, routes) as work:
                log.append([event(0), event(1)])
                async with matcher(work) as peer:
                    routes.put(target(5, subscriber.url))
                    peer.match((0, 5), (1, 6))
                    await until(lambda: subscriber.ids == ["e0"])
                    assert routes.snapshots == 2, "asked once more, not for every row"

    run(work())


def test_a_row_is_judged_by_a_table_that_is_no_older_than_its_filters(tmp_path: Path, log: EventLog, monkeypatch):
    """By the one before, the first event of a broker made anew would be another broker's."""
    monkeypatch.setattr(limits, "ROUTING_POLL_S", 3_600.0)

    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url))
            async with running(tmp_path, routes) as work:
                log.append([event(0)], broker="default/default/2")
                routes.put(target(1, subscriber.url, broker="default/default/2"))
                routes.generation = 2
                async with matcher(work, 2) as peer:
                    peer.match((0, 1))
                    await until(lambda: work.dispatcher.unfinished == 0 and bool(subscriber.requests))
            assert subscriber.ids == ["e0"]

    run(work())


def test_changes_of_routing_are_seen_without_a_row(tmp_path: Path, log: EventLog):
    async def work() -> None:
        async with Subscriber() as old, Subscriber() as new:
            routes = Routes(target(1, old.url))
            async with running(tmp_path, routes) as work:
                log.append([event(0), event(1), event(2)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: old.ids == ["e0"])
                    routes.put(target(1, new.url))
                    await until(lambda: routes.snapshots == 2)
                    await until(lambda: work.dispatcher.scheduler.find(1).subscriber_uri == new.url)
                    peer.match((1, 1))
                    await until(lambda: new.ids == ["e1"])
            assert old.ids == ["e0"]

    run(work())


def test_what_a_deleted_target_still_had_ends_and_others_go_on(tmp_path: Path, log: EventLog):
    async def fail(request: Request) -> tuple[int, bytes]:
        return (503 if request.path == "/gone" else 202), b""

    async def work() -> None:
        async with Subscriber(fail) as subscriber:
            gone = target(1, subscriber.url + "gone", retry=1_000, backoff_delay_s=0.05)
            routes = Routes(gone, target(2, subscriber.url + "stays"))
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(100)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(100)))
                    await until(lambda: len(subscriber.requests) > 50)
                    routes.delete(1)
                    await until(lambda: work.dispatcher.unfinished == 0)
                    log.append([event(100)])
                    peer.match((100, 2))
                    await until(lambda: subscriber.requests[-1].path == "/stays")
        cursors = CursorStore(tmp_path / "dispatcher" / "0" / "dispatch.db")
        assert cursors.load().targets == ()
        cursors.close()

    run(work())


def test_an_ordered_target_gets_its_events_in_order_over_retries(tmp_path: Path, log: EventLog):
    failures = Counter[str]()

    async def shaky(request: Request) -> tuple[int, bytes]:
        failures[request.id] += 1
        await asyncio.sleep(0.001)
        return (503 if int(request.id[1:]) % 5 == 0 and failures[request.id] < 3 else 202), b""

    async def work() -> None:
        async with Subscriber(shaky) as subscriber:
            async with running(tmp_path, Routes(target(1, subscriber.url, ordered=True, retry=5))) as work:
                log.append([event(n) for n in range(40)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(40)))
                    await until(lambda: failures["e39"] == 1)
            expected = [f"e{n}" for n in range(40) for _ in range(3 if n % 5 == 0 else 1)]
            assert subscriber.ids == expected

    run(work())


def test_waiting_retries_hold_no_place(tmp_path: Path, log: EventLog):
    bad = 2 * limits.TARGET_PARALLEL_DEFAULT

    async def some_fail(request: Request) -> tuple[int, bytes]:
        return (503 if int(request.id[1:]) < bad else 202), b""

    async def work() -> None:
        async with Subscriber(some_fail) as subscriber:
            slow_retries = target(1, subscriber.url, retry=1, backoff_delay_s=3_600.0)
            async with running(tmp_path, Routes(slow_retries)) as work:
                log.append([event(n) for n in range(bad + 10)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(bad + 10)))
                    await until(lambda: len(subscriber.requests) == bad + 10)
                    await until(lambda: work.dispatcher.unfinished == bad)

    run(work())


def test_a_target_that_hangs_lags_and_delays_nobody(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "TARGET_QUEUE_MAX", 64)
    count = 1_000
    let_go = asyncio.Event()

    async def hang(request: Request) -> tuple[int, bytes]:
        if request.path == "/hangs":
            await let_go.wait()
        return 202, b""

    async def work() -> None:
        async with Subscriber(hang) as subscriber:
            routes = Routes(target(1, subscriber.url + "hangs", timeout_s=25.0), target(2, subscriber.url + "works"))
            async with running(tmp_path, routes) as work:

                def got(path: str) -> list[str]:
                    return [request.id for request in subscriber.requests if request.path == path]

                async with matcher(work) as peer:
                    for first in range(0, count, 100):
                        log.append([event(n) for n in range(first, first + 100)])
                        peer.match(*((offset, n) for offset in range(first, first + 100) for n in (1, 2)))
                        await until(lambda seen=first + 100: len(got("/works")) == seen)
                    assert len(got("/hangs")) <= limits.TARGET_PARALLEL_DEFAULT
                    # Memory is bounded, the rest is in the outbox.
                    await until(lambda: work.dispatcher.unfinished <= 64)
                    let_go.set()
                    await until(lambda: len(got("/hangs")) >= count)
                    await until(lambda: work.dispatcher.unfinished == 0)
                    # It reads along again: a new event comes at once and only once.
                    offset = log.append([event(count)])
                    peer.match((offset, 1))
                    await until(lambda: len(got("/hangs")) >= count + 1)
            assert Counter(got("/hangs")) == {f"e{n}": 1 for n in range(count + 1)}
            assert Counter(got("/works")) == {f"e{n}": 1 for n in range(count)}

    run(work())


def test_an_ordered_target_stays_in_order_while_it_lags(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "TARGET_QUEUE_MAX", 8)
    count = 300

    async def slow(_: Request) -> tuple[int, bytes]:
        await asyncio.sleep(0.001)
        return 202, b""

    async def work() -> None:
        async with Subscriber(slow) as subscriber:
            routes = Routes(target(1, subscriber.url, ordered=True))
            async with running(tmp_path, routes) as work, matcher(work) as peer:
                for first in range(0, count, 10):
                    log.append([event(n) for n in range(first, first + 10)])
                    peer.match(*((offset, 1) for offset in range(first, first + 10)))
                    await asyncio.sleep(0.005)
                await until(lambda: len(subscriber.requests) == count)
            assert subscriber.ids == [f"e{n}" for n in range(count)]

    run(work())


def test_events_that_match_nothing_move_the_start_of_the_next_run(tmp_path: Path, log: EventLog):
    async def work() -> None:
        routes = Routes()
        async with running(tmp_path, routes) as work:
            log.append([event(n) for n in range(1_000)])
            log.append([event(n) for n in range(7)], partition=1)
            async with matcher(work) as peer:
                peer.passed(900)
                async with work.peer() as driver:
                    await driver.driver()
                    while (await driver.ask(op="resume"))["offsets"]["0"] != 900:
                        await asyncio.sleep(0.005)
        async with running(tmp_path, routes) as work, work.peer() as driver:
            await driver.driver()
            assert await driver.ask(op="resume") == {"op": "resume", "offsets": {"0": 900, "1": 0}}

    run(work())


def test_rows_that_do_not_fit_are_not_read_until_there_is_room(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "OUTBOX_PENDING_ROWS_MAX", 100)
    monkeypatch.setattr(limits, "OUTBOX_CHUNK_ROWS_MAX", 50)
    monkeypatch.setattr(limits, "HAND_ROWS_PER_TURN", 7)

    async def work() -> None:
        async with Subscriber() as subscriber:
            async with running(tmp_path, Routes(target(1, subscriber.url))) as work:
                log.append([event(n) for n in range(5_000)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(5_000)))
                    await until(lambda: len(subscriber.requests) == 5_000)
            assert Counter(subscriber.ids) == {f"e{n}": 1 for n in range(5_000)}
        assert [offset for offset, _, _ in outbox_rows(tmp_path)] == list(range(5_000))

    run(work())


class SlowRoutes(Routes):
    """Routes whose snapshots that a thread reads take until `let` is set."""

    def __init__(self, *targets: Target) -> None:
        super().__init__(*targets)
        self.let = threading.Event()
        self.let.set()
        self.asked = threading.Event()

    def snapshot(self) -> RoutingTable:
        table = super().snapshot()
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
            assert self.let.wait(30)
        return table


def test_a_row_of_a_new_target_is_delivered_while_the_table_that_names_it_is_read(tmp_path: Path, log: EventLog):
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = SlowRoutes(target(1, subscriber.url))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    routes.asked.clear()
                    routes.let.clear()
                    routes.put(target(2, subscriber.url))
                    await until(routes.asked.is_set)
                    peer.match((0, 2))
                    await until(lambda: subscriber.ids == ["e0"])
                    routes.let.set()

    run(work())


def test_a_part_that_ends_by_an_error_ends_the_dispatcher(tmp_path: Path):
    async def fail(_: PartitionWriter) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("nobody expected this")

    async def work() -> None:
        async with running(tmp_path, Routes(), retention=fail) as work:
            await until(work.task.done)

    with pytest.raises(RuntimeError, match="nobody expected this"):
        run(work())


def test_routing_that_cannot_be_read_once_is_read_again(tmp_path: Path):
    class Failing(Routes):
        failures = 0

        def snapshot(self) -> RoutingTable:
            if self.version == 2 and not self.failures:
                self.failures = 1
                raise UnavailableError("the database is locked")
            return super().snapshot()

    async def work() -> None:
        routes = Failing()
        async with running(tmp_path, routes) as work:
            routes.put(target(7, "http://127.0.0.1:9/"))
            await until(lambda: work.dispatcher.scheduler.find(7) is not None)
            assert routes.failures == 1

    run(work())
