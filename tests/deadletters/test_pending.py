"""Events that are not to be delivered at once: they wait on disk, and are delivered when their time has come."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from headgate.deadletters.api import DeadLettersApi, PendingApi
from headgate.deadletters.pending import Pending
from headgate.deadletters.sink_sender import DeadLetters
from headgate.deadletters.store import WAITING, DeadLetterState, DeadLetterStore, Ended, StoredDeadLetter
from headgate.delivery.attempts import Attempts
from headgate.delivery.events import SharedEvent
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import SYSTEM
from headgate.delivery.verdicts import FilterErrors, FinalCheck, evaluate, sent_from_us
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.observe import metrics
from headgate_api import limits
from headgate_api.event import rfc3339
from tests.deadletters.letters import letter, letters, page
from tests.delivery.harness import (
    BROKER,
    EventLog,
    Request,
    Routes,
    Subscriber,
    attempt_service,
    event,
    matcher,
    run,
    running,
    target,
)
from tests.support import until

S = 1_000_000
SOON_S = 0.6
HOURS = 3_600 * S


def in_(seconds: float) -> dict[str, Any]:
    """What says that an event is to be delivered so much later."""
    return {"extensions": {"deliverytime": rfc3339.text(time.time_ns() // 1_000 + int(seconds * 1e6))}}


def waiting(data: Path) -> list[StoredDeadLetter]:
    return [one for one in letters(data) if one.state is DeadLetterState.PENDING]


@dataclasses.dataclass
class At:
    """A subscriber that notes when it got what."""

    times: dict[str, float] = dataclasses.field(default_factory=dict)
    status: int = 202

    async def __call__(self, request: Request) -> tuple[int, bytes]:
        self.times[request.id] = time.time()
        return self.status, b""


def test_an_event_is_delivered_at_the_later_of_both_times_and_not_before(tmp_path: Path, log: EventLog) -> None:
    async def work() -> None:
        at = At()
        async with Subscriber(at) as subscriber:
            delayed = target(1, subscriber.url, delay_us=int(SOON_S * S))
            plain = target(2, subscriber.url + "plain")
            async with running(tmp_path, Routes(delayed, plain)) as work:
                begun = time.time()
                log.append([event(0), event(1, **in_(2 * SOON_S)), event(2, **in_(-60.0))])
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1), (1, 2), (2, 2))
                    await until(lambda: len(waiting(tmp_path)) == 3)
                    await until(lambda: work.dispatcher.unfinished == 0, "what waits is not in memory")
                    assert subscriber.ids == ["e2"], "its time has passed, and the trigger has no delay"
                    await until(lambda: len(subscriber.requests) == 4 and not waiting(tmp_path))
            assert at.times["e0"] >= begun + SOON_S
            assert at.times["e1"] >= begun + 2 * SOON_S
            assert max(at.times.values()) < begun + 2 * SOON_S + 1.0

    run(work())


def test_an_event_that_comes_to_hand_after_the_first_look_is_not_early(tmp_path: Path, log: EventLog, monkeypatch):
    """As beside a neighbour of its chunk, which is read for another delivery of the same attempt."""
    looked: set[int] = set()

    def second_look(self: Attempts, delivery: Delivery) -> SharedEvent | None:
        if delivery.position not in looked:
            return looked.add(delivery.position)
        return self._events.recent(delivery.partition, delivery.offset)

    monkeypatch.setattr(Attempts, "_at_hand", second_look)

    async def work() -> None:
        at = At()
        async with Subscriber(at) as subscriber:
            async with running(tmp_path, Routes(target(1, subscriber.url, delay_us=int(SOON_S * S)))) as work:
                begun = time.time()
                log.append([event(0), event(1)])
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1))
                    await until(lambda: len(subscriber.ids) == 2)
            assert min(at.times.values()) >= begun + SOON_S

    run(work())


def test_what_waits_outlives_its_dispatcher_and_the_log(tmp_path: Path, log: EventLog) -> None:
    async def work() -> None:
        at = At()
        async with Subscriber(at) as subscriber:
            routes = Routes(target(1, subscriber.url))
            async with running(tmp_path, routes) as work:
                due = time.time() + 2 * SOON_S
                log.append([event(0, data=b'{"n":7}', **in_(2 * SOON_S))])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(waiting(tmp_path)) == 1)
            log.close()
            for file in (tmp_path / "log").rglob("*.seg"):
                file.unlink()
            async with running(tmp_path, routes):
                await until(lambda: len(subscriber.requests) == 1 and not waiting(tmp_path))
            assert subscriber.requests[0].body == b'{"n":7}'
            assert at.times["e0"] >= due

    run(work())


def test_it_is_a_delivery_like_any_other(tmp_path: Path, log: EventLog) -> None:
    """Retries go on after a restart with their number; what is given up is a dead letter of its row."""

    async def work() -> None:
        at = At(status=503)
        async with Subscriber(at) as subscriber:
            rules = {"retry": 2, "backoff_delay_s": 0.2, "dead_letter_uri": "", "delay_us": 100_000}
            routes = Routes(target(1, subscriber.url, **rules))
            async with running(tmp_path, routes, drain_s=0.0) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: [one.failures for one in waiting(tmp_path)] == [1])
            async with running(tmp_path, routes):
                await until(lambda: [one.state for one in letters(tmp_path)] == [DeadLetterState.KEPT])
            (found,) = letters(tmp_path)
            assert (found.position, found.attempts, found.code) == (0, 3, 503)
            assert len(subscriber.requests) == 3

    run(work())


def test_the_filter_of_its_time_decides(tmp_path: Path, log: EventLog) -> None:
    async def work() -> None:
        async with Subscriber() as subscriber:
            delayed = target(1, subscriber.url, delay_us=int(SOON_S * S))
            routes = Routes(delayed)
            async with running(tmp_path, routes) as work:
                log.append([event(0), event(1, data=b'{"n":2}')])
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1))
                    await until(lambda: len(waiting(tmp_path)) == 2)
                    routes.put(dataclasses.replace(delayed, filter=CompiledFilter("data.n == 2", ())))
                    await until(lambda: not waiting(tmp_path))
            assert subscriber.ids == ["e1"]

    run(work())


def test_what_the_filter_refuses_does_not_wait(tmp_path: Path, log: EventLog) -> None:
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url, cel="data.n == 2", delay_us=HOURS))
            async with running(tmp_path, routes) as work:
                log.append([event(0), event(1, data=b'{"n":2}')])
                filtered = metrics.DELIVERIES.labels("filtered").value
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1), verdict=Verdict.CANDIDATE)
                    await until(lambda: metrics.DELIVERIES.labels("filtered").value == filtered + 1)
                    await until(lambda: [one.event.id for one in waiting(tmp_path)] == ["e1"])
            assert subscriber.requests == []

    run(work())


def test_a_paused_trigger_gets_what_is_due_when_it_is_resumed(tmp_path: Path, log: EventLog) -> None:
    async def work() -> None:
        async with Subscriber() as subscriber:
            delayed = target(1, subscriber.url, delay_us=S, parallelism=1)  # two connections may pass each other
            routes = Routes(delayed)
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(waiting(tmp_path)) == 1)
                    routes.put(dataclasses.replace(delayed, paused=True))
                    await until(lambda: metrics.PENDING_OVERDUE.value > 0.1)
                    assert subscriber.requests == []
                    later = [event(number) for number in range(1, 5)]
                    log.append(later)
                    peer.match(*((number, 1) for number in range(1, 5)))
                    stored_s = time.time()
                    await until(lambda: time.time() > stored_s + 1.2, "their times come while it is paused")
                    routes.put(delayed)
                    await until(lambda: len(subscriber.ids) == 5)
                    assert subscriber.ids == [f"e{number}" for number in range(5)], "in the order of their times"

    run(work())


def test_what_comes_late_goes_out_behind_what_was_due_before(tmp_path: Path, log: EventLog, monkeypatch) -> None:
    """As when a machine stood still: some have waited, their times have come, and so have those of others."""
    read = Pending._release

    async def slow(pending: Pending, target: int, now_us: int) -> None:
        await come.wait()
        await read(pending, target, now_us)

    monkeypatch.setattr(Pending, "_release", slow)
    come = asyncio.Event()

    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url, delay_us=S // 2, parallelism=1))
            async with running(tmp_path, routes) as work:
                log.append([event(number) for number in range(4)])
                stored_s = time.time()
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1))
                    await until(lambda: len(waiting(tmp_path)) == 2)
                    await until(lambda: time.time() > stored_s + 0.7, "all are due")
                    peer.match((2, 1), (3, 1))
                    await until(lambda: len(waiting(tmp_path)) == 4)
                    come.set()
                    await until(lambda: len(subscriber.ids) == 4)
            assert subscriber.ids == ["e0", "e1", "e2", "e3"]

    run(work())


def test_what_a_trigger_waited_for_goes_with_it(tmp_path: Path, log: EventLog) -> None:
    """It is deleted, or the right to its broker ends: it is routed no more. Nobody looks at it any more, either."""

    async def work() -> None:
        async with Subscriber() as subscriber:
            kept = target(2, subscriber.url, delay_us=24 * HOURS)
            routes = Routes(target(1, subscriber.url, delay_us=24 * HOURS), kept)
            async with running(tmp_path, routes) as work:
                log.append([event(number) for number in range(5)])
                async with matcher(work) as peer:
                    peer.match(*((number, to) for number in range(5) for to in (1, 2)))
                    await until(lambda: len(waiting(tmp_path)) == 10)
                    routes.delete(1)
                    await until(lambda: {one.target for one in waiting(tmp_path)} == {2})
            routes.delete(2)
            async with running(tmp_path, routes):
                await until(lambda: not waiting(tmp_path), "deleted while nobody looked")
            assert subscriber.requests == []

    run(work())


def test_what_a_deleted_trigger_waited_for_is_counted_as_gone(tmp_path: Path, log: EventLog) -> None:
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url, delay_us=int(SOON_S * S)), target(2, subscriber.url))
            async with running(tmp_path, routes) as work:
                gone = metrics.DELIVERIES.labels("gone").value
                log.append([event(number) for number in range(5)])
                async with matcher(work) as peer:
                    peer.match(*((number, 1) for number in range(5)))
                    await until(lambda: len(waiting(tmp_path)) == 5)
                    routes.delete(1)
                    await until(lambda: not waiting(tmp_path))
                    await until(lambda: metrics.DELIVERIES.labels("gone").value == gone + 5)
            assert subscriber.requests == []

    run(work())


def test_a_full_store_lets_deliveries_wait_in_the_outbox(tmp_path: Path, log: EventLog, monkeypatch) -> None:
    monkeypatch.setattr(limits, "PENDING_MAX", 2)
    monkeypatch.setattr(limits, "DEADLETTER_RETRY_S", 0.05)

    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url, delay_us=HOURS), target(2, subscriber.url + "plain"))
            async with running(tmp_path, routes) as work:
                log.append([event(number) for number in range(6)])
                async with matcher(work) as peer:
                    peer.match(*((number, 1) for number in range(6)), (5, 2))
                    await until(lambda: subscriber.ids == ["e5"])
                    await until(lambda: _backlogs(routes)[-1:] == ["PendingFull"])
                    assert len(waiting(tmp_path)) == 2
                    assert work.dispatcher.unfinished == 4
                    monkeypatch.setattr(limits, "PENDING_MAX", 100)
                    await until(lambda: len(waiting(tmp_path)) == 6)
                    await until(lambda: _backlogs(routes)[-1:] == [""])

    run(work())


def _backlogs(routes: Routes) -> list[str]:
    """What was told of backlogs, the reasons alone."""
    return [report.backlog.partition(":")[0] for report in routes.reports if report.backlog is not None]


def test_one_target_whose_subscriber_hangs_does_not_hold_up_another(tmp_path: Path, log: EventLog, monkeypatch) -> None:
    monkeypatch.setattr(limits, "PENDING_RELEASED_MAX", 4)

    async def hang(request: Request) -> tuple[int, bytes]:
        if request.path == "/hangs":
            await asyncio.sleep(3_600)
        return 202, b""

    async def work() -> None:
        async with Subscriber(hang) as subscriber:
            rules = {"delay_us": 300_000, "parallelism": 1}
            routes = Routes(target(1, subscriber.url + "hangs", **rules), target(2, subscriber.url, **rules))
            async with running(tmp_path, routes, drain_s=0.0) as work:
                log.append([event(number) for number in range(20)])
                async with matcher(work) as peer:
                    peer.match(*((number, one) for number in range(20) for one in (1, 2)))
                    await until(lambda: sum(one.path == "/" for one in subscriber.requests) == 20)
                    held = work.dispatcher.scheduler._states[1].deliveries.live
                    assert len(held) == 4, "the others are on disk alone"
            assert [one.id for one in subscriber.requests if one.path == "/"] == [f"e{n}" for n in range(20)]

    run(work())


def test_what_is_cancelled_is_not_delivered(tmp_path: Path, log: EventLog) -> None:
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url, delay_us=int(SOON_S * S)))
            async with running(tmp_path, routes) as work:
                pending: Pending = work.dispatcher.deliveries.pending
                cancelled = metrics.DELIVERIES.labels("cancelled").value
                log.append([event(0), event(1)])
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1))
                    await until(lambda: len(waiting(tmp_path)) == 2)
                    first = waiting(tmp_path)[0]
                    assert await pending.cancel([first.id, first.id, 999]) == 1
                    await until(lambda: subscriber.ids == ["e1"] and not waiting(tmp_path))
                assert metrics.DELIVERIES.labels("cancelled").value == cancelled + 1

    run(work())


@pytest.mark.parametrize(
    ("delay_us", "deliverytime", "due_us"),
    [
        (0, None, 0),
        (60 * S, None, 160 * S),
        (0, "1970-01-01T00:02:00Z", 120 * S),
        (60 * S, "1970-01-01T00:02:00Z", 160 * S),
        (60 * S, "1970-01-01T00:03:00Z", 180 * S),
        (0, "no time", 0),
    ],
)
def test_the_later_of_both_times_counts_and_ttl_begins_there(delay_us: int, deliverytime: str | None, due_us: int):
    """The event is stored at 100 s."""
    more = {"extensions": {"deliverytime": deliverytime}} if deliverytime else {}
    shared = SharedEvent(BROKER, event(0, **more), 100 * S)
    to = target(1, "http://x/", delay_us=delay_us, ttl_us=10 * S)
    assert sent_from_us(to, shared) == due_us
    due_us = due_us or 100 * S
    said = {}
    for at_us in (due_us - 1, due_us, due_us + 10 * S - 1, due_us + 10 * S):
        check = FinalCheck(evaluate, FilterErrors(), lambda at_us=at_us: at_us)
        said[at_us - due_us] = bool(check.lateness(to, shared)), check.is_time(due_us)
    assert [late for late, _ in said.values()] == [False, False, False, True]
    assert [is_time for _, is_time in said.values()] == [False, True, True, True]


# --- the store ------------------------------------------------------------------------------------


def pending_row(position: int, due_us: int = HOURS, **changes: object) -> StoredDeadLetter:
    return letter(position, state=DeadLetterState.PENDING, due_us=due_us, reason="", **changes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DeadLetterStore]:
    opened = DeadLetterStore(tmp_path / "deadletters.db")
    yield opened
    opened.close()


def test_both_parts_have_their_own_room_and_numbers(store: DeadLetterStore, monkeypatch) -> None:
    monkeypatch.setattr(limits, "PENDING_MAX", 2)
    assert store.apply([pending_row(0), pending_row(1), pending_row(2)], [], []) == 2
    assert store.apply([letter(3), letter(4), letter(5)], [], []) == 3
    totals = store.totals()
    assert (totals.count, totals.pending) == (3, 2)
    assert (store.held, store.pending_held) == ({"default": 3}, {"default": 2})
    assert len(store.waiting()) == 1, "what waits for its time is no queue of a sink"
    first = page(store.reader, WAITING)[0]
    store.apply([], [Ended(first.id, DeadLetterState.SENDING)], [])
    assert store.totals().pending == 2, "it is no dead letter"
    assert store.redrive([first.id], now_us=1, pace_us=1) == 0
    assert store.discard([first.id]) == 0
    assert [one.id for one in store.cancel([first.id, 999])] == [first.id]
    assert (store.totals().pending, store.pending_held["default"]) == (1, 1)


def test_the_first_due_comes_first_and_equals_in_their_order(store: DeadLetterStore) -> None:
    dues = [5, 3, 3, 9, 1]
    store.apply([pending_row(number, due) for number, due in enumerate(dues)], [], [])
    store.apply([pending_row(7, 4, target=2)], [], [])
    assert store.reader.first_pending() == {1: 1, 2: 4}
    assert [one.position for one in store.reader.pending(1, 10)] == [4, 1, 2, 0, 3]
    assert [one.position for one in store.reader.pending(1, 2)] == [4, 1]


def test_a_row_that_comes_twice_is_there_once(store: DeadLetterStore) -> None:
    assert store.apply([pending_row(0), pending_row(0)], [], []) == 2
    assert store.apply([pending_row(0)], [], []) == 1
    assert store.totals().pending == 1


def test_a_dead_letter_takes_the_place_of_what_waited(store: DeadLetterStore) -> None:
    store.apply([pending_row(3)], [], [])
    (waited,) = page(store.reader)
    store.apply([letter(-waited.id, pending=waited.id)], [], [])
    (found,) = page(store.reader)
    assert (found.state, found.position) == (DeadLetterState.SENDING, 3)
    assert (store.totals().count, store.totals().pending) == (1, 0)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM letters WHERE state = 'pending' AND event_id = 'x'",
        "SELECT id, position FROM letters WHERE target = 1 AND state = 'pending' ORDER BY due_us, id LIMIT 9",
        "SELECT min(due_us) FROM letters WHERE state = 'pending' AND target = 1",
    ],
)
def test_what_waits_is_found_by_an_index_alone(store: DeadLetterStore, query: str) -> None:
    plan = " ".join(str(row) for row in store._connection.execute(f"EXPLAIN QUERY PLAN {query}"))
    assert "INDEX pending_" in plan, plan
    assert "TEMP B-TREE" not in plan, plan


# --- the API --------------------------------------------------------------------------------------

BASE = "/apis/headgate.dev/v1/namespaces/default/pending"


async def asked(
    routes: Iterable[Route], method: str, path: str, body: dict[str, Any] | None = None, query: str = ""
) -> tuple[int, Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body or {}).encode(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers}
    await Starlette(routes=[*routes], exception_handlers=ERROR_HANDLERS)(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


class Asked:
    """The handlers over a store of a temporary directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, query: str = "") -> tuple[int, Any]:
        async def serve() -> tuple[int, Any]:
            owner = DeadLetters(self.path, attempt_service(None), lambda _: None)
            pending = Pending(self.path, owner, SYSTEM)
            routes = [*DeadLettersApi(self.path, owner).routes(), *PendingApi(self.path, pending).routes()]
            try:
                return await asked(routes, method, path, body, query)
            finally:
                await pending.close()
                await owner.close()

        return asyncio.run(serve())


