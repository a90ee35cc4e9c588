"""Events that come too late, by their `expirytime` or a trigger's `ttl`, are not sent."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headgate.delivery.events import SharedEvent
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.verdicts import FilterErrors, FinalCheck, evaluate
from headgate.filter.compile.plan import Verdict
from headgate_api import limits
from headgate_api.event.json_format import decode_batch
from tests.delivery.harness import BROKER, EventLog, Request, Routes, Subscriber, event, matcher, run, running, target
from tests.support import until

NOW_US = 1_700_000_000_000_000
S = 1_000_000


def at(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="microseconds")


@pytest.mark.parametrize(
    ("stored_us", "ttl_us", "expirytime", "said"),
    [
        (NOW_US, None, None, ""),
        (NOW_US - 9 * S, 10 * S, None, ""),
        (NOW_US - 10 * S, 10 * S, None, "not delivered within 10 s (delivery.ttl)"),
        (0, None, at(NOW_US + 1), ""),
        (0, None, at(NOW_US), f"not delivered before its expirytime, {at(NOW_US)}"),
        (NOW_US, 10 * S, "2023-11-14T23:13:19+01:00", "not delivered before its expirytime, 2023-11-14T23:13:19+01:00"),
        (NOW_US - 10 * S, 10 * S, at(NOW_US + S), "not delivered within 10 s (delivery.ttl)"),
        (NOW_US, None, "some day", ""),  # a topic of Kafka may have it of somebody else
        (NOW_US, None, 7, ""),
    ],
)
def test_the_earlier_of_both_counts(stored_us: int, ttl_us: int | None, expirytime: Any, said: str) -> None:
    more = {} if expirytime is None else {"extensions": {"expirytime": expirytime}}
    shared = SharedEvent(BROKER, event(1, **more), stored_us)
    to = target(1, "http://127.0.0.1/", ttl_us=ttl_us)
    check = FinalCheck(evaluate, FilterErrors(), lambda: NOW_US)
    found = check(to, Delivery(0, 0, 0, Verdict.MATCH), shared)
    assert found == ("expired" if said else shared)
    assert check.message(to, shared) == said


def test_an_event_that_the_filter_refuses_is_not_late() -> None:
    shared = SharedEvent(BROKER, event(1), 0)
    to = target(1, "http://127.0.0.1/", cel="data.n == 2", ttl_us=1)
    check = FinalCheck(evaluate, FilterErrors(), lambda: NOW_US)
    assert check(to, Delivery(0, 0, 0, Verdict.CANDIDATE), shared) == "filtered"


def batched(subscriber: Subscriber) -> list[str]:
    return [one.id for request in subscriber.requests for one in decode_batch(request.body)]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_retry_does_not_send_what_has_become_too_late(tmp_path: Path, log: EventLog, is_kept: bool) -> None:
    async def busy(_: Request) -> tuple[int, bytes]:
        return 503, b""

    async def test() -> None:
        async with Subscriber(busy) as subscriber, Subscriber() as sink:
            rules = {"retry": 1_000, "backoff_delay_s": 0.1, "ttl_us": S, "expired_kept": is_kept}
            routes = Routes(target(1, subscriber.url, **rules, dead_letter_uri=sink.url))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) > 1)
                    await until(lambda: len(sink.requests) == is_kept and not work.dispatcher.scheduler.behind)
            assert [report.dropped for report in routes.reports if report.dropped] == [], "it is as somebody wished"
            if is_kept:
                (kept,) = sink.requests
                assert (kept.header("ce-id"), kept.header("ce-knativeerrorcode")) == ("e0", "500")
                said = base64.b64decode(kept.header("ce-knativeerrordata") or "").decode()
                assert said == "not delivered within 1 s (delivery.ttl)"

    run(test())


def test_of_a_batch_only_what_is_too_late_stays_behind(tmp_path: Path, log: EventLog) -> None:
    async def test() -> None:
        async with Subscriber() as subscriber, Subscriber() as sink:
            rules = {"format": "batch", "batch_size": 4, "batch_wait_s": 0.01, "expired_kept": True}
            routes = Routes(target(1, subscriber.url, **rules, dead_letter_uri=sink.url))
            async with running(tmp_path, routes) as work:
                late = {"extensions": {"expirytime": "2020-01-01T00:00:00Z"}}
                log.append([event(n, **late if n % 2 else {}) for n in range(8)])
                async with matcher(work) as peer:
                    peer.match(*[(n, 1) for n in range(8)])
                    await until(lambda: len(batched(subscriber)) + len(batched(sink)) == 8)
            assert sorted(batched(subscriber)) == ["e0", "e2", "e4", "e6"]
            assert sorted(batched(sink)) == ["e1", "e3", "e5", "e7"]

    run(test())


def test_a_backlog_is_read_on_when_all_that_was_read_of_it_is_too_late(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TARGET_QUEUE_MAX", 8)

    async def test() -> None:
        async with Subscriber() as subscriber:
            routes = Routes(target(1, subscriber.url, rate_per_s=2, ttl_us=S // 2))
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(40)])
                async with matcher(work) as peer:
                    peer.match(*((n, 1) for n in range(40)))
                    await until(lambda: len(subscriber.requests) > 0)
                    (state,) = work.dispatcher.scheduler.states
                    await until(lambda: state.counts.delivered + state.counts.failed == 40)
                    assert state.lag is None
            assert len(subscriber.requests) < 8

    run(test())
