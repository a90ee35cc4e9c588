"""Does history reach one target again: what its filter takes, marked, once more at most, and nothing else?"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.deadletters.store import DeadLetterStore
from headgate.replay.store import Replay, ReplayProgress, ReplaySpec, ReplayState, ReplayStore
from headgate.shares import PlacesTakenError
from headgate.storage.files import DispatcherDirectory
from headgate.testing.server import free_port
from headgate_api import limits
from tests.deadletters.letters import page
from tests.delivery.harness import BROKER, EventLog, Request, Routes, Subscriber, event, refuse, run, running, target
from tests.support import until

EVENTS = 40


def fill(log: EventLog, partitions: int = 2) -> None:
    for first in range(0, EVENTS, 10):
        events = [event(n, data=b'{"n":%d}' % n) for n in range(first, first + 10)]
        log.append(events, partition=first // 10 % partitions)
    log.append([event(99, data=b'{"n":2}')], broker="default/other/1")


def asked(**changes: object) -> ReplaySpec:
    plain = {
        "namespace": "default",
        "broker": BROKER,
        "trigger": "",
        "url": "",
        "cel": "",
        "start": {0: 0, 1: 0},
        "end": {0: 21, 1: 20},
        "rate_per_s": 10_000.0,
        "dry_run": False,
        "created_us": 1,
    }
    return ReplaySpec(**(plain | changes))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def replays(data: Path) -> AsyncIterator[ReplayStore]:
    store = ReplayStore(DispatcherDirectory.of(data, 0).replays)
    try:
        yield store
    finally:
        store.close()


def state_of(store: ReplayStore, replay: Replay) -> ReplayState:
    found = store.get("default", replay.id)
    assert found is not None
    return found.state


def progress_of(store: ReplayStore, replay: Replay) -> ReplayProgress:
    found = store.get("default", replay.id)
    assert found is not None
    return found.progress


def names(*numbers: int) -> list[str]:
    return sorted(f"e{number}" for number in numbers)


def test_a_trigger_gets_what_both_filters_take_and_nobody_else_gets_anything(tmp_path: Path, log: EventLog) -> None:
    fill(log)

    async def work() -> None:
        async with Subscriber() as wanted, Subscriber() as other, replays(tmp_path) as store:
            routes = Routes(target(1, wanted.url, cel="data.n % 2 == 0"), target(2, other.url))
            async with running(tmp_path, routes) as worker:
                to_trigger = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1", cel="data.n >= 10"))
                await until(lambda: state_of(store, to_trigger) is ReplayState.DONE)
                even = range(10, EVENTS, 2)
                assert sorted(wanted.ids) == names(*even)
                assert {request.header("ce-headgatereplay") for request in wanted.requests} == {str(to_trigger.id)}
                assert wanted.requests[0].header("prefer") == "reply"
                assert other.requests == []
                ended = ReplayProgress({0: 21, 1: 20}, matched=len(even), delivered=len(even))
                assert progress_of(store, to_trigger) == ended
                counted = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1", dry_run=True))
                to_url = await worker.dispatcher.deliveries.replays.create(
                    asked(url=other.url, start={0: 5, 1: 0}, end={0: 10, 1: 0})
                )
                await until(lambda: state_of(store, counted) is state_of(store, to_url) is ReplayState.DONE)
                assert progress_of(store, counted).matched == EVENTS // 2
                assert len(wanted.requests) == len(even)
                assert sorted(other.ids) == names(*range(5, 10))
                assert other.requests[0].header("prefer") is None

    run(work())


def test_a_transform_holds_and_what_it_makes_nothing_of_is_an_error(tmp_path: Path, log: EventLog) -> None:
    fill(log)
    transform = '{"type": "again", "data": {"n": 100 / (data.n - 3)}}'

    async def work() -> None:
        async with Subscriber() as subscriber, replays(tmp_path) as store:
            routes = Routes(dataclasses.replace(target(1, subscriber.url, cel="data.n < 5"), transform=transform))
            async with running(tmp_path, routes) as worker:
                replay = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1"))
                await until(lambda: state_of(store, replay) is ReplayState.DONE)
            assert sorted(subscriber.ids) == names(0, 1, 2, 4)
            assert {request.header("ce-type") for request in subscriber.requests} == {"again"}
            ended = progress_of(store, replay)
            assert (ended.matched, ended.delivered, ended.errors) == (5, 4, 1)

    run(work())


def test_an_ordered_trigger_gets_one_event_after_the_other(tmp_path: Path, log: EventLog) -> None:
    fill(log)
    under_way: list[int] = [0]

    async def slow(request: Request) -> tuple[int, bytes]:
        under_way.append(under_way[-1] + 1)
        await asyncio.sleep(0.003 * (len(under_way) % 3))  # the first ones would be overtaken
        under_way.append(under_way[-1] - 1)
        return 202, b""

    async def work() -> None:
        async with Subscriber(slow) as wanted, replays(tmp_path) as store:
            routes = Routes(target(1, wanted.url, ordered=True, parallelism=8))
            async with running(tmp_path, routes) as worker:
                replay = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1"))
                await until(lambda: state_of(store, replay) is ReplayState.DONE)
            assert max(under_way) == 1
            for part in (0, 1):
                due = [f"e{n}" for n in range(EVENTS) if n // 10 % 2 == part]
                assert [id_ for id_ in wanted.ids if id_ in due] == due

    run(work())


def test_a_failing_subscriber_is_tried_as_often_as_its_rules_say_then_its_sink_gets_the_event(
    tmp_path: Path, log: EventLog
) -> None:
    fill(log)

    async def refuse(request: Request) -> tuple[int, bytes]:
        return (500 if int(request.id[1:]) % 2 else 202), b"no"

    async def work() -> None:
        async with Subscriber(refuse) as subscriber, Subscriber() as sink, replays(tmp_path) as store:
            with_sink = target(1, subscriber.url, retry=2, dead_letter_uri=sink.url)
            async with running(tmp_path, Routes(with_sink, target(2, subscriber.url, retry=0))) as worker:
                first = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1", end={0: 10, 1: 0}))
                await until(lambda: state_of(store, first) is ReplayState.DONE and len(sink.requests) == 5)
                assert progress_of(store, first) == ReplayProgress({0: 10, 1: 0}, 10, delivered=5, dead_lettered=5)
                attempts = Counter(subscriber.ids)
                assert [attempts[f"e{n}"] for n in range(10)] == [1, 3] * 5
                assert sorted(sink.ids) == names(1, 3, 5, 7, 9)
                assert sink.requests[0].header("ce-headgatereplay") == str(first.id)
                assert sink.requests[0].header("ce-knativeerrorcode") == "500"
                second = await worker.dispatcher.deliveries.replays.create(asked(trigger="t2", end={0: 10, 1: 0}))
                await until(lambda: state_of(store, second) is ReplayState.DONE)
                assert progress_of(store, second) == ReplayProgress({0: 10, 1: 0}, 10, delivered=5, failed=5)

    run(work())


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_repeats_a_page_at_most(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    fill(log)
    monkeypatch.setattr(limits, "REPLAY_PAGE_EVENTS", 4)

    async def work() -> None:
        async with Subscriber() as subscriber, replays(tmp_path) as store:
            replay = store.create(asked(trigger="t1", rate_per_s=200.0))
            for stops_at in (7, 18, 1_000):
                async with running(tmp_path, Routes(target(1, subscriber.url))) as worker:
                    await until(
                        lambda stops_at=stops_at: (
                            len(subscriber.requests) >= stops_at or state_of(store, replay) is ReplayState.DONE
                        )
                    )
                    if not clean:
                        worker.task.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await worker.task
                        worker.task = asyncio.create_task(asyncio.sleep(0))
            seen = Counter(subscriber.ids)
            assert sorted(seen) == names(*range(EVENTS))
            assert len(subscriber.requests) <= EVENTS + 2 * 4
            assert progress_of(store, replay).delivered == EVENTS

    run(work())


def test_a_restart_does_not_forget_how_often_an_event_was_tried(tmp_path: Path, log: EventLog) -> None:
    log.append([event(0), event(1)])

    async def refuse(request: Request) -> tuple[int, bytes]:
        return (500 if request.id == "e0" else 202), b""

    async def work() -> None:
        async with Subscriber(refuse) as subscriber, replays(tmp_path) as store:
            routes = Routes(target(1, subscriber.url, retry=5, backoff_delay_s=0.05, backoff_policy="linear"))
            replay = store.create(asked(trigger="t1", start={0: 0}, end={0: 2}))
            for tries in (2, 4):
                async with running(tmp_path, routes):
                    await until(lambda tries=tries: subscriber.ids.count("e0") >= tries)
                    await until(lambda: bool(progress_of(store, replay).retries))
            async with running(tmp_path, routes):
                await until(lambda: state_of(store, replay) is ReplayState.DONE)
            assert progress_of(store, replay) == ReplayProgress({0: 2}, 2, delivered=1, failed=1)
            assert 6 <= subscriber.ids.count("e0") <= 8, "an attempt that a stop breaks off is not counted"

    run(work())


def test_a_triggers_rate_limit_holds_for_a_replay_too(tmp_path: Path, log: EventLog) -> None:
    fill(log, 1)

    async def work() -> None:
        async with (
            Subscriber() as subscriber,
            replays(tmp_path) as store,
            running(tmp_path, Routes(target(1, subscriber.url, rate_per_s=40.0))) as worker,
        ):
            began = asyncio.get_running_loop().time()
            replay = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1", start={0: 0}, end={0: 25}))
            await until(lambda: state_of(store, replay) is ReplayState.DONE)
            times = [request.at for request in subscriber.requests]
            assert len(times) == 25
            # Attempts start at the rate; the first one may arrive late, and is not what the last one is measured from.
            assert times[-1] - began >= (25 - 6) / 40.0

    run(work())


def test_an_open_circuit_holds_up_a_replay_and_uses_up_no_retries(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 1)
    monkeypatch.setattr(limits, "CIRCUIT_FAILURES_MAX", 5)
    monkeypatch.setattr(limits, "CIRCUIT_PAUSE_S_MIN", 0.2)
    monkeypatch.setattr(limits, "CIRCUIT_PAUSE_S_MAX", 0.2)
    port = free_port()

    async def work() -> None:
        # Three retries an event: without the breaker all would be given up at once.
        routes = Routes(target(1, f"http://127.0.0.1:{port}/", retry=3, backoff_delay_s=0.001, parallelism=4))
        async with replays(tmp_path) as store, running(tmp_path, routes) as worker:
            replay = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1", start={0: 0}, end={0: 40}))
            await until(lambda: bool(progress_of(store, replay).retries))
            async with Subscriber(port=port) as subscriber:
                await until(lambda: state_of(store, replay) is ReplayState.DONE)
                assert len(set(subscriber.ids)) >= 35
                assert progress_of(store, replay).delivered == len(set(subscriber.ids))

    run(work())


def test_time_that_a_trigger_was_paused_is_no_time_of_a_replays_attempts(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETRY_S_DEFAULT", 2.0)
    log.append([event(0)])
    routes = Routes()
    answers = iter([500, 500, 202])

    async def answer(_: Request) -> tuple[int, bytes]:
        status = next(answers)
        if not routes.targets[1].paused and status == 500:
            routes.put(dataclasses.replace(routes.targets[1], paused=True))
        return status, b""

    async def work() -> None:
        async with Subscriber(answer) as subscriber, replays(tmp_path) as store:
            goes_on = target(1, subscriber.url, retry=None, backoff_delay_s=0.5)
            routes.put(goes_on)
            async with running(tmp_path, routes) as worker:
                replay = await worker.dispatcher.deliveries.replays.create(
                    asked(trigger="t1", start={0: 0}, end={0: 1})
                )
                for count in (1, 2):
                    await until(lambda count=count: len(subscriber.requests) == count)
                    await asyncio.sleep(2.5)  # longer than an event is tried
                    assert len(subscriber.requests) == count
                    routes.put(goes_on)
                await until(lambda: state_of(store, replay) is ReplayState.DONE)
                assert progress_of(store, replay).delivered == 1

    run(work())


def test_a_full_disk_makes_replays_wait_and_repeats_no_event(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    monkeypatch.setattr(limits, "REPLAY_PAGE_EVENTS", 10)
    monkeypatch.setattr(limits, "REPLAY_RETRY_S", 0.01)
    failing: Counter[str] = Counter()

    def full(name: str) -> Callable[..., Any]:
        work = getattr(ReplayStore, name)

        def first_times(store: ReplayStore, *arguments: object) -> Any:
            failing[name] += 1
            if failing[name] in (1, 2, 4):
                raise sqlite3.OperationalError("database or disk is full")
            return work(store, *arguments)

        return first_times

    async def work() -> None:
        async with Subscriber() as subscriber, replays(tmp_path) as store:
            replay = store.create(asked(url=subscriber.url))
            for name in ("advance", "end", "running"):
                monkeypatch.setattr(ReplayStore, name, full(name))
            async with running(tmp_path, Routes()) as worker:
                await until(lambda: state_of(store, replay) is ReplayState.DONE or worker.task.done())
            assert sorted(subscriber.ids) == names(*range(EVENTS))
            assert progress_of(store, replay) == ReplayProgress({0: 21, 1: 20}, EVENTS, delivered=EVENTS)

    run(work())


def test_a_second_replay_has_dead_letters_of_its_own(tmp_path: Path, log: EventLog) -> None:
    log.append([event(0), event(0)])

    async def work() -> None:
        async with Subscriber(refuse) as closed, replays(tmp_path) as store:
            async with running(tmp_path, Routes(target(1, closed.url, retry=0, dead_letter_uri=closed.url))) as worker:
                for _ in range(2):
                    replay = await worker.dispatcher.deliveries.replays.create(
                        asked(trigger="t1", start={0: 0}, end={0: 2})
                    )
                    await until(lambda replay=replay: state_of(store, replay) is ReplayState.DONE)
                    assert progress_of(store, replay).dead_lettered == 2
            with contextlib.closing(DeadLetterStore(DispatcherDirectory.of(tmp_path, 0).dead_letters)) as letters:
                kept = page(letters.reader)
                assert Counter(letter.event.extensions["headgatereplay"] for letter in kept) == {"1": 2, "2": 2}
                assert all(letter.position < 0 for letter in kept)

    run(work())


def test_a_cancelled_replay_sends_nothing_more_and_one_without_a_target_fails(tmp_path: Path, log: EventLog) -> None:
    fill(log)

    async def work() -> None:
        async with Subscriber() as subscriber, replays(tmp_path) as store:
            routes = Routes(target(1, subscriber.url))
            async with running(tmp_path, routes) as worker:
                slow = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1", rate_per_s=2.0))
                await until(lambda: len(subscriber.requests) == 1)
                assert await worker.dispatcher.deliveries.replays.cancel(slow.id)
                assert not await worker.dispatcher.deliveries.replays.cancel(slow.id)
                lost = await worker.dispatcher.deliveries.replays.create(asked(trigger="none"))
                await until(lambda: state_of(store, lost) is ReplayState.FAILED)
                found = store.get("default", lost.id)
                assert found is not None
                assert "no trigger default/none" in found.problem
                quick = await worker.dispatcher.deliveries.replays.create(asked(trigger="t1", cel="data.n == 30"))
                await until(lambda: state_of(store, quick) is ReplayState.DONE)
                assert state_of(store, slow) is ReplayState.CANCELLED
                assert subscriber.ids[-1] == "e30"
                assert len(subscriber.requests) < EVENTS // 2

    run(work())


def test_turns_of_replays_go_round_by_namespace_then_user(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path / "replays.db")
    loud = [store.create(asked(namespace="loud", owner="eve")).id for _ in range(10)]
    beside = store.create(asked(namespace="loud", owner="bob")).id
    quiet = [store.create(asked(namespace="quiet", owner="ann")).id for _ in range(2)]
    assert [replay.id for replay in store.running(8)] == sorted([*loud[:5], beside, *quiet])
    assert [replay.id for replay in store.running(1)] == loud[:1]
    assert len(store.running(100)) == 13
    store.close()


def test_who_has_many_replays_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.replay.store.REPLAYS_MAX", 16)
    store = ReplayStore(tmp_path / "replays.db")
    ended = store.create(asked(namespace="quiet", owner="ann"))
    store.end(ended.id, ReplayState.DONE)
    refused = []
    for _ in range(16):
        try:
            store.create(asked(namespace="loud", owner="eve"))
        except PlacesTakenError as error:
            refused.append(error.message)
    running = store.page("loud")
    assert len(refused) == 16 - len(running)
    assert "REPLAYS_MAX" in refused[0]
    assert 8 < len(running) < 16
    store.create(asked(namespace="quiet", owner="ann"))
    for replay in running:
        store.end(replay.id, ReplayState.DONE)
    for _ in range(4):
        store.create(asked(namespace="third", owner="bob"))
    assert store.get("quiet", ended.id) is not None, "who has fewer keeps what has ended"
    assert running[-1].id not in [replay.id for replay in store.page("loud")]
    store.close()


def test_the_oldest_that_ended_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.replay.store.REPLAYS_MAX", 3)
    store = ReplayStore(tmp_path / "replays.db")
    first, second, third = (store.create(asked()) for _ in range(3))
    with pytest.raises(PlacesTakenError):
        store.create(asked())
    store.end(second.id, ReplayState.DONE)
    fourth = store.create(asked())
    assert [replay.id for replay in store.page("default")] == [fourth.id, third.id, first.id]
    assert store.page("other") == []
    store.close()
