"""Statuses, failures and pauses: the table of the contract, and that attempts follow it on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from headgate.delivery.post import HttpTransport
from headgate.delivery.retry import Fate, Outcome, backoff_s, judge, pause_s, retry_after_s
from headgate_api import limits
from tests.delivery.harness import (
    EventLog,
    Request,
    Routes,
    Subscriber,
    event,
    matcher,
    refuse,
    run,
    running,
    spec,
    target,
)
from tests.support import until

AGAIN = (404, 408, 409, 429, 500, 501, 502, 503, 504, 599, 600, 799, 999)
NEVER = (301, 302, 303, 304, 307, 308, 400, 401, 403, 405, 406, 410, 412, 413, 415, 418, 422, 451)
TAKEN = (200, 201, 202, 204, 206, 299)


@pytest.mark.parametrize(
    ("statuses", "fate"),
    [(TAKEN, Fate.DELIVERED), (AGAIN, Fate.AGAIN), (NEVER, Fate.FAILED), ((101, 103, 199), Fate.FAILED)],
)
def test_the_table_of_statuses(statuses: tuple[int, ...], fate: Fate):
    assert {judge(Outcome(status)) for status in statuses} == {fate}


@pytest.mark.parametrize("reason", ["timeout", "connection", "protocol"])
def test_no_answer_is_tried_again(reason: str):
    assert judge(Outcome(0, reason)) is Fate.AGAIN


def test_an_address_that_is_none_is_not():
    assert judge(Outcome(0, "url")) is Fate.FAILED


def test_pauses():
    assert [backoff_s(spec(backoff_policy="linear", backoff_delay_s=0.5), n) for n in (1, 2, 3)] == [0.5, 1.0, 1.5]
    assert [backoff_s(spec(backoff_policy="exponential", backoff_delay_s=0.5), n) for n in (1, 2, 3)] == [1, 2, 4]
    assert backoff_s(spec(backoff_policy="exponential", backoff_delay_s=1.0), 1_000) == limits.BACKOFF_SECONDS_MAX


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("9" * 40, 999_999_999_999.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),
        ("Thursday, 01-Jan-70 00:01:40 GMT", 40.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("\u0661", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None):
    assert retry_after_s(value, now_s=60.0) == seconds


def test_a_pause_is_the_longer_of_back_off_and_retry_after_within_its_bound():
    rules = spec(backoff_policy="linear", backoff_delay_s=2.0, retry_after_max_s=30.0)

    def pause(retry: int, **outcome: str) -> float:
        return pause_s(rules, retry, Outcome(503, **outcome), now_s=0.0, chance=0.0)

    assert pause(1) == 2.0
    assert pause(1, retry_after="10") == 10.0
    assert pause(8, retry_after="10") == 16.0
    assert pause(1, retry_after="3600") == 30.0
    assert pause(1, retry_after="Thu, 01 Jan 1970 00:00:20 GMT") == 20.0
    assert pause(1, retry_after="whenever") == 2.0
    ignoring = spec(backoff_policy="linear", backoff_delay_s=2.0, retry_after_max_s=0.0)
    assert pause_s(ignoring, 1, Outcome(429, retry_after="10"), now_s=0.0, chance=0.0) == 2.0
    assert pause_s(rules, 1, Outcome(500), now_s=0.0, chance=1.0) == pytest.approx(2.2)


@pytest.mark.parametrize(("status", "counts"), [(429, True), (503, True), (500, False)])
def test_retry_after_is_heard_from_two_answers(tmp_path: Path, status: int, counts: bool):
    longest_s = 0.3 if counts else 60.0  # where it does not count a pause is told from it on a busy machine, too

    async def answer(_: Request) -> tuple[object, ...]:
        return status, b"later", ("retry-after", "60")

    async def work() -> None:
        log = EventLog(tmp_path)
        async with Subscriber(answer) as subscriber:
            routes = Routes(target(1, subscriber.url, retry=1, backoff_delay_s=0.01, retry_after_max_s=longest_s))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) == 2 and work.dispatcher.unfinished == 0)
            gap = subscriber.requests[1].at - subscriber.requests[0].at
            assert (gap >= longest_s - 0.01) == counts
        log.close()

    run(work())


def test_labels_of_metrics_are_few():
    assert len({Outcome(status).label for status in range(100, 1_000)}) <= 25


@pytest.mark.parametrize(("status", "attempts"), [(s, 3) for s in AGAIN] + [(s, 1) for s in NEVER + TAKEN])
def test_attempts_follow_the_table(tmp_path: Path, status: int, attempts: int):
    async def answer(request: Request) -> tuple[int, bytes]:
        # 204 and 304 have no body.
        return (status if request.path == "/a" else 202), b""

    async def work() -> None:
        log = EventLog(tmp_path)
        async with Subscriber(answer) as subscriber:
            routes = Routes(target(1, subscriber.url + "a", retry=2, backoff_delay_s=0.001))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) >= attempts)
                    await until(lambda: work.dispatcher.unfinished == 0)
            assert subscriber.ids == ["e0"] * attempts
            assert {request.path for request in subscriber.requests} == {"/a"}, "no redirect was followed"
        log.close()

    run(work())


@pytest.mark.parametrize("policy", ["linear", "exponential"])
def test_retries_keep_their_distance(tmp_path: Path, policy: str):
    async def fail(_: Request) -> tuple[int, bytes]:
        return 503, b""

    async def work() -> None:
        log = EventLog(tmp_path)
        async with Subscriber(fail) as subscriber:
            chosen = target(1, subscriber.url, retry=3, backoff_policy=policy, backoff_delay_s=0.03)
            async with running(tmp_path, Routes(chosen)) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) == 4)
                    await until(lambda: work.dispatcher.unfinished == 0)
            times = [request.at for request in subscriber.requests]
            gaps = [later - earlier for earlier, later in pairwise(times)]
            expected = [0.03, 0.06, 0.09] if policy == "linear" else [0.06, 0.12, 0.24]
            assert all(gap >= pause - 0.002 for gap, pause in zip(gaps, expected, strict=True))
        log.close()

    run(work())


def test_no_answer_and_nobody_there(tmp_path: Path):
    async def hang(_: Request) -> tuple[int, bytes]:
        await asyncio.sleep(3_600)
        return 202, b""

    async def work() -> None:
        log = EventLog(tmp_path)
        async with Subscriber(hang) as subscriber, Subscriber() as closed:
            await closed.__aexit__()
            routes = Routes(
                target(1, subscriber.url, retry=1, timeout_s=0.5),
                target(2, closed.url, retry=1),
                target(3, "http://no-such-host.invalid/", retry=1),
                target(4, "http://[nonsense", retry=1),
            )
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work) as peer:
                    peer.match((0, 1), (0, 2), (0, 3), (0, 4))
                    await until(lambda: len(subscriber.requests) == 2)
                    await until(lambda: work.dispatcher.unfinished == 0)
        log.close()

    run(work())


# --- the HTTP client alone ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def raw_server(answer: bytes):
    """A server that answers any request with these bytes and closes; gives its port."""
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            pass  # the client had enough
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", (200, "")),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (8 << 20), (200, "")),  # endless for our bound
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc", (200, "")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 OK\r\ncontent-length: 0\r\n\r\n", (202, "")),
        (b"HTTP/1.1 777 Odd\r\ncontent-length: 0\r\n\r\n", (777, "")),
        (b"HTTP/1.1 200 OK\r\nx-city: Z\xc3\xbcrich\r\ncontent-length: 0\r\n\r\n", (200, "")),
        (b"HTTP/1.1 200 OK\r\ncontent-type: \xff\r\ncontent-length: 0\r\n\r\n", (200, "")),
        (b"HTTP/1.1 200 OK\r\nce-id: \xc3\xa9\r\ncontent-length: 0\r\n\r\n", (200, "reply-malformed")),
        (b"HTTP/1.1 200 OK\r\nce-id: 1\r\ncontent-type: \xff\r\ncontent-length: 0\r\n\r\n", (200, "reply-malformed")),
        (b"HTTP/1.1 503 No\r\nretry-after: \xff\r\ncontent-length: 0\r\n\r\n", (503, "")),
        (b"HTTP/1.1 500 \xff\r\nx: \xff\r\ncontent-length: 0\r\n\r\n", (500, "")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello", (0, "answer")),  # breaks off
        (b"nonsense\r\n\r\n", (0, "answer")),
        (b"", (0, "answer")),
    ],
)
def test_answers_of_all_kinds(answer: bytes, expected: tuple[int, str]):
    async def work() -> None:
        async with raw_server(answer) as port, HttpTransport() as transport:
            outcome = await transport.post(f"http://127.0.0.1:{port}/", [("ce-id", "1")], b"{}", 5.0)
            if expected[0]:
                assert (outcome.status, outcome.reason, outcome.retry_after) == (*expected, "")
            else:
                assert judge(outcome) is Fate.AGAIN
                assert outcome.reason in ("connection", "protocol")

    run(work())


def test_of_an_answers_headers_only_the_events_own_are_read():
    answer = (
        b"HTTP/1.1 200 OK\r\nx: \xff\r\nCE-Id: 1\r\nce-id: 2\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n\r\n"
    )

    async def work() -> None:
        async with raw_server(answer) as port, HttpTransport() as transport:
            outcome = await transport.post(f"http://127.0.0.1:{port}/", [], b"", 5.0)
            assert outcome.reply is not None
            assert outcome.reply.headers == [("ce-id", "1"), ("ce-id", "2"), ("content-type", "text/plain")]

    run(work())


def test_why_nobody_answers_is_told_in_whole_words():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else takes it
        port = reserved.getsockname()[1]

        async def work() -> None:
            async with HttpTransport() as transport:
                outcome = await transport.post(f"http://127.0.0.1:{port}/{'x' * 1000}", [], b"", 5.0)
                assert outcome.reason == "refused"
                assert outcome.detail == "no connection: Connection refused"
                outcome = await transport.post("http://no-such-host.invalid/", [], b"", 5.0)
                assert outcome.reason == "dns"
                assert outcome.detail.startswith("no-such-host.invalid: ")
                assert "Errno" not in outcome.detail

            async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                writer.close()

            async with await asyncio.start_server(talk, "127.0.0.1", 0) as server, HttpTransport() as transport:
                plain = server.sockets[0].getsockname()[1]
                outcome = await transport.post(f"https://127.0.0.1:{plain}/", [], b"", 5.0)
                assert outcome.reason == "tls", outcome
                assert outcome.detail == "no connection: the host does not answer in TLS; is the URL one of http?"

        run(work())


def test_a_slow_body_meets_the_timeout():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            writer.close()

    async def work() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with HttpTransport() as transport:
            outcome = await transport.post(f"http://127.0.0.1:{port}/", [], b"", 0.1)
            assert (outcome.status, outcome.reason) == (0, "timeout")
        await asyncio.sleep(0.05)
        server.close()
        await server.wait_closed()

    run(work())


def test_events_given_up_are_reported(tmp_path: Path, log: EventLog):
    """D19: which was the last one, and why; nothing is kept of it without a dead-letter sink."""

    async def work() -> None:
        async with Subscriber(refuse) as subscriber:
            routes = Routes(target(1, subscriber.url))
            log.append([event(n) for n in range(3)])
            async with running(tmp_path, routes) as work, matcher(work) as peer:
                peer.match(*[(n, 1) for n in range(3)])
                await until(lambda: len(subscriber.requests) == 3 and work.dispatcher.unfinished == 0)
            assert sum(report.dropped for report in routes.reports) == 3
            (last,) = {report.last_dropped for report in routes.reports if report.dropped} & {
                f"partition 0, offset {n}: status 400 at attempt 1" for n in range(3)
            }
            assert last

    run(work())
