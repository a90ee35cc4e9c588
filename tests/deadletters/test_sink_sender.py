"""Dead letters on real sockets: what they carry, where they go, and that none is lost."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headgate.deadletters import store as letters_module
from headgate.deadletters.sink_sender import DeadLetters
from headgate.deadletters.store import (
    DeadLetterState,
    DeadLetterStore,
    Ended,
    Reschedule,
    SendQueue,
)
from headgate.delivery.events import Headers
from headgate.delivery.retry import Outcome
from headgate.filter.compile.plan import Verdict
from headgate.objects.kinds.routing import PullRules, Target
from headgate.observe import metrics
from headgate_api import limits
from tests.deadletters.letters import letter, letters, page
from tests.delivery.harness import (
    EventLog,
    Request,
    Routes,
    Subscriber,
    attempt_service,
    event,
    matcher,
    refuse,
    run,
    running,
    target,
)
from tests.support import until

HTML = b"<!DOCTYPE html>\n<html><body><h1>404</h1>\r\n" + b"<p>not found</p>" * 100 + b"</body></html>"


@pytest.mark.parametrize(
    ("status", "body", "kept"),
    [
        (400, b"", b""),
        (400, b"no", b"no"),
        (400, b"a" * 767, b"a" * 767),
        (413, b"b" * 768, b"b" * 768),
        (400, b"c" * 769, b"c" * 768),
        (400, bytes(range(256)) * 4, bytes(range(256)) * 3),
        (503, b"d" * (1 << 20), b"d" * 768),
        (404, HTML, HTML[:768]),
    ],
)
def test_a_dead_letter_says_what_went_wrong(tmp_path: Path, log: EventLog, status: int, body: bytes, kept: bytes):
    async def answer(_: Request) -> tuple[int, bytes]:
        return status, body

    async def work() -> None:
        async with Subscriber(answer) as subscriber, Subscriber() as sink:
            routes = Routes(target(1, subscriber.url + "a?b=c", retry=1, dead_letter_uri=sink.url + "dead"))
            async with running(tmp_path, routes) as work:
                log.append([event(0, data=b'{"n": 1.50}')])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(sink.requests) == 1 and letters(tmp_path) == [])
            (found,) = sink.requests
            assert found.path == "/dead"
            assert found.body == b'{"n": 1.50}'
            assert found.header("ce-id") == "e0"
            assert found.header("ce-knativeerrordest") == subscriber.url + "a?b=c"
            assert found.header("ce-knativeerrorcode") == str(status)
            text = found.header("ce-knativeerrordata") or ""
            assert len(text) <= 1_024
            assert base64.b64decode(text) == kept
            assert found.header("prefer") is None, "a sink's answer is no reply"

    run(work())


def test_no_answer_is_a_500_with_words(tmp_path: Path, log: EventLog):
    async def hang(_: Request) -> tuple[int, bytes]:
        await asyncio.sleep(3_600)
        return 202, b""

    async def work() -> None:
        async with Subscriber(hang) as subscriber, Subscriber() as sink:
            rules = {"retry": 0, "timeout_s": 0.05, "dead_letter_uri": sink.url, "format": "json"}
            async with running(tmp_path, Routes(target(1, subscriber.url, **rules))) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(sink.requests) == 1)
            found = json.loads(sink.requests[0].body)
            assert sink.requests[0].header("content-type") == "application/cloudevents+json"
            assert found["knativeerrorcode"] == 500
            assert base64.b64decode(found["knativeerrordata"]).startswith(b"timeout")
            assert found["data"] == {"n": 1}

    run(work())


def test_without_a_sink_an_event_is_dropped_and_counted(tmp_path: Path, log: EventLog):
    async def work() -> None:
        failed = metrics.DELIVERIES.labels("failed").value
        async with Subscriber(refuse) as subscriber, running(tmp_path, Routes(target(1, subscriber.url))) as work:
            log.append([event(0)])
            async with matcher(work) as peer:
                peer.match((0, 1))
                await until(lambda: len(subscriber.requests) == 1 and work.dispatcher.unfinished == 0)
        assert metrics.DELIVERIES.labels("failed").value == failed + 1
        assert letters(tmp_path) == []

    run(work())


def test_a_failing_sink_is_tried_again_and_then_the_letter_is_kept(tmp_path: Path, log: EventLog, monkeypatch):
    """The trigger does not wait for its sink; what the sink refuses survives a restart and can go again."""
    monkeypatch.setattr(limits, "DEADLETTER_SLEEP_S_MAX", 3_600.0)  # nothing is polled
    takes = False

    async def sink_answer(_: Request) -> tuple[int, bytes]:
        return (202, b"") if takes else (503, b"later")

    async def answer(request: Request) -> tuple[int, bytes]:
        return (202 if takes or request.id != "e0" else 400), b""

    async def work() -> None:
        nonlocal takes
        async with Subscriber(answer) as subscriber, Subscriber(sink_answer) as sink:
            rules = {"retry": 2, "backoff_delay_s": 0.02, "dead_letter_uri": sink.url, "ordered": True}
            routes = Routes(target(1, subscriber.url, **rules))
            async with running(tmp_path, routes) as work:
                log.append([event(0), event(1)])
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1))
                    await until(lambda: "e1" in subscriber.ids)
                    await until(lambda: len(sink.requests) == 3)
                    await until(lambda: [one.state for one in letters(tmp_path)] == [DeadLetterState.KEPT])
            (kept,) = letters(tmp_path)
            assert kept.problem == f"{sink.url}: status 503: later"
            assert (kept.event.id, kept.code, kept.attempts) == ("e0", 400, 1)
            takes = True
            subscriber.requests.clear()
            async with running(tmp_path, routes) as work:
                await asyncio.sleep(0.1)
                assert len(sink.requests) == 3, "a kept letter goes nowhere by itself"
                assert await work.dispatcher.deliveries.dead_letters.redrive([kept.id], pace_us=0) == 1
                await until(lambda: subscriber.ids == ["e0"])
                await until(lambda: letters(tmp_path) == [])
            assert subscriber.requests[0].header("ce-knativeerrorcode") is None, "the event as it was"

    run(work())


def test_sending_goes_on_after_a_restart(tmp_path: Path, log: EventLog):
    takes = False

    async def answer(_: Request) -> tuple[int, bytes]:
        return (202, b"") if takes else (503, b"")

    async def work() -> None:
        nonlocal takes
        async with Subscriber(refuse) as subscriber, Subscriber(answer) as sink:
            rules = {"retry": 1_000, "backoff_delay_s": 0.2, "backoff_policy": "linear", "dead_letter_uri": sink.url}
            routes = Routes(target(1, subscriber.url, **rules))
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(20)])
                async with matcher(work) as peer:
                    peer.match(*((n, 1) for n in range(20)))
                    await until(lambda: len(set(sink.ids)) == 20)
            takes = True
            tried = len(sink.requests)
            async with running(tmp_path, routes):
                await until(lambda: letters(tmp_path) == [])
            assert set(sink.ids[tried:]) == {f"e{n}" for n in range(20)}
            assert subscriber.ids.count("e0") == 1

    run(work())


def test_a_sink_without_an_address_keeps_its_letters(tmp_path: Path, log: EventLog):
    async def work() -> None:
        async with Subscriber(refuse) as subscriber:
            routes = Routes(target(1, subscriber.url, dead_letter_uri=""))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: [one.state for one in letters(tmp_path)] == [DeadLetterState.KEPT])

    run(work())


def test_a_full_store_makes_deliveries_wait_and_loses_none(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "DEADLETTERS_MAX", 3)
    monkeypatch.setattr(limits, "DEADLETTER_RETRY_S", 0.02)

    async def answer(request: Request) -> tuple[int, bytes]:
        return (400 if request.path == "/bad" else 202), b""

    async def work() -> None:
        async with Subscriber(answer) as subscriber:
            routes = Routes(target(1, subscriber.url + "bad", dead_letter_uri=""), target(2, subscriber.url + "good"))
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(10)])
                async with matcher(work) as peer:
                    peer.match(*((n, t) for n in range(10) for t in (1, 2)))
                    await until(lambda: sum(request.path == "/good" for request in subscriber.requests) == 10)
                    await until(lambda: len(letters(tmp_path)) == 3)
                    await until(lambda: work.dispatcher.unfinished == 7)
                    seen: set[str] = set()
                    while len(seen) < 10:
                        found = letters(tmp_path)
                        seen |= {one.event.id for one in found}
                        kept = [one.id for one in found if one.state is DeadLetterState.KEPT]
                        await work.dispatcher.deliveries.dead_letters.discard(kept)
                        await asyncio.sleep(0.01)
                    await until(lambda: work.dispatcher.unfinished == 0)

    run(work())


@pytest.mark.parametrize("verdict", [Verdict.ERROR, Verdict.CANDIDATE])
@pytest.mark.parametrize("kept", [True, False])
def test_filter_errors_are_dead_letters_where_asked(tmp_path: Path, log: EventLog, verdict: Verdict, kept: bool):
    async def work() -> None:
        async with Subscriber() as subscriber, Subscriber() as sink:
            rules = {"dead_letter_uri": sink.url, "filter_errors_kept": kept}
            routes = Routes(target(1, subscriber.url, cel='data.n > "a"', **rules))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1), verdict=verdict)
                    if kept:
                        await until(lambda: len(sink.requests) == 1)
                    await until(lambda: bool(routes.reports) and work.dispatcher.unfinished == 0)
            assert subscriber.requests == []
            assert len(sink.requests) == kept
            if kept:
                assert sink.requests[0].header("ce-knativeerrorcode") == "422"
                words = base64.b64decode(sink.requests[0].header("ce-knativeerrordata") or "")
                assert b"overload" in words

    run(work())


# --- sending alone, without a dispatcher ----------------------------------------------------------------


class Net:
    """Subscribers and sinks: hosts that begin with `hang` answer never, the others when their gate is open.

    Attributes:
        shuts_after: Letters after which the gate closes by itself.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.got: list[str] = []
        self.flying = self.most = self.shuts_after = 0

    async def post(self, url: str, headers: Headers, _: bytes, timeout_s: float) -> Outcome:
        if "//hang" in url:
            await asyncio.sleep(timeout_s)
            return Outcome(0, "timeout")
        self.flying += 1
        self.most = max(self.most, self.flying)
        await asyncio.sleep(0)
        await self.gate.wait()
        self.flying -= 1
        self.got.append(dict(headers)["ce-id"])
        if len(self.got) == self.shuts_after:
            self.gate.clear()
        return Outcome(202)


