"""The public cases of the HTTP binding over real sockets: what uvicorn and its parser let through counts too."""

from __future__ import annotations

import asyncio
import threading

import uvicorn

from conformance import http
from headgate.ingress.http_connection import http_config
from headgate.testing.server import free_port
from headgate_conformance.broker import CaseStatus
from tests.ingress.support import FakeLog, ingress
from tests.support import conformance


def test_http_cases_at_a_url():
    log, port = FakeLog(), free_port()
    server = uvicorn.Server(http_config(ingress(log), "127.0.0.1", port))
    thread = threading.Thread(target=asyncio.run, args=(server.serve(),))
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        with conformance("cloudevents_http.jsonl").open("rb") as file:
            results = list(http.run_at(f"http://127.0.0.1:{port}/ns/b", file))
    finally:
        server.should_exit = True
        thread.join()
    assert len(results) >= 98
    assert [result for result in results if result.verdict is CaseStatus.FAILED] == []
    assert len(log.events) > 20
