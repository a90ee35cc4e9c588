"""Deliveries of triggers with a transform, on real sockets."""

from __future__ import annotations

import dataclasses
import json
import weakref
from pathlib import Path
from typing import Any

from headgate.delivery.events import SharedEvent
from headgate.objects.kinds.routing import Target
from headgate_api import limits
from headgate_api.event.json_format import decode_batch
from tests.delivery.harness import EventLog, Request, Routes, Subscriber, event, matcher, refuse, run, running, target
from tests.support import until

NUMBERED = '{"type": "t.v2", "number": data.n, "data": {"n": data.n * 10}}'


def transformed(number: int, url: str, transform: str = NUMBERED, **delivery: Any) -> Target:
    return dataclasses.replace(target(number, url, **delivery), transform=transform)


def said(request: Request) -> tuple[str, str | None, Any]:
    return request.header("ce-type") or "", request.header("ce-number"), json.loads(request.body)


def test_only_who_wants_it_gets_another_event(tmp_path: Path, log: EventLog) -> None:
    async def test() -> None:
        async with Subscriber() as one, Subscriber() as other:
            async with running(tmp_path, Routes(transformed(1, one.url), target(2, other.url))) as work:
                log.append([event(n, data=b'{"n":%d}' % n) for n in range(20)])
                async with matcher(work) as peer:
                    peer.match(*[(n, t) for n in range(20) for t in (1, 2)])
                    await until(lambda: len(one.requests) == len(other.requests) == 20)
            assert sorted(map(said, one.requests), key=lambda one: one[2]["n"]) == [
                ("t.v2", str(n), {"n": n * 10}) for n in range(20)
            ]
            assert {said(request)[:2] for request in other.requests} == {("t", None)}
            assert sorted(said(request)[2]["n"] for request in other.requests) == list(range(20))

    run(test())


def test_parsed_events_are_not_kept_with_all_events() -> None:
    events = [SharedEvent("b", event(n, data=b'{"n":%d}' % n), 1) for n in range(3 * limits.VIEWS_KEPT_MAX)]
    large = [SharedEvent("b", event(n, data=b"%%%d" % n * limits.VIEW_KEPT_BYTES_MAX), 1) for n in range(3)]
    views = [weakref.ref(one.view) for one in events + large]
    assert [one.view for one in events[-9:]] == [one() for one in views[-12:-3]]
    assert sum(one() is not None for one in views) == limits.VIEWS_KEPT_MAX + 1


def test_a_batch_holds_what_is_made_and_is_tried_again_with_it(tmp_path: Path, log: EventLog) -> None:
    async def busy(request: Request) -> tuple[int, bytes]:
        return (503 if len(tries) < 2 and not tries.append(request) else 202), b""

    tries: list[Request] = []

    async def test() -> None:
        async with Subscriber(busy) as subscriber:
            rules = {"format": "batch", "batch_size": 4, "batch_wait_s": 0.01}
            async with running(tmp_path, Routes(transformed(1, subscriber.url, **rules))) as work:
                log.append([event(n, data=b'{"n":%d}' % n) for n in range(8)])
                async with matcher(work) as peer:
                    peer.match(*[(n, 1) for n in range(8)])
                    await until(lambda: sum(len(decode_batch(one.body)) for one in subscriber.requests[2:]) >= 8)
            for request in subscriber.requests:
                for one in decode_batch(request.body):
                    assert (one.type, one.data) == ("t.v2", b'{"n":%d}' % (10 * int(one.id[1:])))

    run(test())


def test_where_it_makes_no_event_nothing_is_sent_and_the_error_is_reported(tmp_path: Path, log: EventLog) -> None:
    async def test() -> None:
        async with Subscriber() as subscriber, Subscriber() as sink:
            rules = {"filter_errors_kept": True, "dead_letter_uri": sink.url}
            routes = Routes(transformed(1, subscriber.url), transformed(2, subscriber.url, **rules))
            async with running(tmp_path, routes) as work:
                log.append([event(0, data=b'{"m":1}'), event(1)])
                async with matcher(work) as peer:
                    peer.match((0, 1), (0, 2), (1, 1), (1, 2))
                    await until(lambda: len(subscriber.requests) == 2 and len(sink.requests) == 1)
                    await until(lambda: {one.target for one in routes.reports if one.filter_errors} == {1, 2})
            assert subscriber.ids == ["e1", "e1"]
            told = [one for one in routes.reports if one.last_error]
            assert all("transform: " in one.last_error and "/tests e0" in one.last_error_event for one in told)
            (kept,) = sink.requests
            assert json.loads(kept.body) == {"m": 1}, "what is stored"
            assert kept.header("ce-knativeerrorcode") == "422"

    run(test())


def test_a_dead_letter_holds_what_was_sent(tmp_path: Path, log: EventLog) -> None:
    async def test() -> None:
        async with Subscriber(refuse) as subscriber, Subscriber() as sink:
            routes = Routes(transformed(1, subscriber.url, dead_letter_uri=sink.url))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(sink.requests) == 1)
            assert said(sink.requests[0]) == ("t.v2", "1", {"n": 10})

    run(test())


def test_a_new_transform_holds_for_events_that_wait(tmp_path: Path, log: EventLog) -> None:
    async def first_busy(_: Request) -> tuple[int, bytes]:
        if not changed:
            changed.append(True)
            routes.put(transformed(1, subscriber.url, '{"type": "t.v3"}'))
            return 503, b""
        return 202, b""

    changed: list[bool] = []
    routes = Routes()
    subscriber = Subscriber(first_busy)

    async def test() -> None:
        async with subscriber:
            routes.put(transformed(1, subscriber.url, backoff_delay_s=0.5))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) == 2)
            assert [said(request)[0] for request in subscriber.requests] == ["t.v2", "t.v3"]

    run(test())
