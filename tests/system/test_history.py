"""Does a real server find, repeat and replay what happened before? Seek over the whole log, replays to one target."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from headgate.testing.server import ApiError, Server
from tests.commands import told
from tests.support import DEPTH, eventually
from tests.system.publishing import Publisher, broker
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]  # starts of a server

SECONDS_MAX = 60.0
EVENTS = 30


@pytest.fixture(scope="module", autouse=True)
def events(server: Server) -> None:
    """A broker with EVENTS events, and the subscription `rows` to some of them."""
    broker(server, "history")
    spec = {"broker": "history", "filter": {"expression": 'ce.type == "row" && data.n % 3 == 0'}}
    server.create("subscriptions", "default", "rows", spec)
    server.wait_object_ready("subscriptions", "default", "rows")
    publisher = Publisher(server, "default/history")
    for number in range(EVENTS):
        kind = "commit" if number % 10 == 9 else "row"
        data = {"n": number, "tso": 449_320_000_000_000 + number}
        assert publisher.publish(f"e{number}", kind, data) == 202
    # With Spark the backlog has every event of the type: the remainder is for cel-cpp, when an event is pulled.
    of_type = sum(number % 10 != 9 for number in range(EVENTS))
    due = len(rows()) if DEPTH == "gate" else of_type
    eventually(lambda: ask(server, "GET", "subscriptions/rows/stats")["backlog"] == due)


def rows(first: int = 0) -> list[str]:
    return [f"e{n}" for n in range(first, EVENTS) if n % 3 == 0 and n % 10 != 9]


def ask(server: Server, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    return server.call(method, f"{server.url}/apis/headgate.dev/v1/namespaces/default/{path}", body)


def pulled(server: Server, name: str = "rows") -> list[str]:
    events = ask(server, "POST", f"subscriptions/{name}/pull", {"consumer": "a", "wait": 20})["events"]
    return sorted((one["event"]["id"] for one in events), key=lambda name: int(name[1:]))  # partitions mix


def command(server: Server, *words: str) -> str:
    return told(*words, "--server", server.url)


def test_a_seek_finds_events_that_the_subscription_does_not_want(server: Server) -> None:
    epoch = ask(server, "GET", "subscriptions/rows/stats")["epoch"]
    seek = {"first": 'ce.type == "commit" && data.tso >= 449320000000015'}
    found = ask(server, "POST", "subscriptions/rows/seek", seek)
    assert (found["running"], found["epoch"]) == (False, epoch + 1)
    assert pulled(server) == rows(19)
    assert ask(server, "GET", "subscriptions/rows/seek") == {"running": False}
    assert ask(server, "DELETE", "subscriptions/rows/seek") == {"cancelled": False}
    text = command(server, "seek", "rows", "--last", 'ce.type == "row" && data.n < 10', "--after")
    assert f"epoch {epoch + 2}" in text
    assert pulled(server) == rows(9)
    with pytest.raises(ApiError) as missing:
        ask(server, "POST", "subscriptions/rows/seek", {"first": "data.n == 1000"})
    assert missing.value.status == 404
    ask(server, "POST", "subscriptions/rows/seek", {"to": "earliest"})
    assert pulled(server) == rows()


def test_a_filter_counts_from_the_beginning_or_a_place_once_and_over_kills(server: Server) -> None:
    commits = [f"e{n}" for n in range(EVENTS) if n % 10 == 9]
    spec = {"broker": "history", "filter": {"expression": 'ce.type == "commit"'}, "filterFrom": "beginning"}
    spec["ackTimeout"] = "PT10M"  # nothing comes again because this machine is slow
    server.create("subscriptions", "default", "past", spec)
    server.wait_object_ready("subscriptions", "default", "past")
    events = ask(server, "POST", "subscriptions/past/pull", {"consumer": "a", "wait": 20})["events"]
    while len(events) < len(commits):
        events += ask(server, "POST", "subscriptions/past/pull", {"consumer": "a", "wait": 20})["events"]
    assert sorted(one["event"]["id"] for one in events) == sorted(commits)
    done = ask(server, "POST", "subscriptions/past/ack", {"ids": [events[0]["ackId"]]})
    assert done["acknowledged"] == 1
    server.kill()
    server.start()
    ask(server, "POST", "subscriptions/past/leave", {"consumer": "a"})
    publisher = Publisher(server, "default/history")
    assert publisher.publish("e100", "commit", {"n": 100, "tso": 1}) == 202
    rest: list[str] = []
    ends = time.monotonic() + 4 * SECONDS_MAX
    while "e100" not in rest:
        assert time.monotonic() < ends
        rest += pulled(server, "past")
    assert sorted(rest) == sorted({*commits, "e100"} - {events[0]["event"]["id"]})
    assert ask(server, "GET", "subscriptions/past/stats")["backlog"] == len(commits)


def test_a_replay_goes_to_one_url_or_trigger_only(server: Server, subscriber: Subscriber) -> None:
    url = subscriber.url("replayed")
    named = ["--broker", "default/history", "--target", url]
    counted = json.loads(command(server, "replay", *named, "--dry-run", "--json"))
    assert (counted["state"], counted["broker"]) == ("done", "default/history")
    assert EVENTS <= counted["matched"] <= counted["eventsTotal"]  # all events of the log, of other brokers too
    made = ask(
        server,
        "POST",
        "replays",
        {"broker": "history", "url": url, "filter": 'ce.type == "commit" && data.n < 100', "rate": 1000},
    )
    eventually(lambda: ask(server, "GET", f"replays/{made['id']}")["state"] == "done")
    found = ask(server, "GET", f"replays/{made['id']}")
    assert (found["matched"], found["delivered"], found["eventsPassed"]) == (3, 3, found["eventsTotal"])
    assert sorted(subscriber.ids("replayed")) == ["e19", "e29", "e9"]
    assert "done" in command(server, "replay", "list")
    assert "had ended" in command(server, "replay", "cancel", str(made["id"]))
    for status, body in (
        (400, {"broker": "history"}),
        (400, {"broker": "history", "url": url, "trigger": "t"}),
        (422, {"broker": "history", "url": "ftp://x/"}),
        (400, {"broker": "history", "url": url, "rate": 0}),
        (400, {"broker": "history", "url": url, "from": "there"}),
        (422, {"broker": "history", "url": url, "filter": "data.n =="}),
        (404, {"broker": "none", "url": url}),
        (404, {"trigger": "none"}),
    ):
        with pytest.raises(ApiError) as refused:
            ask(server, "POST", "replays", body)
        assert refused.value.status == status, body
