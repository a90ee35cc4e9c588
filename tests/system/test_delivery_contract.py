"""The contract's lines on delivery, each on a real server with a real subscriber."""

from __future__ import annotations

import base64
import itertools
import json
import time
import urllib.request
from typing import Any

import pytest

from headgate.testing.server import Server, condition
from headgate_api import limits
from tests.commands import told
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Delivery, Subscriber

pytestmark = pytest.mark.system

_names = itertools.count()
FAST = {"backoffDelay": "PT0.02S", "backoffPolicy": "linear"}
REPLY = (("ce-specversion", "1.0"), ("ce-id", "r1"), ("ce-source", "/reply"), ("ce-type", "reply"))


@pytest.fixture
def broker(server: Server) -> str:
    """A broker of the test's own."""
    name = f"contract-{next(_names)}"
    server.create("brokers", "default", name, {})
    return name


def trigger(server: Server, broker: str, name: str, url: str, *, wait: bool = True, **spec: Any) -> str:
    """A trigger; of several, only the last one needs to be waited for: their filters come into force together."""
    full = f"{broker}-{name}"
    server.create("triggers", "default", full, {"broker": broker, "subscriber": {"uri": url}, **spec})
    if wait:
        server.wait_trigger_ready("default", full)
    return full


def publish(server: Server, broker: str, event_id: str, type_: str, data: Any = None, **extensions: str) -> None:
    assert Publisher(server, f"default/{broker}").publish(event_id, type_, data, **extensions) == 202


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def cli(server: Server, *arguments: str) -> Any:
    return json.loads(told("deadletter", *arguments, "--server", server.url))


# --- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "retried"), [((404, 408, 409, 429, 500, 503, 599), True), ((301, 400, 401, 403, 413, 422), False)]
)
def test_answers_are_tried_again_or_not(
    server: Server, subscriber: Subscriber, broker: str, answers: tuple[int, ...], retried: bool
) -> None:
    """D08, R08."""
    for status in answers:
        subscriber.answers[f"s{status}"] = (status, b"")
        rules = FAST | {"retry": 2}
        trigger(server, broker, f"s{status}", subscriber.url(f"s{status}"), wait=status == answers[-1], delivery=rules)
    publish(server, broker, "e", "t")
    eventually(lambda: all(len(subscriber.at(f"s{status}")) >= (3 if retried else 1) for status in answers))
    time.sleep(0.3)
    assert [len(subscriber.at(f"s{status}")) for status in answers] == [3 if retried else 1] * len(answers)


def test_retry_after_and_the_brokers_rules(server: Server, subscriber: Subscriber) -> None:
    """C20: a trigger's rules replace the broker's as a whole."""
    server.create("brokers", "default", "ruled", {"delivery": FAST | {"retry": 0}})
    times: dict[str, list[float]] = {"own": [], "brokers": []}

    def busy(delivery: Delivery) -> tuple[Any, ...]:
        times[delivery.path.lstrip("/")].append(time.monotonic())
        return 429, b"", ("retry-after", "60")

    subscriber.answers |= {"own": busy, "brokers": busy}
    rules = FAST | {"retry": 1, "retryAfterMax": "PT0.5S"}
    trigger(server, "ruled", "own", subscriber.url("own"), wait=False, delivery=rules)
    trigger(server, "ruled", "brokers", subscriber.url("brokers"))
    publish(server, "ruled", "e", "t")
    eventually(lambda: len(times["own"]) == 2)
    assert 0.5 <= times["own"][1] - times["own"][0] < 60
    eventually(lambda: len(times["brokers"]) >= 1)
    assert len(times["brokers"]) == 1


