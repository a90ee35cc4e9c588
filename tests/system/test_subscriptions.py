"""Do consumers get their events from a real server, and go on where they were after a restart?"""

from __future__ import annotations

from typing import Any

import pytest

from headgate.testing.server import ApiError, Server
from tests.support import eventually, times
from tests.system.publishing import Publisher, broker

pytestmark = pytest.mark.system


def ask(server: Server, action: str, body: dict[str, Any] | None = None, *, name: str = "jobs") -> dict[str, Any]:
    method = "GET" if action == "stats" else "POST"
    return server.call(method, f"{server.objects_url('subscriptions', 'default')}/{name}/{action}", body)


def ids(pulled: dict[str, Any]) -> list[str]:
    return [one["event"]["id"] for one in pulled["events"]]


def backlog(server: Server, expected: int, *, name: str = "jobs") -> dict[str, Any]:
    def stats() -> dict[str, Any]:
        return ask(server, "stats", name=name)

    return eventually(lambda: (now := stats())["backlog"] == expected and now, stats)


@pytest.mark.timeout(900)  # more starts of the server
def test_create_publish_pull_acknowledge_restart_pull(server: Server) -> None:
    broker(server, "jobs")
    wanted = {"expression": 'ce.type == "job" && int(ce.subject) % 2 == 0'}
    server.create("subscriptions", "default", "jobs", {"broker": "jobs", "filter": wanted, "type": "shared"})
    server.create("subscriptions", "default", "one", {"broker": "jobs", "filter": {"attributes": {"type": "job"}}})
    for name in ("jobs", "one"):
        server.wait_object_ready("subscriptions", "default", name)
    publisher = Publisher(server, "default/jobs")
    for number in range(20):
        kind = "other" if number % 4 == 3 else "job"
        assert publisher.publish(f"e{number}", kind, "{}", subject=str(number)) == 202
    even = [f"e{number}" for number in range(0, 20, 2)]
    assert backlog(server, 15, name="one")["candidates"] == 0
    first = ask(server, "pull", {"consumer": "a", "max": 5, "wait": 20})
    assert ids(first) == even[:5]
    assert first["events"][0]["event"]["type"] == "job"
    other = ask(server, "pull", {"consumer": "b", "max": 3, "wait": 20})
    assert ids(other) == even[5:8]
    acknowledged = [one["ackId"] for one in first["events"][:3]]
    assert ask(server, "ack", {"ids": acknowledged}) == {"acknowledged": 3, "stale": []}
    found = ask(server, "analyze", {"filter": {"expression": "int(ce.subject) >= 12"}})
    assert (found["accepted"], found["complete"]) == (4, True)
    ask(server, "pull", {"consumer": "a"}, name="one")
    with pytest.raises(ApiError) as refused:
        ask(server, "pull", {"consumer": "b"}, name="one")
    assert refused.value.status == 409
    with pytest.raises(ApiError) as missing:
        ask(server, "pull", {}, name="none")
    assert missing.value.status == 404
    server.kill()
    server.start()
    for one in ("a", "b"):
        ask(server, "leave", {"consumer": one})
    rest = ask(server, "pull", {"consumer": "c", "wait": 20})
    assert ids(rest) == even[3:]
    assert ask(server, "ack", {"ids": [one["ackId"] for one in rest["events"]]})["acknowledged"] == 7
    stats = backlog(server, 0)
    assert (stats["acknowledged"], stats["redelivered"], stats["oldestUnacknowledged"]) == (10, 5, None)
    if times(0, 1):
        server.stop()
        server.start()
    assert ids(ask(server, "pull", {"consumer": "c"})) == []
    ask(server, "seek", {"to": "earliest", "first": 'ce.id == "e8"'})
    assert ids(ask(server, "pull", {"consumer": "c", "wait": 20})) == even[4:]