class Sending:
    """Dead letters of these targets, on their way."""

    def __init__(self, data: Path, *targets: Target) -> None:
        self.net = Net()
        self.path = data / "deadletters.db"
        self.store = DeadLetterStore(self.path)
        self.targets = {one.id: one for one in targets}
        self.turns = 0

    async def __aenter__(self) -> Sending:
        self.work = DeadLetters(self.path, attempt_service(self.net), self.targets.get)
        waiting = self.work._store.waiting

        def counted() -> dict[SendQueue, int]:
            self.turns += 1
            return waiting()

        self.work._store.waiting = counted  # type: ignore[method-assign]
        self.work.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.work.close()
        self.store.close()

    async def more_turns(self, count: int) -> None:
        enough = self.turns + count
        await until(lambda: self.turns >= enough)

    def redrive(self, count: int) -> None:
        self.store.apply([letter(n, state=DeadLetterState.KEPT) for n in range(count)], [], [])
        assert self.store.redrive(range(1, count + 1), now_us=0, pace_us=1) == count


def hanging(number: int, **rules: Any) -> Target:
    return target(number, "http://fine/", dead_letter_uri=f"http://hang{number}/", **rules)


def test_sinks_that_hang_leave_places_to_others(tmp_path: Path, monkeypatch):
    """There are more of them than places, each has letters enough to take every place that comes free."""
    monkeypatch.setattr(limits, "DEADLETTER_ATTEMPTS_MAX", 4)
    rules = {"timeout_s": 0.02, "retry": 1_000, "backoff_delay_s": 0.0}

    async def work() -> None:
        fine = target(9, "http://x/", dead_letter_uri="http://fine/")
        sending = Sending(tmp_path, *(hanging(n, **rules) for n in range(1, 9)), fine)
        sending.store.apply([letter(n, target=t) for t in range(1, 9) for n in range(10)], [], [])
        sending.store.apply([letter(n, target=9) for n in range(10)], [], [])
        async with sending:
            await until(lambda: len(sending.net.got) == 10)

    run(work())


