"""A subscriber that is away for a while, seen from a quiet trigger: its events wait, and people are told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headgate.delivery import circuit
from headgate.delivery.circuit import SubscriberHealth
from headgate.delivery.cursors import Tried
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Clocks, Outcome, backoff_s, is_left
from headgate.delivery.targets import TargetState
from headgate.objects.kinds.specs import delivery_rules
from headgate.testing.server import free_port
from headgate_api import limits
from tests.delivery.harness import EventLog, Routes, Subscriber, event, matcher, run, running, spec, target
from tests.support import until

NOBODY = Outcome(0, "connection", "refused")
DEFAULT = delivery_rules(None, ordered=False)
HOUR_S = 3_600.0


def test_without_retry_an_event_is_tried_for_a_time_and_with_it_for_a_number_of_times():
    assert is_left(DEFAULT, NOBODY, 1_000, limits.RETRY_S_DEFAULT - 1)
    assert not is_left(DEFAULT, NOBODY, 1, limits.RETRY_S_DEFAULT)
    assert not is_left(DEFAULT, Outcome(400), 1, 0.0)
    assert is_left(spec(retry=2), NOBODY, 2, 10 * limits.RETRY_S_DEFAULT)
    assert not is_left(spec(retry=2), NOBODY, 3, 0.0)


def test_who_is_tried_for_a_time_is_met_soon_after_the_return():
    assert backoff_s(DEFAULT, 40) == limits.BACKOFF_DEFAULT_S_MAX
    assert backoff_s(dataclasses.replace(DEFAULT, backoff_delay_s=HOUR_S), 40) == HOUR_S
    assert backoff_s(spec(retry=40, backoff_policy="exponential"), 40) == limits.BACKOFF_SECONDS_MAX


def test_one_event_outlives_more_failures_than_were_ever_counted_for_it(tmp_path: Path, log: EventLog):
    port = free_port()
    rules = dataclasses.replace(DEFAULT, backoff_policy="linear", backoff_delay_s=0.001, timeout_s=5.0)

    async def work() -> None:
        one = dataclasses.replace(target(1, f"http://127.0.0.1:{port}/"), delivery=rules)
        async with running(tmp_path, Routes(one)) as work:
            log.append([event(0)])
            async with matcher(work) as peer:
                peer.match((0, 1))
                scheduler = work.dispatcher.scheduler
                await until(lambda: bool(scheduler.behind))
                (state,) = scheduler.behind
                await until(lambda: not state.deliveries.live or state.deliveries.live[0].failures > 15)
                async with Subscriber(port=port) as subscriber:
                    await until(lambda: work.dispatcher.unfinished == 0)
                    assert subscriber.ids == ["e0"]

    run(work())


def test_an_event_that_nobody_took_for_that_time_is_given_up(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "RETRY_S_DEFAULT", 0.2)
    rules = dataclasses.replace(DEFAULT, backoff_delay_s=0.01)

    async def work() -> None:
        routes = Routes(dataclasses.replace(target(1, f"http://127.0.0.1:{free_port()}/"), delivery=rules))
        async with running(tmp_path, routes) as work:
            log.append([event(0)])
            async with matcher(work) as peer:
                peer.match((0, 1))
                await until(lambda: sum(report.dropped for report in routes.reports) == 1)
                assert work.dispatcher.unfinished == 0

    run(work())


def test_the_time_goes_on_over_a_restart_and_not_while_nothing_runs():
    before, after = Delivery(7, 0, 3, 1), Delivery(7, 0, 3, 1)
    before.started_at = 100.0
    before.fail(130.0)
    before.started_at = 190.0
    before.fail(220.0)
    state = TargetState(circuit.Subscriber(target(1, "http://x/")))
    state.deliveries.arrive(before)
    cursor = state.cursor()
    assert cursor is not None
    assert cursor.retries == (Tried(7, 2, 0, 120_000_000),)
    after.resume(cursor.retries[0])
    after.started_at = 5.0  # another process, another clock
    after.fail(15.0)
    assert (after.failures, after.tried_us) == (3, 130_000_000)


def test_the_time_is_on_disk_when_the_dispatcher_ends(tmp_path: Path, log: EventLog):
    rules = dataclasses.replace(DEFAULT, backoff_policy="linear", backoff_delay_s=0.05)
    routes = Routes(dataclasses.replace(target(1, f"http://127.0.0.1:{free_port()}/"), delivery=rules))

    async def life(failures: int) -> int:
        async with running(tmp_path, routes) as work:
            if failures == 2:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: work.dispatcher.unfinished == 1)
            scheduler = work.dispatcher.scheduler
            await until(lambda: bool(scheduler.behind))
            (state,) = scheduler.behind
            await until(lambda: state.deliveries.live[0].failures >= failures)
            return state.deliveries.live[0].tried_us

    async def work() -> None:
        first_us = await life(2)
        assert first_us >= 50_000
        assert await life(3) >= first_us

    run(work())


class Now:
    """Clocks that tests move."""

    def __init__(self) -> None:
        self.s = 1_000.0
        self.told: list[str] = []
        self.health = SubscriberHealth(
            lambda _, text: self.told.append(text), Clocks(lambda: self.s, lambda: int(self.s * 1e6))
        )
        self.subscriber = circuit.Subscriber(target(1, "http://x/"))

    def attempt(self, delivery: Delivery, lasts_s: float, outcome: Outcome) -> None:
        delivery.started_at = self.s
        self.s += lasts_s
        self.health.heard(self.subscriber, delivery, outcome)
        if outcome.status != 202:
            delivery.fail(self.s)


@pytest.mark.parametrize("outcome", [NOBODY, Outcome(500), Outcome(503), Outcome(404)], ids=str)
def test_a_single_event_that_goes_on_failing_makes_its_subscriber_unhealthy(outcome: Outcome):
    now, one = Now(), Delivery(0, 0, 0, 1)
    now.attempt(Delivery(1, 0, 1, 1), 0.0, Outcome(202))
    now.attempt(one, 0.1, outcome)
    now.s += 5.0
    now.attempt(one, 0.1, outcome)
    assert not now.told, "a restart is shorter than that"
    now.s += 10.0
    now.attempt(one, 0.1, outcome)
    assert now.told == [f"AttemptsFail: nothing was taken since 1970-01-01T00:16:40Z; last: {outcome.why}"]
    now.s += 60.0
    now.attempt(one, 0.1, outcome)
    assert len(now.told) == 1, "it is told once"
    now.attempt(Delivery(1, 0, 1, 1), 0.1, Outcome(202))
    assert now.told[1:] == [""]
    now.s += 60.0
    now.attempt(one, 0.1, outcome)
    assert len(now.told) == 2, "something was taken a minute ago, and the event was not tried since"


def test_a_first_attempt_that_hangs_says_so_at_its_end():
    now = Now()
    now.attempt(Delivery(0, 0, 0, 1), 30.0, Outcome(0, "timeout"))
    assert [text.partition(":")[0] for text in now.told] == ["AttemptsFail"]


def test_what_an_earlier_process_tried_counts():
    now, one = Now(), Delivery(0, 0, 0, 1)
    one.resume(Tried(0, 8, 0, 50_000_000))
    now.attempt(one, 0.1, NOBODY)
    assert len(now.told) == 1


@pytest.mark.parametrize("reason", ["dns", "refused", "certificate", "tls", "timeout"])
def test_the_first_attempt_says_why_a_subscriber_that_was_never_met_does_not_answer(reason: str):
    now, one = Now(), Delivery(0, 0, 0, 1)
    now.attempt(one, 0.1, Outcome(0, reason, "no such thing"))
    words = f"AttemptsFail: nothing was taken since 1970-01-01T00:16:40Z; last: {reason}"
    assert now.told == [f"{words}: no such thing"]
    now.attempt(one, 0.1, Outcome(0, reason, "another detail"))
    assert len(now.told) == 1, "a detail that differs is no other trouble"
    now.attempt(one, 0.1, Outcome(503))
    assert now.told[1:] == ["AttemptsFail: nothing was taken since 1970-01-01T00:16:40Z; last: status 503"]


def test_the_log_says_at_the_first_attempt_without_an_answer_why_there_is_none():
    now = Now()
    with capture_logs() as logs:
        now.attempt(Delivery(0, 0, 0, 1), 0.1, NOBODY)
    assert [one["why"].partition("last: ")[2] for one in logs] == ["connection: refused"]
    now.attempt(Delivery(1, 0, 1, 1), 0.1, Outcome(202))
    with capture_logs() as logs:
        for number in range(40):  # of a subscriber that is not in trouble, once a minute
            now.attempt(Delivery(number, 0, number, 1), 1.0, NOBODY)
            now.attempt(Delivery(number, 0, number, 1), 1.0, Outcome(202))
    assert [one["why"] for one in logs] == ["connection: refused"] * 2


def test_who_refuses_every_event_for_good_is_unhealthy():
    now = Now()
    for number in range(limits.REFUSED_UNHEALTHY - 1):
        now.attempt(Delivery(number, 0, number, 1), 60.0, Outcome(400))
    assert not now.told, "a few events may be at fault themselves"
    for number in range(100):
        now.attempt(Delivery(number, 0, number, 1), 1.0, Outcome(400))
    since = "1970-01-01T00:16:40Z"
    assert now.told == [f"EventsRefused: no event was taken since {since}, each was refused for good; last: status 400"]
    now.attempt(Delivery(0, 0, 0, 1), 1.0, Outcome(202))
    assert now.told[1:] == [""]


def test_who_takes_an_event_between_those_that_it_refuses_is_healthy():
    now = Now()
    for number in range(100):
        status = 202 if number % limits.REFUSED_UNHEALTHY == 0 else 413
        now.attempt(Delivery(number, 0, number, 1), 1.0, Outcome(status))
    assert not now.told


def test_events_that_are_refused_or_tried_again_are_not_taken():
    now = Now()
    now.attempt(Delivery(0, 0, 0, 1), 0.1, Outcome(500))
    now.s += limits.UNHEALTHY_AFTER_S
    now.attempt(Delivery(1, 0, 1, 1), 0.1, Outcome(400))
    assert [text.partition(":")[0] for text in now.told] == ["AttemptsFail"]


def test_people_see_it_in_the_reports(tmp_path: Path, log: EventLog, monkeypatch):
    monkeypatch.setattr(limits, "UNHEALTHY_AFTER_S", 0.1)
    monkeypatch.setattr(limits, "REPORT_S_MIN", 0.01)
    port = free_port()
    rules = dataclasses.replace(DEFAULT, backoff_delay_s=0.02)

    async def work() -> None:
        routes = Routes(dataclasses.replace(target(1, f"http://127.0.0.1:{port}/"), delivery=rules))

        def troubles() -> list[str]:
            return [report.trouble for report in routes.reports if report.trouble is not None]

        async with running(tmp_path, routes) as work:
            log.append([event(0)])
            async with matcher(work) as peer:
                peer.match((0, 1))
                await until(lambda: any(text.startswith("AttemptsFail: ") for text in troubles()))
                async with Subscriber(port=port):
                    await until(lambda: troubles()[-1:] == [""])
                    assert work.dispatcher.unfinished == 0

    run(work())
