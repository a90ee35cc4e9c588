"""The ceiling of the right by which a target gets events: the last word before a delivery, whatever rows say."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from headgate.deadletters.store import DeadLetterState, DeadLetterStore
from headgate.delivery.events import SharedEvent
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import SYSTEM
from headgate.delivery.verdicts import FilterErrors, FinalCheck, evaluate
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.objects.kinds.routing import Target
from headgate.storage.files import DispatcherDirectory
from headgate.subscriptions.messages import PlaceNotFoundError, SeekGoal
from headgate_api.event import rfc3339
from headgate_api.event.model import Event
from tests.deadletters.letters import letter, letters
from tests.delivery.harness import (
    BROKER,
    EventLog,
    Routes,
    Subscriber,
    event,
    log,
    matcher,
    run,
    running,
    target,
)
from tests.subscriptions.world import NAME, World, offsets
from tests.subscriptions.world import run as run_world
from tests.support import until

__all__ = ["log"]
CEILING = 'data.tenant == "blue"'
BLUE, RED, NONE = b'{"tenant":"blue","n":1}', b'{"tenant":"red","n":1}', b"{}"


def claim(offset: int, state: str) -> Event:
    """What a transform may have made of an event: it looks as if it were blue's."""
    return msgspec.structs.replace(event(9, data=BLUE), id=f"{state}-{offset}")


def below(one: Target, ceiling: str = CEILING) -> Target:
    joined = CompiledFilter(f"({ceiling}) && ({one.filter.cel})", (), ceiling=ceiling)
    return dataclasses.replace(one, filter=joined)


@pytest.mark.parametrize(
    ("cel", "data", "verdict", "found"),
    [
        ("true", BLUE, Verdict.MATCH, ""),
        ("true", RED, Verdict.MATCH, "foreign"),  # a row that is older than the ceiling
        ("true", NONE, Verdict.MATCH, "foreign"),
        ("true", NONE, Verdict.ERROR, "foreign"),  # the error is the ceiling's
        ("data.nosuch > 1", RED, Verdict.CANDIDATE, "foreign"),
        ("data.nosuch > 1", NONE, Verdict.ERROR, "foreign"),
        ("data.nosuch > 1", BLUE, Verdict.CANDIDATE, "error"),  # his own: he hears of it
        ("data.n > 1", BLUE, Verdict.CANDIDATE, "filtered"),
    ],
)
def test_the_ceiling_is_asked_first(cel: str, data: bytes, verdict: Verdict, found: str) -> None:
    errors = FilterErrors()
    shared = SharedEvent(BROKER, event(1, data=data), 1)
    check = FinalCheck(evaluate, errors, SYSTEM.now_us)
    result = check(below(target(1, "http://x/", cel=cel)), Delivery(0, 0, 0, verdict), shared)
    assert (result if isinstance(result, str) else "") == found
    assert bool(errors.take()) is (found == "error")


def test_rows_older_than_a_ceiling_are_not_sent_and_its_errors_not_told(tmp_path: Path, log: EventLog) -> None:
    async def work() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(below(target(1, subscriber.url, cel="data.n == 1")))
            async with running(tmp_path, routes) as at_work:
                log.append([event(number, data=data) for number, data in enumerate((RED, NONE, BLUE, RED))])
                async with matcher(at_work) as peer:
                    peer.match((0, 1))
                    peer.match((1, 1), verdict=Verdict.ERROR)
                    peer.match((2, 1))
                    peer.match((3, 1), verdict=Verdict.ERROR)
                    await until(lambda: len(subscriber.requests) == 1)
            assert [one.header("ce-id") for one in subscriber.requests] == ["e2"]
        assert sum(report.filter_errors for report in routes.reports) == 0
        assert not any(report.last_error for report in routes.reports)

    run(work())


def test_what_waits_for_a_target_is_counted_below_its_ceiling(tmp_path: Path, log: EventLog) -> None:
    """A paused trigger says how many events a filter wants: not of those that the matcher left open."""

    async def work() -> None:
        paused = dataclasses.replace(below(target(1, "http://127.0.0.1:9/")), paused=True)
        async with running(tmp_path, Routes(paused)) as at_work:
            log.append([event(number, data=data) for number, data in enumerate((RED, BLUE, NONE, BLUE))])
            async with matcher(at_work) as peer:
                peer.match((0, 1), (1, 1), (2, 1), (3, 1), verdict=Verdict.CANDIDATE)
                await until(lambda: at_work.dispatcher.scheduler.handed >= 4)
                assert at_work.dispatcher.unfinished == 2

    run(work())