def test_an_event_with_a_map_is_delivered_structured(server: Server, subscriber: Subscriber, broker: str) -> None:
    """D13, D14: CloudEvents 0.3 has extensions that are maps, which no header can hold."""
    filters: dict[str, Any] = {
        "cel": {"filter": {"cel": "ce.github.repository == 'x' && !has(ce.github.fork)"}},
        "attributes": {"filter": {"attributes": {"github.repository": "x"}}},
        "index": {"filters": [{"cel": 'ce["github.repository"].startsWith("x")'}]},
        "not": {"filters": [{"not": {"exact": {"github.repository": "x"}}}]},
    }
    for name, spec in filters.items():
        trigger(server, broker, name, subscriber.url(name), wait=name == "not", **spec)
    sent = [
        {"specversion": "0.3", "id": str(number), "source": "/s", "type": "t", **extensions, "data": {"n": 1}}
        for number, extensions in enumerate(
            [{"github": {"repository": "x", "labels": {"a.b/c": "é", "n": 5}}}, {"github": "x"}, {}]
        )
    ]
    for event in sent:
        headers = {"Content-Type": "application/cloudevents+json"}
        url = f"{server.url}/default/{broker}"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(event).encode(), headers)) as answer:
            assert answer.status == 202
    eventually(lambda: len(subscriber.at("not")) == 2)
    eventually(lambda: all(len(subscriber.at(name)) == 1 for name in ("cel", "attributes", "index")))
    for name in ("cel", "attributes", "index"):
        (delivery,) = subscriber.at(name)
        assert delivery.headers["content-type"] == "application/cloudevents+json"
        assert json.loads(delivery.body) == sent[0]
        assert delivery.headers["prefer"] == "reply"
    assert subscriber.ids("not") == {"1": 1, "2": 1}


# --- replies -------------------------------------------------------------------------------------------


def test_a_reply_comes_to_every_trigger_its_own_too(server: Server, subscriber: Subscriber, broker: str) -> None:
    """R05, D11, D13, D21: by the same way as any event, version and data as they are."""
    body = b'{"specversion":"0.3","id":"r1","source":"/reply","type":"reply","data":{"a": 1.50}}'

    def answer(delivery: Delivery) -> tuple[Any, ...]:
        if delivery.headers.get("ce-type") != "order":
            return 204, b""
        return 200, body, ("content-type", "application/cloudevents+json")

    subscriber.answers["replier"] = answer
    trigger(server, broker, "replier", subscriber.url("replier"), wait=False)
    trigger(server, broker, "other", subscriber.url("other"), filter={"attributes": {"type": "reply"}})
    publish(server, broker, "o1", "order")
    eventually(lambda: subscriber.ids("other") == {"r1": 1} and subscriber.ids("replier") == {"o1": 1, "r1": 1})
    (reply,) = subscriber.at("other")
    assert reply.headers["ce-specversion"] == "0.3"
    assert reply.body == b'{"a": 1.50}'
    assert reply.headers["headgate-hops"] == "2"
    assert subscriber.at("replier")[0].headers["prefer"] == "reply"


def test_a_reply_of_several_events(server: Server, subscriber: Subscriber, broker: str) -> None:
    """Each goes the way of any event. With one that is no event none is stored, and the subscriber is asked again."""
    events = [{"specversion": "1.0", "id": f"r{one}", "source": "/reply", "type": "reply"} for one in range(3)]
    batch = ("content-type", "application/cloudevents-batch+json")
    subscriber.answers["several"] = (200, json.dumps(events).encode(), batch)
    subscriber.answers["partly"] = (200, json.dumps([events[0] | {"id": "bad"}, {"id": "no event"}]).encode(), batch)
    only = {"filter": {"attributes": {"type": "order"}}, "delivery": FAST | {"retry": 1}}
    for name in ("several", "partly"):
        trigger(server, broker, name, subscriber.url(name), wait=False, **only)
    trigger(server, broker, "replies", subscriber.url("replies"), filter={"attributes": {"type": "reply"}})
    publish(server, broker, "o1", "order")
    eventually(lambda: subscriber.ids("replies") == {"r0": 1, "r1": 1, "r2": 1} and len(subscriber.at("partly")) == 2)
    assert {one.headers["headgate-hops"] for one in subscriber.at("replies")} == {"2"}
    assert (len(subscriber.at("several")), subscriber.ids("replies").get("bad")) == (1, None)


