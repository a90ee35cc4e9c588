"""When is a target held back, and what does that cost it? Breaker and rate by a clock of our own, then on sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.delivery.circuit import Circuit, Rate
from headgate.delivery.retry import Outcome
from headgate.testing.server import free_port
from headgate_api import limits
from tests.delivery.harness import EventLog, Routes, Subscriber, event, matcher, run, running, target
from tests.support import until

NOBODY = [
    Outcome(0, "timeout"),
    Outcome(0, "connection"),
    Outcome(0, "protocol"),
    Outcome(502),
    Outcome(503),
    Outcome(504),
]
SOMEBODY = [Outcome(status) for status in (200, 202, 302, 400, 404, 408, 409, 418, 429, 500, 501, 999)]


def opened(now: float = 0.0) -> Circuit:
    circuit = Circuit()
    for number in range(limits.CIRCUIT_FAILURES_MAX):
        assert circuit.wait_s(now, 1) == 0
        told = circuit.heard(Outcome(0, "timeout", "late"), now)
        assert told == (number == limits.CIRCUIT_FAILURES_MAX - 1)
    assert circuit.opened
    return circuit


@pytest.mark.parametrize("outcome", NOBODY, ids=str)
def test_what_meets_nobody_opens(outcome: Outcome) -> None:
    circuit = Circuit()
    for _ in range(limits.CIRCUIT_FAILURES_MAX):
        circuit.heard(outcome, 0.0)
    assert circuit.opened


@pytest.mark.parametrize("outcome", SOMEBODY, ids=str)
def test_any_other_answer_keeps_it_closed_and_closes_it(outcome: Outcome) -> None:
    circuit = Circuit()
    for _ in range(3 * limits.CIRCUIT_FAILURES_MAX):
        circuit.heard(outcome, 0.0)
    assert not circuit.opened
    circuit = opened()
    assert circuit.heard(outcome, 0.5)
    assert circuit.wait_s(0.5, 0) == 0
    assert circuit.describe(outcome) == ""


def test_failures_must_be_in_a_row() -> None:
    circuit = Circuit()
    for _ in range(5):
        for _ in range(limits.CIRCUIT_FAILURES_MAX - 1):
            circuit.heard(Outcome(503), 0.0)
        circuit.heard(Outcome(202), 0.0)
    assert not circuit.opened


def test_an_open_circuit_lets_one_attempt_through_after_each_pause_and_pauses_longer() -> None:
    circuit, now, pauses = opened(10.0), 10.0, []
    for _ in range(8):
        pause = circuit.wait_s(now, 0)
        pauses.append(pause)
        assert circuit.wait_s(now + pause / 2, 0) == pytest.approx(pause / 2)
        now += pause
        assert circuit.wait_s(now, 0) == 0
        assert circuit.wait_s(now, 1) == float("inf"), "one attempt decides, no second one beside it"
        circuit.heard(Outcome(0, "connection", "refused"), now)
    assert pauses[0] == limits.CIRCUIT_PAUSE_S_MIN
    assert pauses == sorted(pauses)
    assert pauses[-1] == limits.CIRCUIT_PAUSE_S_MAX
    assert circuit.describe(Outcome(0, "connection", "refused")).startswith("CircuitOpen: 40 attempts in a row")


def test_late_failures_of_attempts_from_before_do_not_lengthen_the_pause() -> None:
    circuit = opened(0.0)
    for _ in range(100):
        assert not circuit.heard(Outcome(0, "timeout"), limits.CIRCUIT_PAUSE_S_MIN / 2)
    assert circuit.wait_s(limits.CIRCUIT_PAUSE_S_MIN, 0) == 0


@pytest.mark.parametrize("per_s", [0.5, 5.0, 50.0, 1_000.0])
def test_a_rate_is_kept_over_any_time_but_a_short_burst(per_s: float) -> None:
    rate, now, starts = Rate(per_s), 0.0, []
    while now < 20 / per_s:
        wait = rate.wait_s(now)
        if wait > 0:
            now += wait
            continue
        starts.append(now)
        rate.take(now)
    burst = max(1.0, per_s / 10 + 1)
    for first in range(len(starts)):
        for last in range(first + 1, len(starts)):
            assert last - first + 1 <= (starts[last] - starts[first]) * per_s + burst + 1e-6
    assert len(starts) >= 20


def test_an_open_circuit_uses_up_no_retries_and_shows_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CIRCUIT_FAILURES_MAX", 5)
    monkeypatch.setattr(limits, "CIRCUIT_PAUSE_S_MIN", 0.02)
    monkeypatch.setattr(limits, "CIRCUIT_PAUSE_S_MAX", 0.05)
    monkeypatch.setattr(limits, "REPORT_S_MIN", 0.01)
    port, log = free_port(), EventLog(tmp_path)

    async def work() -> None:
        # Three retries an event: without a breaker all hundred would be given up at once.
        routes = Routes(target(1, f"http://127.0.0.1:{port}/", retry=3, backoff_delay_s=0.001, parallelism=4))

        def troubles() -> list[str]:
            return [report.trouble for report in routes.reports if report.trouble is not None]

        async with running(tmp_path, routes) as work:
            log.append([event(n) for n in range(100)])
            async with matcher(work) as peer:
                peer.match(*((offset, 1) for offset in range(100)))
                await until(lambda: any(text.startswith("CircuitOpen: ") for text in troubles()))
                async with Subscriber(port=port) as subscriber:
                    await until(lambda: work.dispatcher.unfinished == 0)
                    await until(lambda: troubles()[-1:] == [""])
                    assert len(set(subscriber.ids)) >= 90, "most waited in the queue, with all their retries"

    run(work())
    log.close()


def test_a_rate_limit_holds_its_own_target_back_only(tmp_path: Path) -> None:
    log = EventLog(tmp_path)

    async def work() -> None:
        async with Subscriber() as subscriber, Subscriber() as other:
            routes = Routes(target(1, subscriber.url, rate_per_s=0.2), target(2, other.url))
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(20)])
                async with matcher(work) as peer:
                    peer.match(*((offset, n) for offset in range(20) for n in (1, 2)))
                    await until(lambda: len(other.requests) == 20)
                    assert len(subscriber.requests) < 20, "only the limited one waits"
                    routes.delete(1)
                    await until(lambda: work.dispatcher.unfinished == 0)

    run(work())
    log.close()


def test_a_deleted_target_with_an_open_circuit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CIRCUIT_FAILURES_MAX", 2)
    log = EventLog(tmp_path)

    async def work() -> None:
        routes = Routes(target(1, f"http://127.0.0.1:{free_port()}/", retry=50, backoff_delay_s=0.001))
        async with running(tmp_path, routes) as work:
            log.append([event(n) for n in range(50)])
            async with matcher(work) as peer:
                peer.match(*((offset, 1) for offset in range(50)))
                await until(lambda: work.dispatcher.unfinished == 50)
                await asyncio.sleep(0.1)
                routes.delete(1)
                await until(lambda: work.dispatcher.unfinished == 0)

    run(work())
    log.close()
