"""Answers that are events, on real sockets: stored before the delivery ends, or the attempt has failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.event.hops import place_root, with_lineage
from headgate.observe import metrics
from headgate.server.processes.shard_deliveries import SenderIdentity
from headgate.testing.server import free_port
from headgate_api import limits
from tests.delivery.harness import EventLog, Request, Routes, Subscriber, event, matcher, run, running, target
from tests.support import until

CE = (("ce-specversion", "1.0"), ("ce-id", "r1"), ("ce-source", "/reply"), ("ce-type", "reply"))


def exchange(
    tmp_path: Path,
    log: EventLog,
    answer: tuple[object, ...],
    statuses: tuple[int, ...] = (202,),
    *,
    hops: int = 0,
    root: str = "",
) -> tuple[list[Request], list[Request], float]:
    """One event to a subscriber with this answer; what it and ingress got, and how many deliveries failed."""
    kept: list[list[Request]] = []
    left = list(statuses)
    failed = metrics.DELIVERIES.labels("failed").value

    async def reply(_: Request) -> tuple[object, ...]:
        return answer

    async def take(_: Request) -> tuple[int, bytes]:
        return (left.pop(0) if len(left) > 1 else left[0]), b"{}"

    async def work() -> None:
        async with Subscriber(reply) as subscriber, Subscriber(take) as ingress:
            routes = Routes(target(1, subscriber.url, retry=2))
            async with running(tmp_path, routes, identity=SenderIdentity(url=ingress.url.rstrip("/"))) as work:
                one = event(0)
                log.append([with_lineage(one, hops, root)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) > 0)
                    await until(lambda: work.dispatcher.unfinished == 0)
            kept.extend([subscriber.requests, ingress.requests])

    run(work())
    return kept[0], kept[1], metrics.DELIVERIES.labels("failed").value - failed


def test_a_binary_reply_goes_to_ingress_as_it_is(tmp_path: Path, log: EventLog):
    headers = (*CE, ("ce-subject", "a%20b"), ("Content-Type", "text/plain"), ("x-other", "1"), ("ce-headgatehops", "0"))
    asked, stored, failed = exchange(tmp_path, log, (200, b"hello", *headers))
    assert (len(asked), failed) == (1, 0)
    assert asked[0].header("prefer") == "reply"
    assert asked[0].header("headgate-hops") == "1"
    (reply,) = stored
    assert reply.path == "/default/default"
    assert reply.body == b"hello"
    assert {name: reply.header(name) for name, _ in CE} == dict(CE)
    assert reply.header("ce-subject") == "a%20b"
    assert reply.header("content-type") == "text/plain"
    assert reply.header("x-other") is None
    assert reply.header("headgate-hops") == "1"


def test_a_structured_reply_keeps_its_bytes(tmp_path: Path, log: EventLog):
    body = b'{"specversion":"0.3","id":"r","source":"/r","type":"t","count":7,"data":{"a": 1.50}}'
    _, stored, failed = exchange(
        tmp_path, log, (200, body, ("content-type", "application/cloudevents+json; charset=utf-8"))
    )
    assert failed == 0
    assert stored[0].body == body


@pytest.mark.parametrize(
    "answer",
    [
        (202, b"hello", *CE),
        (204, b""),
        (201, b"hello", *CE),
        (200, b""),
        (200, b"ok", ("content-type", "text/plain")),
        (200, b'{"ok":true}', ("content-type", "application/json")),
    ],
)
def test_what_is_no_reply(tmp_path: Path, log: EventLog, answer: tuple[object, ...]):
    asked, stored, failed = exchange(tmp_path, log, answer)
    assert (len(asked), stored, failed) == (1, [], 0)


@pytest.mark.parametrize("status", [400, 413, 415, 404, 429, 503])
def test_a_reply_that_is_not_stored_is_a_failed_attempt(tmp_path: Path, log: EventLog, status: int):
    asked, stored, failed = exchange(tmp_path, log, (200, b"x", *CE), (status,))
    assert (len(asked), len(stored), failed) == (3, 3, 1)
    asked, stored, failed = exchange(tmp_path / "again", EventLog(tmp_path / "again"), (200, b"x", *CE), (status, 202))
    assert (len(asked), len(stored), failed) == (2, 2, 0)


def test_a_reply_may_be_a_batch(tmp_path: Path, log: EventLog):
    """It goes to ingress in one request, which stores all of its events or none."""
    body = b'[{"specversion":"1.0","id":"r1","source":"/r","type":"t"}, {"specversion":"1.0","id":"r2"} ]'
    _, stored, failed = exchange(tmp_path, log, (200, body, ("content-type", "application/cloudevents-batch+json")))
    assert ([one.body for one in stored], failed) == ([body], 0)
    assert stored[0].header("content-type") == "application/cloudevents-batch+json"
    assert stored[0].header("headgate-hops") == "1"


def test_a_reply_that_is_too_large_is_a_failed_attempt(tmp_path: Path, log: EventLog):
    asked, stored, failed = exchange(tmp_path, log, (200, b"x" * (limits.RESPONSE_BYTES_MAX + 1), *CE))
    assert (len(asked), stored, failed) == (3, [], 1)


def test_a_reply_waits_for_a_front_that_starts(tmp_path: Path, log: EventLog):
    """Front and dispatcher start side by side: the subscriber is not asked twice because the other one is later."""

    async def reply(_: Request) -> tuple[object, ...]:
        return 200, b"", *CE

    async def work() -> None:
        port = free_port()  # and not one of a socket that was closed: the next one of any process may get it
        async with Subscriber(reply) as subscriber:
            routes = Routes(target(1, subscriber.url, retry=2))
            async with running(tmp_path, routes, identity=SenderIdentity(url=f"http://127.0.0.1:{port}")) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) == 1)
                    await asyncio.sleep(0.3)
                    async with Subscriber(port=port) as ingress:
                        await until(lambda: work.dispatcher.unfinished == 0)
                        assert len(ingress.requests) == 1
                assert len(subscriber.requests) == 1

    run(work())


def test_a_reply_that_front_may_have_stored_is_not_offered_again(tmp_path: Path, log: EventLog):
    async def reply(_: Request) -> tuple[object, ...]:
        return 200, b"x", *CE

    async def break_off(_: Request) -> tuple[object, ...]:
        raise ConnectionResetError

    async def work() -> None:
        async with Subscriber(reply) as subscriber, Subscriber(break_off) as ingress:
            routes = Routes(target(1, subscriber.url, retry=1))
            async with running(tmp_path, routes, identity=SenderIdentity(url=ingress.url.rstrip("/"))) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) == 2 and work.dispatcher.unfinished == 0)
            assert len(ingress.requests) == 2, "one an attempt"

    run(work())


def test_nobody_at_ingress(tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "REPLY_STORE_SECONDS_MAX", 0.3)

    async def reply(_: Request) -> tuple[object, ...]:
        return 200, b"x", *CE

    async def work() -> None:
        async with Subscriber(reply) as subscriber:
            routes = Routes(target(1, subscriber.url, retry=1))
            async with running(tmp_path, routes, identity=SenderIdentity(url="http://127.0.0.1:1")) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) == 2 and work.dispatcher.unfinished == 0)
                    await asyncio.sleep(0)

    run(work())


def test_hops_end_a_chain_and_no_retry_follows(tmp_path: Path, log: EventLog):
    looped = metrics.REPLIES.labels("looped").value
    asked, stored, failed = exchange(tmp_path, log, (200, b"x", *CE), hops=limits.HOPS_MAX - 1)
    assert (len(asked), failed) == (1, 0)
    assert stored[0].header("headgate-hops") == str(limits.HOPS_MAX)
    assert asked[0].header("ce-headgatehops") is None
    again = tmp_path / "again"
    asked, stored, failed = exchange(again, EventLog(again), (200, b"x", *CE), hops=limits.HOPS_MAX)
    assert (len(asked), stored, failed) == (1, [], 1)
    assert metrics.REPLIES.labels("looped").value == looped + 1


def test_a_reply_belongs_to_the_tree_of_what_it_answers(tmp_path: Path, log: EventLog):
    answer = (200, b"x", *CE, ("headgate-root", "mine"), ("ce-headgateroot", "mine"))
    asked, stored, _ = exchange(tmp_path, log, answer)
    root = place_root(event(0), 0, 0)
    assert asked[0].header("headgate-root") == stored[0].header("headgate-root") == root
    again = tmp_path / "again"
    asked, stored, _ = exchange(again, EventLog(again), answer, hops=3, root="0-5-abc")
    assert asked[0].header("headgate-root") == stored[0].header("headgate-root") == "0-5-abc"
    assert asked[0].header("ce-headgateroot") is None


def test_a_tree_that_is_full_ends_without_a_retry(tmp_path: Path, log: EventLog):
    looped = metrics.REPLIES.labels("looped").value
    reasons = metrics.ATTEMPTS_FAILED.labels("reply-tree").value
    asked, stored, failed = exchange(tmp_path, log, (200, b"x", *CE), (422,))
    assert (len(asked), len(stored), failed) == (1, 1, 1)
    assert metrics.REPLIES.labels("looped").value == looped + 1
    assert metrics.ATTEMPTS_FAILED.labels("reply-tree").value == reasons + 1