def test_no_reply_and_malformed_replies(server: Server, subscriber: Subscriber, broker: str) -> None:
    """D12: a 202 is never a reply. D17, D18: a malformed reply is a failed delivery."""
    subscriber.answers["taken"] = (202, b"x", *REPLY)
    subscriber.answers["plain"] = (200, b"ok", ("content-type", "text/plain"))
    subscriber.answers["malformed"] = (200, b"x", *REPLY[1:])
    only = {"filter": {"attributes": {"type": "order"}}, "delivery": FAST | {"retry": 2}}
    for name in ("taken", "plain", "malformed"):
        trigger(server, broker, name, subscriber.url(name), wait=False, **only)
    trigger(server, broker, "replies", subscriber.url("replies"), filter={"attributes": {"type": "reply"}})
    publish(server, broker, "o1", "order")
    eventually(lambda: len(subscriber.at("malformed")) == 3)
    time.sleep(0.5)
    assert len(subscriber.at("malformed")) == 3
    assert (len(subscriber.at("taken")), len(subscriber.at("plain"))) == (1, 1)
    assert subscriber.at("replies") == []


def test_a_loop_of_replies_ends_and_is_counted(server: Server, subscriber: Subscriber, broker: str) -> None:
    """R07: whatever the reply says of itself."""
    numbers = itertools.count()

    def answer(_: Delivery) -> tuple[Any, ...]:
        return 200, b"", *REPLY[:1], ("ce-id", f"loop{next(numbers)}"), *REPLY[2:], ("headgate-hops", "0")

    subscriber.answers["loop"] = answer
    looped = metric(server, 'headgate_replies_total{result="looped"}')
    trigger(server, broker, "loop", subscriber.url("loop"))
    publish(server, broker, "o1", "order")
    eventually(lambda: len(subscriber.at("loop")) == limits.HOPS_MAX + 1)
    time.sleep(1.5)
    assert len(subscriber.at("loop")) == limits.HOPS_MAX + 1
    eventually(lambda: metric(server, 'headgate_replies_total{result="looped"}') > looped)
    assert metric(server, 'headgate_replies_total{result="looped"}') == looped + 1


def test_a_tree_of_replies_ends_and_leaves_others_alone(server: Server, subscriber: Subscriber, broker: str) -> None:
    """Three triggers that answer whatever they get: 3 ** 32 events within the hops of one."""
    numbers = itertools.count()
    roots: set[str] = set()

    def answer(delivery: Delivery) -> tuple[Any, ...]:
        roots.add(delivery.headers["headgate-root"])
        return 200, b"", *REPLY[:1], ("ce-id", f"tree{next(numbers)}"), *REPLY[2:], ("headgate-root", "another")

    names = ("tree1", "tree2", "tree3")
    looped = metric(server, 'headgate_replies_total{result="looped"}')
    for name in names:
        subscriber.answers[name] = answer
        trigger(server, broker, name, subscriber.url(name))
    publish(server, broker, "o1", "order")
    events = 1 + limits.DESCENDANTS_MAX
    refused = len(names) * events - limits.DESCENDANTS_MAX
    eventually(lambda: metric(server, 'headgate_replies_total{result="looped"}') >= looped + refused)
    assert [len({one.id for one in subscriber.at(name)}) for name in names] == [events] * 3
    assert len(roots) == 1
    for name in names:
        subscriber.answers[name] = lambda _: (202, b"")
    publish(server, broker, "o2", "order")
    eventually(lambda: all(any(one.id == "o2" for one in subscriber.at(name)) for name in names))


# --- dead letters --------------------------------------------------------------------------------------


