"""Is a broker that is made anew under the name of a deleted one another broker, to everybody who asks a real server?"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest

from headgate.testing.server import ApiError, Server
from headgate_client.sync import Client
from headgate_client.values import new_event
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SECONDS_MAX = 120.0
PATH = "default/re"


def read(server: Server, **asked: str) -> list[str]:
    """Ids that a reader of the broker gets."""
    with urllib.request.urlopen(f"{server.url}/{PATH}/events?{urllib.parse.urlencode(asked)}", timeout=60) as answer:
        return sorted(line["id"] for line in map(json.loads, answer) if "id" in line)


def status(server: Server) -> int:
    try:
        with urllib.request.urlopen(f"{server.url}/{PATH}/events", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def publish(server: Server, *names: str) -> None:
    publisher = Publisher(server, PATH)
    for name in names:
        assert publisher.publish(name, "t", {"n": int(name[1:])}, region="eu" if name[1:] != "0" else "us") == 202


def number(server: Server, name: str) -> int:
    """Publishes an event of a producer that numbers its events; says which number it got."""
    with Client(server.grpc) as client, client.producer("re", name="p") as producer:
        sequence = producer.next_sequence
        producer.publish(new_event("t", "/p", id=name))
        return sequence


def ask(server: Server, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    return server.call(method, f"{server.url}/apis/headgate.dev/v1/namespaces/default/{path}", body)


def drained(server: Server, count: int) -> list[str]:
    """Everything that the subscription has now, at least so many."""
    found: list[str] = []
    ends = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < ends
        events = ask(server, "POST", "subscriptions/re/pull", {"consumer": "a", "wait": 5})["events"]
        found += [one["event"]["id"] for one in events]
        ask(server, "POST", "subscriptions/re/ack", {"ids": [one["ackId"] for one in events]})
    rest = ask(server, "POST", "subscriptions/re/pull", {"consumer": "a"})["events"]
    return sorted(found + [one["event"]["id"] for one in rest])


def replayed(server: Server, **asked: str) -> Any:
    made = ask(server, "POST", "replays", {"broker": "re", "rate": 1000, **asked})
    eventually(lambda: ask(server, "GET", f"replays/{made['id']}")["state"] == "done")
    return ask(server, "GET", f"replays/{made['id']}")


def test_nothing_of_the_deleted_one_is_the_new_ones_and_nothing_of_the_new_one_is_missed(
    server: Server, subscriber: Subscriber
) -> None:
    server.create("brokers", "default", "re", {"log": {"filterValue": "type"}})
    server.create("triggers", "default", "re", {"broker": "re", "subscriber": {"uri": subscriber.url("re")}})
    server.create("subscriptions", "default", "re", {"broker": "re", "filterFrom": "beginning"})
    for kind in ("triggers", "subscriptions"):
        server.wait_object_ready(kind, "default", "re", seconds=SECONDS_MAX)
    publish(server, "e0", "e1", "e2")
    first = number(server, "p1")
    assert number(server, "p2") == first + 1
    eventually(lambda: len(subscriber.ids("re")) == 5)
    assert drained(server, 5) == ["e0", "e1", "e2", "p1", "p2"]
    delivered = subscriber.ids("re")
    server.delete("brokers", "default", "re")
    assert status(server) == 404
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))

    server.create("brokers", "default", "re", {"log": {"filterValue": "region"}})
    publish(server, "e7", "e8")
    assert read(server) == read(server, filter='ce.region == "eu"') == ["e7", "e8"]
    assert read(server, filterValue="eu") == ["e7", "e8"]
    assert read(server, filterValue="t") == read(server, filter="data.n < 7") == []
    assert number(server, "p1") == first
    for kind in ("triggers", "subscriptions"):
        server.wait_object_ready(kind, "default", "re", seconds=SECONDS_MAX)
    publish(server, "e9")
    eventually(lambda: "e9" in subscriber.ids("re"))
    later = subscriber.ids("re") - delivered
    assert set(later) <= {"e7", "e8", "p1", "e9"}, "nothing of the old one comes again"
    # The history that the subscription asks for is the new broker's, from its first event on.
    everything = ["e7", "e8", "e9", "p1"]
    assert drained(server, 4) == everything

    for place in ({"to": since}, {"to": "earliest"}, {"first": "data.n >= 0"}):
        ask(server, "POST", "subscriptions/re/seek", place)
        assert set(drained(server, 1)) <= set(everything), place
    with pytest.raises(ApiError) as missing:
        ask(server, "POST", "subscriptions/re/seek", {"first": "data.n < 7"})
    assert missing.value.status == 404

    counted = replayed(server, url=subscriber.url("again"))
    assert counted["broker"] == "default/re"
    assert sorted(subscriber.ids("again")) == everything
    said = replayed(server, trigger="re")
    assert (said["matched"], said["delivered"]) == (4, 4)
    why = f"{server.objects_url('triggers', 'default')}/re/why?id="
    assert server.call("GET", f"{why}e1")["fate"] == "other-broker"
    assert server.call("GET", f"{why}e9")["event"]["broker"] == PATH