def test_a_sink_that_hangs_holds_one_place_and_costs_nothing_more(tmp_path: Path, monkeypatch):
    decoded: list[bytes] = []
    decode = letters_module._decode_event
    monkeypatch.setattr(letters_module, "_decode_event", lambda raw: decoded.append(raw) or decode(raw))

    async def work() -> None:
        sending = Sending(tmp_path, hanging(1, timeout_s=60.0))
        sending.store.apply([letter(n) for n in range(50)], [], [])
        async with sending:
            await until(lambda: bool(sending.work._busy))
            await sending.more_turns(5)
            assert len(sending.work._busy) == 1
            assert len(decoded) == 1, "only what is started is read"

    run(work())


def test_a_redrive_does_not_wait_for_the_sink_of_its_trigger(tmp_path: Path):
    async def work() -> None:
        sending = Sending(tmp_path, hanging(1, timeout_s=60.0))
        sending.redrive(3)
        sending.store.apply([letter(100 + n) for n in range(400)], [], [])
        async with sending:
            await until(lambda: sorted(sending.net.got) == ["e0", "e1", "e2"])

    run(work())


@pytest.mark.parametrize(("rules", "most"), [({"ordered": True}, 1), ({"parallelism": 3}, 3), ({}, 32)])
def test_a_redrive_keeps_its_triggers_parallelism_and_order(tmp_path: Path, rules: dict[str, Any], most: int):
    async def work() -> None:
        sending = Sending(tmp_path, target(1, "http://fine/", **rules))
        sending.redrive(70)
        sending.net.shuts_after = 1  # somebody has answered: all places are its own
        async with sending:
            await until(lambda: sending.net.flying == most)
            await sending.more_turns(3)
            sending.net.gate.set()
            await until(lambda: len(sending.net.got) == 70)
        assert sending.net.most == most
        if rules.get("ordered"):
            assert sending.net.got == [f"e{n}" for n in range(70)]

    run(work())