@pytest.mark.parametrize("taken_away", ["pending/cancel", "deadletters/discard"])
def test_a_kill_does_not_bring_back_what_was_taken_away(tmp_path: Path, log: EventLog, taken_away: str) -> None:
    """The cursors that say that its row of the outbox has ended are in their file before the answer."""
    data = tmp_path / "as it was when the answer came"

    async def work() -> None:
        async with Subscriber(At(status=400)) as subscriber:
            delay_us = HOURS if "pending" in taken_away else 0
            routes = Routes(target(1, subscriber.url, delay_us=delay_us, dead_letter_uri=""))
            async with running(tmp_path, routes) as work:
                deliveries = work.dispatcher.deliveries
                deliveries.flusher._pause_s = 1.0
                log.append([event(0), event(1)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    at_rest = [DeadLetterState.PENDING], [DeadLetterState.KEPT]
                    await until(lambda: [one.state for one in letters(tmp_path)] in at_rest)
                    path = BASE.replace("pending", taken_away)
                    assert (await asked(deliveries.routes(None), "POST", path))[1]["count"] == 1
                    shutil.copytree(tmp_path, data, ignore=shutil.ignore_patterns(data.name, "*.sock"))
            sent = len(subscriber.requests)
            async with running(data, routes) as work, matcher(work) as peer:
                peer.match((1, 1))
                await until(lambda: [one.offset for one in letters(data)] == [1])
            assert len(subscriber.requests) == sent + (0 if delay_us else 1)

    run(work())


def test_the_api_has_what_waits_apart_from_dead_letters(tmp_path: Path) -> None:
    path = tmp_path / "deadletters.db"
    with contextlib.closing(DeadLetterStore(path)) as store:
        store.apply([pending_row(n, (n + 1) * HOURS) for n in range(4)] + [letter(9)], [], [])
        store.apply([pending_row(5, trigger="other/t")], [], [])
    api = Asked(path)
    listed = api.ask("GET", BASE)[1]["items"]
    assert [(one["eventId"], one["due"]) for one in listed[:2]] == [
        ("e0", "1970-01-01T01:00:00.000000Z"),
        ("e1", "1970-01-01T02:00:00.000000Z"),
    ]
    assert len(listed) == 4
    one = api.ask("GET", f"{BASE}/{listed[2]['id']}")[1]
    assert (one["event"]["id"], one["trigger"], one["attempts"]) == ("e2", "t1", 0)
    assert [one["eventId"] for one in api.ask("GET", BASE, query="event=e3")[1]["items"]] == ["e3"]
    assert [one["eventId"] for one in api.ask("GET", BASE, query="until=1970-01-01T01:30:00Z")[1]["items"]] == ["e0"]
    assert api.ask("GET", BASE, query="source=/else")[1]["items"] == []
    assert api.ask("GET", f"{BASE}/counts")[1]["total"] == 4
    assert api.ask("GET", BASE.replace("pending", "deadletters") + "/counts")[1]["total"] == 1
    letters = api.ask("GET", BASE.replace("pending", "deadletters"))[1]["items"]
    assert [one["eventId"] for one in letters] == ["e9"]
    assert api.ask("GET", f"{BASE}/{letters[0]['id']}")[0] == 404
    assert api.ask("GET", f"{BASE.replace('pending', 'deadletters')}/{listed[0]['id']}")[0] == 404
    assert api.ask("GET", BASE, query="state=pending")[0] == 400
    assert api.ask("GET", BASE.replace("pending", "deadletters"), query="state=pending")[0] == 400
    assert api.ask("POST", f"{BASE}/cancel", {"event": "e1"})[1]["count"] == 1
    assert api.ask("POST", f"{BASE}/cancel", {"filter": "ce.id == 'e2'"})[1]["count"] == 1
    assert api.ask("POST", f"{BASE}/cancel", {"ids": [listed[0]["id"], 999]})[1]["count"] == 1
    assert [one["eventId"] for one in api.ask("GET", BASE)[1]["items"]] == ["e3"]
    assert api.ask("POST", f"{BASE}/cancel", {})[1]["count"] == 1
    assert [one["namespace"] for one in api.ask("GET", "/apis/headgate.dev/v1/pending")[1]["items"]] == ["other"]