def test_dead_letters_say_what_went_wrong(server: Server, subscriber: Subscriber, broker: str) -> None:
    """R09, C11."""
    bodies = {size: b"<!DOCTYPE html>\r\n"[:size] + b"\x80" * (size - 17) for size in (0, 767, 768, 1_024, 1 << 20)}
    for size, body in bodies.items():
        sink = {"deadLetterSink": {"uri": subscriber.url(f"dead{size}")}}
        subscriber.answers[f"bad{size}"] = (404, body)
        rules = FAST | {"retry": 1} | sink
        trigger(server, broker, str(size), subscriber.url(f"bad{size}"), wait=False, delivery=rules)
    for size in bodies:
        name = f"{broker}-{size}"
        server.wait_trigger_ready("default", name)
        uri = subscriber.url(f"dead{size}")
        assert server.get("triggers", "default", name)["status"]["deadLetterSinkUri"] == uri
    publish(server, broker, "e1", "t", {"n": 1}, tenant="a")
    eventually(lambda: all(len(subscriber.at(f"dead{size}")) == 1 for size in bodies))
    for size, body in bodies.items():
        (dead,) = subscriber.at(f"dead{size}")
        assert dead.body == subscriber.at(f"bad{size}")[0].body
        assert dead.headers["ce-tenant"] == "a"
        assert dead.headers["ce-knativeerrordest"] == subscriber.url(f"bad{size}")
        assert dead.headers["ce-knativeerrorcode"] == "404"
        text = dead.headers.get("ce-knativeerrordata", "")
        assert len(text) == min(-(-size // 3) * 4, 1_024)
        assert base64.b64decode(text) == body[:768]


def test_dead_letters_to_a_broker(server: Server, subscriber: Subscriber, broker: str) -> None:
    """C03, C20: the broker's sink is another broker; its triggers can filter by what went wrong."""
    graves = f"{broker}-graves"
    server.create("brokers", "default", graves, {})
    reference = {"ref": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": graves}}
    dying = f"{broker}-dying"
    made = {"delivery": FAST | {"retry": 0, "deadLetterSink": reference}}
    server.create("brokers", "default", dying, made)
    eventually(lambda: condition(server.get("brokers", "default", dying), "Ready").get("status") == "True")
    uri = f"{server.url}/default/{graves}"
    assert server.get("brokers", "default", dying)["status"]["deadLetterSinkUri"] == uri
    subscriber.answers["bad"] = (400, b"no")
    name = trigger(server, dying, "bad", subscriber.url("bad"), wait=False)
    trigger(server, graves, "seen", subscriber.url("seen"), filter={"expression": 'ce.knativeerrorcode == "400"'})
    assert server.get("triggers", "default", name)["status"]["deadLetterSinkUri"] == uri
    publish(server, dying, "e1", "t")
    eventually(lambda: subscriber.ids("seen") == {"e1": 1})
    assert subscriber.at("seen")[0].headers["headgate-hops"] == "2"


def test_what_no_sink_takes_is_kept_listed_redriven_and_discarded(
    server: Server, subscriber: Subscriber, broker: str
) -> None:
    """R09, D19: nothing is dropped silently."""
    subscriber.answers |= {"bad": (400, b"no"), "dead": (400, b"nor I")}
    rules = FAST | {"retry": 1, "deadLetterSink": {"uri": subscriber.url("dead")}}
    name = trigger(server, broker, "bad", subscriber.url("bad"), delivery=rules)
    for number in range(6):
        publish(server, broker, f"e{number}", "even" if number % 2 == 0 else "odd", {"n": number})
    eventually(lambda: len(cli(server, "list", "--trigger", name, "--state", "kept", "--json")) == 6)
    found = cli(server, "list", "--trigger", name, "--reason", "400", "--filter", "data.n >= 2", "--json")
    # They are listed as they died, which for an unordered trigger is not as they came.
    found.sort(key=lambda item: str(item["eventId"]))
    assert [item["eventId"] for item in found] == ["e2", "e3", "e4", "e5"]
    assert cli(server, "list", "--trigger", name, "--reason", "timeout", "--json") == []
    assert cli(server, "list", "--trigger", name, "--from", "2999-01-01T00:00:00Z", "--json") == []
    shown = cli(server, "show", str(found[0]["id"]))
    assert (shown["event"]["data"], shown["answer"]) == ({"n": 2}, "no")
    subscriber.answers["bad"] = (202, b"")
    subscriber.deliveries.clear()
    redriven = cli(server, "redrive", "--trigger", name, "--filter", 'ce.type == "odd"', "--rate", "20", "--json")
    assert redriven == {"count": 3, "gone": 0}
    eventually(lambda: subscriber.ids("bad") == {"e1": 1, "e3": 1, "e5": 1})
    assert cli(server, "discard", str(found[0]["id"]), "--yes", "--json") == {"count": 1}
    eventually(lambda: len(cli(server, "list", "--trigger", name, "--json")) == 2)
    assert cli(server, "discard", "--trigger", name, "--yes", "--json") == {"count": 2}
    assert cli(server, "list", "--trigger", name, "--json") == []


def test_events_that_the_filter_cannot_judge_are_dead_letters_where_asked(
    server: Server, subscriber: Subscriber, broker: str
) -> None:
    """Also those that lack a value which the usual plan looks up."""
    sink = {"deadLetterSink": {"uri": subscriber.url("dead")}, "onFilterError": "deadLetter"}
    old = {"expression": 'ce.type == "person" && data.age > 17 && data.country == "fi"'}
    trigger(server, broker, "old", subscriber.url("old"), filter=old, delivery=FAST | sink)
    for event_id, data in (("e1", {}), ("e2", {"age": 20}), ("e3", {"age": "x", "country": "fi"})):
        publish(server, broker, event_id, "person", data)
    publish(server, broker, "e4", "person", {"age": 20, "country": "fi"})
    publish(server, broker, "e5", "person", {"age": 20, "country": "se"})
    publish(server, broker, "e6", "robot", {})
    eventually(lambda: subscriber.ids("dead") == {"e1": 1, "e2": 1, "e3": 1} and subscriber.ids("old") == {"e4": 1})
    dead = subscriber.at("dead")[0]
    assert dead.headers["ce-knativeerrorcode"] == "422"
    assert base64.b64decode(dead.headers["ce-knativeerrordata"])


def test_order_per_key_and_batches(server: Server, subscriber: Subscriber, broker: str) -> None:
    subscriber.answers["ordered"] = lambda delivery: (
        503 if delivery.id == "e1" and subscriber.ids("ordered")["e1"] < 4 else 202,
        b"",
    )
    ordered = FAST | {"order": "ordered", "retry": 9}
    trigger(server, broker, "ordered", subscriber.url("ordered"), wait=False, delivery=ordered)
    batch = {"format": "batch", "batchSize": 10, "batchWait": "PT2S"}  # long beside an event's way on a busy machine
    trigger(server, broker, "batched", subscriber.url("batched"), delivery=FAST | batch)
    for number in range(40):
        publish(server, broker, f"e{number}", "t", {"n": number}, partitionkey=f"k{number % 4}")
    eventually(lambda: len(subscriber.ids("ordered")) == 40)
    for key in range(4):
        ids = [int(d.id[1:]) for d in subscriber.at("ordered") if d.headers["ce-partitionkey"] == f"k{key}"]
        assert ids == sorted(ids)
    eventually(lambda: sum(len(json.loads(d.body)) for d in subscriber.at("batched")) == 40)
    assert all(len(json.loads(d.body)) <= 10 for d in subscriber.at("batched"))
    assert len(subscriber.at("batched")) < 20
    assert subscriber.at("batched")[0].headers["content-type"] == "application/cloudevents-batch+json"