def test_a_redriven_letter_of_a_subscription_goes_to_its_sink_again(tmp_path: Path):
    async def work() -> None:
        pulled = target(1, "", dead_letter_uri="http://sink/")
        sending = Sending(tmp_path, dataclasses.replace(pulled, pull=PullRules(max_deliveries=3)))
        sending.redrive(2)
        async with sending:
            await until(lambda: sending.net.got == ["e0", "e1"])
            await until(lambda: sending.store.totals().count == 0)

    run(work())


@pytest.mark.parametrize("cel", ["true", "false"])
def test_a_letter_of_a_trigger_that_is_gone_goes_to_another_one(tmp_path: Path, cel: str):
    """Its filter is not asked: a trigger that wants no event is how dead letters come to a URL."""

    async def work() -> None:
        async with Sending(tmp_path, target(2, "http://heir/", cel=cel, dead_letter_uri="")) as sending:
            await sending.work.put(dataclasses.replace(letter(sink=""), state=DeadLetterState.KEPT))
            (kept,) = [one.id for one in page(sending.store.reader)]
            assert await sending.work.redrive([kept], pace_us=0, to=sending.targets[2]) == 1
            await until(lambda: sending.net.got == ["e0"])
            await until(lambda: not sending.store.totals().count)

    run(work())


