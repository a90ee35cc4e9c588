"""An event must not become a request to the server's own API: trigger, name, dead-letter sink, a proxy before it."""

from __future__ import annotations

import http.client
import json

import pytest

from headgate.testing.server import Server
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = pytest.mark.system

API = "/apis/eventing.knative.dev/v1/namespaces/default/triggers"
PLANTED = {
    "apiVersion": "eventing.knative.dev/v1",
    "kind": "Trigger",
    "metadata": {"name": "planted"},
    "spec": {"broker": "default", "subscriber": {"uri": "http://attacker.example/"}},
}


def test_an_events_body_creates_no_trigger(server: Server, subscriber: Subscriber) -> None:
    before = names(server)
    published = 'ce.type == "plant"'
    spec = {"broker": "default", "filter": {"expression": published}}
    # A name is judged when it has been resolved: at admission nobody knows where it leads.
    by_name = {"subscriber": {"uri": f"http://localhost:{server.port}{API}"}}
    failing = {"subscriber": {"uri": "http://127.0.0.1:9/"}}
    sink = {"retry": 0, "deadLetterSink": {"uri": f"http://localhost:{server.port}{API}"}}
    server.create("triggers", "default", "by-name", spec | by_name | {"delivery": {"retry": 2}})
    server.create("triggers", "default", "by-sink", spec | failing | {"delivery": sink})
    server.create("triggers", "default", "fine", spec | {"subscriber": {"uri": subscriber.url("fine")}})
    for name in ("by-name", "by-sink", "fine"):
        server.wait_trigger_ready("default", name)
    assert Publisher(server).publish("p1", "plant", PLANTED) == 202
    eventually(lambda: "EventsDropped" in reasons(server, "by-name") and subscriber.ids("fine") == {"p1": 1})
    eventually(lambda: letters(server), "its sink is refused, so the letter stays")
    assert names(server) == before | {"by-name", "by-sink", "fine"}
    for name in ("by-name", "by-sink", "fine"):
        server.delete("triggers", "default", name)


def test_what_a_proxy_hands_on_is_refused_by_the_api_itself(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = {"content-type": "application/json", "headgate-hops": "1"}
    connection.request("POST", API, json.dumps(PLANTED), headers)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (403, "delivery-refused")
    connection.close()


def get(server: Server, path: str) -> dict[str, list[dict[str, dict[str, str]]]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def names(server: Server) -> set[str]:
    return {one["metadata"]["name"] for one in get(server, API)["items"]}


def reasons(server: Server, name: str) -> set[str]:
    conditions = get(server, f"{API}/{name}")["status"]["conditions"]
    return {one.get("reason", "") for one in conditions}


def letters(server: Server) -> int:
    return len(get(server, "/apis/headgate.dev/v1/namespaces/default/deadletters?trigger=by-sink")["items"])