def test_a_new_ceiling_begins_new_counters(tmp_path: Path, log: EventLog) -> None:
    """Who sees those of today may not know of the events of before."""

    async def work() -> None:
        async with Subscriber() as subscriber:
            one = target(1, subscriber.url)
            routes = Routes(one)
            async with running(tmp_path, routes) as at_work:
                scheduler = at_work.dispatcher.scheduler

                def counted() -> tuple[int, bool]:
                    (state,) = scheduler.states
                    return state.counts.delivered, state.recent is not None

                log.append([event(0, data=RED), event(1, data=BLUE)])
                async with matcher(at_work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(list(scheduler.states)) == 1 and counted() == (1, True))
                    routes.put(below(one))
                    await until(lambda: counted() == (0, False))
                    peer.match((1, 1))
                    await until(lambda: counted() == (1, True))

    run(work())


def test_the_counters_of_a_subscription_know_nothing_above_its_ceiling(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.target = below(world.target, "data.n >= 5")
        world.start()
        world.add(10, Verdict.CANDIDATE)
        stats = await world.subscriptions.stats(NAME)
        assert (stats.backlog, stats.candidates, stats.oldest_unacknowledged) == (5, 5, rfc3339.text(5_000_000))
        assert offsets(await world.pull()) == [5, 6, 7, 8, 9]
        stats = await world.subscriptions.stats(NAME)
        assert (stats.processed, stats.accepted, stats.rejected, stats.backlog) == (5, 5, 0, 5)

    run_world(work())


def test_a_filter_is_tried_on_the_backlog_below_the_ceiling(tmp_path: Path) -> None:
    """Rows of MATCH may be older than the ceiling, and where the filter was an error perhaps the ceiling is it."""

    async def work() -> None:
        for verdict in Verdict:
            world = World(tmp_path / verdict.name)
            world.target = below(world.target, "data.n >= 5")
            world.start()
            world.add(10, verdict)
            found = await world.subscriptions.analyze(NAME, "data.n < 7 || data.nosuch == 1")
            assert (found.events, found.accepted, found.rejected, found.errors) == (5, 2, 0, 3), verdict

    run_world(work())


def test_dead_letters_of_other_events_are_neither_redriven_nor_sent(tmp_path: Path) -> None:
    """A dead letter has what a transform made of its event, so the stored one is asked; the log may be gone by then."""

    async def work() -> None:
        stored = [event(number, data=data) for number, data in enumerate((RED, NONE, BLUE))]
        path = DispatcherDirectory.of(tmp_path, 0).dead_letters
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(DeadLetterStore(path)) as store:
            for number, state in enumerate((DeadLetterState.REDRIVING, DeadLetterState.SENDING)):
                made = [
                    letter(
                        offset + 10 * number,
                        offset=offset,
                        state=state,
                        event=claim(offset, state),
                        original=original,
                    )
                    for offset, original in enumerate(stored)
                ]
                unknown = letter(9 + 10 * number, offset=9, state=state, event=claim(9, state), stored_us=None)
                store.apply([*made, unknown], [], [])
        async with Subscriber() as subscriber, Subscriber() as sink:
            one = below(target(1, subscriber.url, dead_letter_uri=sink.url))
            async with running(tmp_path, Routes(one)):
                await until(lambda: len(letters(tmp_path)) == 6 and {x.state for x in letters(tmp_path)} == {"kept"})
            assert [len(each.requests) for each in (subscriber, sink)] == [1, 1]
            assert {one.offset for one in letters(tmp_path)} == {0, 1, 9}

    run(work())


def test_a_seek_finds_nothing_above_the_ceiling(tmp_path: Path) -> None:
    async def work() -> None:
        stored = EventLog(tmp_path)
        stored.append([event(n, data=b'{"n":%d}' % n) for n in range(10)])
        stored.close()
        world = World(tmp_path)
        world.target = below(world.target, "data.n >= 5")
        world.start()
        world.add(10)
        with pytest.raises(PlaceNotFoundError):
            await world.subscriptions.seek(NAME, SeekGoal(first="data.n == 3"))
        await world.subscriptions.seek(NAME, SeekGoal(first="data.n >= 3"))
        assert offsets(await world.pull()) == [5, 6, 7, 8, 9]

    run_world(work())


def test_what_was_handed_out_is_not_handed_out_again_above_a_new_ceiling(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.add(4)
        assert offsets(await world.pull()) == [0, 1, 2, 3]
        world.target = below(world.target, "data.n >= 2")
        world.crash()
        world.now_us += 3_600 * 1_000_000
        assert offsets(await world.pull()) == [2, 3]

    run_world(work())