def test_a_redrive_keeps_its_triggers_rate_limit(tmp_path: Path):
    async def work() -> None:
        sending = Sending(tmp_path, target(1, "http://fine/", rate_per_s=limits.RATE_PER_S_MIN))
        sending.redrive(5)
        async with sending:
            await until(lambda: bool(sending.net.got))
            await sending.more_turns(3)
            assert sending.net.got == ["e0"]

    run(work())


def test_a_redrive_to_a_paused_trigger_waits_without_being_looked_at_all_the_time(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(limits, "DEADLETTER_TURN_S", 0.001)
    monkeypatch.setattr(limits, "DEADLETTER_SLEEP_S_MAX", 0.5)

    async def work() -> None:
        goes_on = target(1, "http://fine/")
        sending = Sending(tmp_path, dataclasses.replace(goes_on, paused=True))
        sending.redrive(2)
        async with sending:
            began = asyncio.get_running_loop().time()
            await sending.more_turns(4)
            assert asyncio.get_running_loop().time() - began > 1.0
            assert not sending.net.got
            sending.targets[1] = goes_on
            await until(lambda: sending.net.got == ["e0", "e1"])

    run(work())


def test_a_file_that_is_damaged_ends_the_dispatcher_and_does_not_hold_up_its_end(tmp_path: Path, monkeypatch):
    writes = 0

    def damaged(*_: object) -> int:
        nonlocal writes
        writes += 1
        raise sqlite3.DatabaseError("database disk image is malformed")

    monkeypatch.setattr(DeadLetterStore, "apply", damaged)

    async def work() -> None:
        said: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context.get("exception")))
        path = tmp_path / "deadletters.db"
        dead = DeadLetters(path, attempt_service(Net()), lambda _: None)
        buried = asyncio.create_task(dead.put(letter(0)))
        await until(lambda: bool(said))
        again = asyncio.create_task(dead.put(letter(1)))
        await asyncio.sleep(0)
        await dead.close()
        assert (writes, len(said)) == (1, 1)
        assert isinstance(said[0], sqlite3.DatabaseError)
        assert not buried.done()
        assert not again.done()
        for task in (buried, again):
            task.cancel()

    run(work(), 10.0)


# --- the store alone ------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path):
    store = DeadLetterStore(tmp_path / "deadletters.db")
    yield store
    store.close()


def test_letters_come_back_as_they_went_and_only_once(store: DeadLetterStore):
    one = letter(7, data=b"\x00\xff", sink="http://sink/", due_us=5)
    assert store.apply([one, one], [], []) == 2
    (found,) = page(store.reader)
    assert dataclasses.replace(found, id=0) == one
    assert store.totals().count == 1
    assert store.totals().bytes > len(one.event.data or b"")
    assert store.waiting() == {(1, DeadLetterState.SENDING): 5}
    assert store.due(SendQueue(1, DeadLetterState.SENDING), 4, 9) == []
    assert store.due(SendQueue(1, DeadLetterState.SENDING), 5, 9) == [found]
    store.apply([], [], [Reschedule(found.id, DeadLetterState.SENDING, DeadLetterState.KEPT, 3, 0, 0, "why")])
    assert (store.waiting(), store.totals().kept) == ({}, 1)
    store.apply([letter(8)], [Ended(found.id, DeadLetterState.KEPT)], [])
    assert (store.totals().count, store.totals().kept) == (1, 0)


