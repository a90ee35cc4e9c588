"""Does the main job work end to end: real server, real Spark, real subscriber?"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.server import ApiError, Server, condition, java_of
from tests.support import eventually, times
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber
from tests.system.test_seen_from_outside import numbers, verbose

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("main-job") / "server.log"


@pytest.fixture(scope="module")
def server(log: Path) -> Iterator[Server]:
    with Server(log.parent / "data", log=log, spark=True) as running:
        yield running


TRIGGERS: dict[str, dict[str, Any]] = {
    "big": {"filter": {"expression": 'ce.type == "order.paid" && data.total > 100'}},
    "attrs": {"filter": {"attributes": {"type": "order.paid", "tenant": ""}}},
    "tags": {"filter": {"expression": 'ce.type == "tagged" && data.tags.exists(t, t == "vip")'}},
    "listed": {
        "filters": [
            {"any": [{"prefix": {"type": "listed."}}, {"exact": {"type": "other", "tenant": "acme"}}]},
            {"not": {"suffix": {"type": ".test"}}},
            {"cel": "data.total > 100"},
            {"cesql": "LENGTH(id) = 2 AND NOT EXISTS nosuch"},
        ]
    },
    "erring": {"filter": {"expression": 'ce.type == "erring" && data.age > 17'}},
    "going": {"filter": {"attributes": {"type": "going"}}},
    "staying": {"filter": {"attributes": {"type": "going"}}},
}
"""Made at once: their filters come into force together."""


@pytest.fixture(scope="module")
def subscriber(server: Server) -> Iterator[Subscriber]:
    """Of all triggers of this module, each by its name."""
    with Subscriber() as running:
        for name, spec in TRIGGERS.items():
            uri = running.url(name)
            server.create("triggers", "default", name, {"broker": "default", "subscriber": {"uri": uri}, **spec})
        for name in TRIGGERS:
            server.wait_trigger_ready("default", name)
        yield running


def trigger(server: Server, name: str, subscriber: Subscriber, filter_: dict[str, object]) -> None:
    spec = {"broker": "default", "subscriber": {"uri": subscriber.url(name)}, "filter": filter_}
    server.create("triggers", "default", name, spec)
    server.wait_trigger_ready("default", name)


def test_only_matching_events_arrive_with_attributes_and_data_unchanged(server: Server, subscriber: Subscriber) -> None:
    """By filters of several dialects; by one that Catalyst cannot decide; an error fails closed, and shows."""
    publisher = Publisher(server)
    assert publisher.publish("m1", "order.paid", {"total": 101, "name": "Zoë"}, tenant="t%20x") == 202
    assert publisher.publish("m2", "order.paid", {"total": 100}) == 202
    assert publisher.publish("m3", "order.created", {"total": 500}, tenant="t") == 202
    assert publisher.publish("m4", "order.paid", {"total": 100.5}) == 202
    for event_id, tags in (("c1", ["vip", "x"]), ("c2", ["x"]), ("c3", [])):
        assert publisher.publish(event_id, "tagged", {"tags": tags}) == 202
    assert publisher.publish("l1", "listed.paid", {"total": 101}) == 202
    assert publisher.publish("l2", "listed.test", {"total": 101}) == 202
    assert publisher.publish("l3", "listed.paid", {"total": 100}) == 202
    assert publisher.publish("l4", "other", {"total": 101}, tenant="acme") == 202
    assert publisher.publish("l5", "other", {"total": 101}) == 202
    assert publisher.publish("x1", "erring", {"name": "no age"}) == 202
    eventually(lambda: len(subscriber.deliveries) >= 6)
    eventually(lambda: condition(server.get("triggers", "default", "erring"), "FilterHealthy").get("status") == "False")
    time.sleep(0.5)
    came = {name: subscriber.ids(name) for name in TRIGGERS if subscriber.ids(name)}
    assert came == {"big": {"m1": 1, "m4": 1}, "attrs": {"m1": 1}, "tags": {"c1": 1}, "listed": {"l1": 1, "l4": 1}}
    first = next(d for d in subscriber.deliveries if d.id == "m1")
    assert first.body == json.dumps({"total": 101, "name": "Zoë"}).encode()
    assert first.headers["content-type"] == "application/json"
    assert first.headers["ce-specversion"] == "1.0"
    assert first.headers["ce-tenant"] == "t%20x"
    assert first.headers["prefer"] == "reply"


def test_an_invalid_filter_is_refused_with_its_field(server: Server, subscriber: Subscriber) -> None:
    spec = {"broker": "default", "subscriber": {"uri": subscriber.url("x")}, "filter": {"expression": "ce.type = 1"}}
    with pytest.raises(ApiError) as caught:
        server.create("triggers", "default", "invalid", spec)
    assert caught.value.status == 422
    assert caught.value.body["details"]["causes"][0]["field"] == "spec.filter.expression"


def test_a_trigger_added_while_events_flow_loses_nothing_after_it_is_ready(
    server: Server, subscriber: Subscriber
) -> None:
    trigger(server, "steady", subscriber, {"attributes": {"type": "flow"}})
    accepted: list[tuple[float, str]] = []
    stop = threading.Event()

    def produce() -> None:
        publisher = Publisher(server)
        number = 0
        while not stop.is_set():
            begun = time.monotonic()
            assert publisher.publish(f"f{number}", "flow", {"n": number}) == 202
            accepted.append((begun, f"f{number}"))
            number += 1
            time.sleep(0.005)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        ready_at = {}
        for number in range(times(1, 3)):
            name = f"added-{number}"
            trigger(server, name, subscriber, {"expression": f'ce.type == "flow" && data.n >= {number}'})
            ready_at[name] = time.monotonic()  # how long that takes is measured by benchmarks/latency.py
        time.sleep(0.5)
    finally:
        stop.set()
        producer.join()
    eventually(lambda: len(subscriber.ids("steady")) == len(accepted))
    for name, ready in ready_at.items():
        due = {event_id for begun, event_id in accepted if begun > ready}  # one under way then may be older
        assert due
        eventually(lambda name=name, due=due: due <= set(subscriber.ids(name)))  # type: ignore[misc]
    assert set(subscriber.ids("steady").values()) == {1}, "each event is evaluated once although generations change"


def test_a_deleted_trigger_gets_nothing_more(server: Server, subscriber: Subscriber) -> None:
    server.delete("triggers", "default", "going")
    time.sleep(1)
    assert Publisher(server).publish("g1", "going") == 202
    eventually(lambda: subscriber.ids("staying") == {"g1": 1})
    assert subscriber.ids("going") == {}


def test_health_and_metrics(server: Server) -> None:
    with urllib.request.urlopen(f"{server.url}/livez") as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{server.url}/readyz") as answer:
        assert json.loads(answer.read()) == dict.fromkeys(
            ["front-0", "dispatcher-0", "reader", "matcher", "log", "control"], True
        )
    assert Publisher(server).publish("h1", "metrics") == 202


def test_unknown_brokers_and_methods(server: Server) -> None:
    assert Publisher(server, "default/none").publish("u1", "t") == 404
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/default/default")
    answer = connection.getresponse()
    assert answer.status == 405
    assert "POST" in (answer.getheader("allow") or "")
    connection.close()


@pytest.mark.slow
def test_a_jvm_that_dies_is_shown_and_replaced(server: Server, subscriber: Subscriber) -> None:
    trigger(server, "survivor", subscriber, {"attributes": {"type": "survivor"}})
    publisher = Publisher(server)
    assert publisher.publish("before", "survivor") == 202
    eventually(lambda: "before" in subscriber.ids("survivor"))
    status, text = verbose(server)
    assert status == 200
    assert "[+]matcher ok: generation " in text
    restarts = numbers(server)["headgate_process_restarts_total", "matcher"]
    os.kill(java_of(server), signal.SIGKILL)
    eventually(lambda: verbose(server)[0] == 503)
    assert "[-]matcher failed: " in verbose(server)[1]
    assert publisher.publish("meanwhile", "survivor") == 202, "events are accepted all the while"
    server.wait_ready()
    eventually(lambda: "meanwhile" in subscriber.ids("survivor"))
    eventually(lambda: numbers(server)["headgate_process_restarts_total", "matcher"] == restarts + 1)
    assert subscriber.ids("survivor") == {"before": 1, "meanwhile": 1}


@pytest.mark.slow  # the gate stops and restarts a server without Spark, and kills one with it
def test_an_orderly_stop_and_a_restart_lose_nothing(server: Server, subscriber: Subscriber) -> None:
    trigger(server, "kept", subscriber, {"attributes": {"type": "kept"}})
    publisher = Publisher(server)
    for number in range(50):
        assert publisher.publish(f"k{number}", "kept", {"n": number}) == 202
    assert server.stop() == 0
    server.start()
    assert Publisher(server).publish("after", "kept") == 202
    eventually(lambda: len(subscriber.ids("kept")) == 51)
    time.sleep(0.5)
    assert set(subscriber.ids("kept").values()) == {1}


def test_events_are_accepted_while_the_objects_process_is_away(server: Server) -> None:
    ready_file = server.data / "run" / "control.ready"
    pid = int(ready_file.read_text())
    os.kill(pid, signal.SIGSTOP)  # whoever hangs answers neither
    os.kill(server.pid, signal.SIGSTOP)  # else the next one may be there before it is asked
    try:
        publisher = Publisher(server)
        assert [publisher.publish(f"c{number}", "away") for number in range(20)] == [202] * 20
        os.kill(pid, signal.SIGKILL)
        assert Publisher(server).publish("c20", "away") == 202
        with pytest.raises(ApiError) as away:
            server.list("brokers", "default")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.kill(server.pid, signal.SIGCONT)
    assert away.value.status == 503
    assert "try again in a few seconds" in away.value.body["message"]
    eventually(lambda: ready_file.exists() and int(ready_file.read_text()) != pid)
    server.wait_ready()
    server.create("brokers", "default", "at-once", {})
    assert Publisher(server, "default/at-once").publish("c21", "away") == 202
    server.delete("brokers", "default", "at-once")
    assert Publisher(server, "default/at-once").publish("c22", "away") == 404


def test_ctrl_c_ends_a_running_server_without_a_word_of_its_parts(server: Server, log: Path) -> None:
    """A terminal sends SIGINT to every process of the group, the JVM included. The last test: it ends the server."""
    if not server.is_ready():
        server.wait_ready()
    before = log.stat().st_size
    assert server.interrupt() == 0
    said = [json.loads(line) for line in log.read_bytes()[before:].splitlines()]  # no traceback, nothing of the JVM
    assert {line["level"] for line in said} == {"info"}
    assert said[-1]["event"] == "the dispatcher has stopped"
