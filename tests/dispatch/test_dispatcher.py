"""End to end on real sockets and files: rows on the link become POSTs, once, whatever stops in between."""

from __future__ import annotations

from pathlib import Path

from headgate.filter.plan import Verdict
from tests.dispatch.harness import (
    EventLog,
    Request,
    Routes,
    Subscriber,
    event,
    matcher,
    run,
    running,
    target,
    until,
)


def test_a_row_becomes_a_post_with_the_event_as_it_was(tmp_path: Path):
    data = bytes(range(256)) + '{"ü": 1.0}'.encode()

    async def work() -> None:
        log = EventLog(tmp_path)
        async with Subscriber() as subscriber:
            async with running(tmp_path, Routes(target(7, subscriber.url + "hook?a=b"))) as work:
                offset = log.append([event(1, data=data)])
                async with matcher(work) as peer:
                    peer.match((offset, 7))
                    await until(lambda: len(subscriber.requests) == 1)
            request = subscriber.requests[0]
            assert (request.method, request.path) == ("POST", "/hook?a=b")
            assert request.body == data
            assert request.header("ce-id") == "e1"
            assert request.header("ce-source") == "/tests"
            assert request.header("ce-specversion") == "1.0"
            assert request.header("content-type") == "application/json"
            assert request.header("prefer") == "reply"
            assert request.header("accept-encoding") is None
        log.close()

    run(work())