def test_a_redrive_keeps_its_pace_over_pages_and_a_restart(store: DeadLetterStore):
    store.apply([letter(n, state=DeadLetterState.KEPT) for n in range(6)], [], [])
    ids = [one.id for one in page(store.reader)]
    assert store.redrive(ids[:3], now_us=1_000, pace_us=100) == 3
    assert store.redrive(ids[2:5], now_us=1_000, pace_us=100) == 2, "one is on its way already"

    def due() -> list[int]:
        return [one.due_us for one in page(store.reader, "state = 'redriving'")]

    assert due() == [1_000, 1_100, 1_200, 1_300, 1_400]
    store.resume(1_250)
    assert due() == [1_250, 1_350, 1_450, 1_550, 1_650]
    assert store.discard(ids) == 6
    assert store.totals().bytes == 0


def test_a_redrive_waits_neither_for_other_triggers_nor_for_a_letter_in_back_off(store: DeadLetterStore):
    store.apply([letter(0), letter(0, target=2), letter(1)], [], [])
    assert store.redrive([1], now_us=1_000, pace_us=100) == 1
    store.apply(
        [], [], [Reschedule(1, DeadLetterState.REDRIVING, DeadLetterState.REDRIVING, 1, 7, 86_400_000_000, "429")]
    )
    assert store.redrive([2, 3], now_us=2_000, pace_us=100) == 2
    assert [one.due_us for one in page(store.reader, "id > 1")] == [2_000, 2_000]
    store.resume(5_000)
    assert [one.due_us for one in page(store.reader)] == [86_400_000_000, 5_000, 5_000]


@pytest.mark.parametrize("taken", [True, False])
def test_a_redrive_of_a_letter_that_is_under_way_holds(store: DeadLetterStore, taken: bool):
    store.apply([letter(0)], [], [])
    assert store.redrive([1], now_us=500, pace_us=100) == 1
    ended = Ended(1, DeadLetterState.SENDING)
    store.apply(
        [],
        [ended] if taken else [],
        [] if taken else [Reschedule(1, ended.began, DeadLetterState.KEPT, 0, 0, 0, "400")],
    )
    assert [one.id for one in store.due(SendQueue(1, DeadLetterState.REDRIVING), 500, 9)] == [1]
    assert store.apply([], [Ended(1, DeadLetterState.REDRIVING)], []) == 0
    assert store.totals().count == 0


def test_redrives_with_different_rates_keep_each_its_own_pauses_over_a_restart(store: DeadLetterStore):
    store.apply([letter(n, state=DeadLetterState.KEPT) for n in range(4)], [], [])
    store.redrive([1, 2, 3], now_us=0, pace_us=10)
    store.redrive([4], now_us=0, pace_us=1_000)
    store.resume(500)
    assert [one.due_us for one in page(store.reader)] == [500, 510, 520, 1_520]


def test_where_a_redrive_begins_is_looked_up_in_an_index(store: DeadLetterStore):
    """A million letters are no matter of a redrive of one: it holds the file's only right to write meanwhile."""
    plan = store._connection.execute(f"EXPLAIN QUERY PLAN {letters_module._LAST_PACED}", (1,)).fetchall()
    assert [row[3] for row in plan] == ["SEARCH letters USING INDEX letters_paced (target=?)"]


def test_a_letter_that_the_other_trigger_has_itself_stays(store: DeadLetterStore):
    heir = target(2, "http://heir/")
    store.apply([letter(0), letter(1), letter(0, target=2, trigger=heir.name)], [], [])
    assert store.redrive([1, 2], now_us=5, pace_us=0, to=heir) == 1
    found = {one.id: (one.target, one.state) for one in page(store.reader)}
    assert found[1] == (1, DeadLetterState.SENDING)
    assert found[2] == (2, DeadLetterState.REDRIVING)


def test_room_counts_within_a_transaction(store: DeadLetterStore, monkeypatch):
    monkeypatch.setattr(limits, "DEADLETTERS_MAX", 2)
    assert store.apply([letter(n) for n in range(5)], [], []) == 2
    (first, _) = page(store.reader)
    assert store.apply([letter(9)], [Ended(first.id, DeadLetterState.SENDING)], []) == 1
