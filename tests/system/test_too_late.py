"""Events that come too late, on a real server: dropped or a dead letter, as the trigger says, and `why` knows."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from headgate.testing.server import Server
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber
from tests.system.test_subscriptions import ask

pytestmark = pytest.mark.system

LIFE_S = 3.0


def in_(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_what_waited_too_long_is_not_sent(server: Server, subscriber: Subscriber) -> None:
    retries = {"retry": 1_000, "backoffPolicy": "linear", "backoffDelay": "PT0.2S"}
    rules = {
        "dropping": {"ttl": f"PT{LIFE_S:g}S"},
        "keeping": {"ttl": f"PT{LIFE_S:g}S", "onExpired": "deadLetter"},
        "patient": {"onExpired": "deadLetter"},
    }
    for name, rule in rules.items():
        sink = {"deadLetterSink": {"uri": subscriber.url(f"{name}-dead")}}
        spec = {"broker": "default", "filter": {"expression": 'ce.type == "late"'}, "delivery": retries | sink | rule}
        server.create("triggers", "default", name, spec | {"subscriber": {"uri": subscriber.url(name)}})
    server.create("subscriptions", "default", "late", {"broker": "default", "filter": {"cel": 'ce.type == "late"'}})
    for name in rules:
        server.wait_trigger_ready("default", name)
    server.wait_object_ready("subscriptions", "default", "late")
    subscriber.answers = dict.fromkeys(rules, (503, b""))
    publisher = Publisher(server)
    assert publisher.publish("mortal", "late", expirytime=in_(LIFE_S)) == 202
    assert publisher.publish("plain", "late") == 202
    assert publisher.publish("wrong", "late", expirytime="soon") == 400
    eventually(lambda: all(subscriber.ids(name).keys() == {"mortal", "plain"} for name in rules))
    eventually(lambda: subscriber.ids("keeping-dead").keys() == {"mortal", "plain"})
    eventually(lambda: subscriber.ids("patient-dead").keys() == {"mortal"})
    time.sleep(LIFE_S)  # now none is under way any more
    subscriber.deliveries.clear()
    subscriber.answers.clear()
    eventually(lambda: subscriber.ids("patient") == {"plain": 1})
    assert {sent.path for sent in subscriber.deliveries} == {"/patient"}
    url = server.objects_url("triggers", "default")

    def said(name: str) -> str:
        return str(server.call("GET", f"{url}/{name}/why?id=mortal")["message"])

    assert "too late" in eventually(lambda: (words := said("dropping")) and "has ended" in words and words)
    assert "dead letter" in eventually(lambda: (words := said("keeping")) and "has ended" in words and words)
    pulled = ask(server, "pull", {"consumer": "a", "wait": 20}, name="late")
    assert [one["event"]["id"] for one in pulled["events"]] == ["plain"]
    for name in rules:
        server.delete("triggers", "default", name)
    server.delete("subscriptions", "default", "late")
