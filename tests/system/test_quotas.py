"""A namespace's quotas at a real server: objects, publishing over HTTP and gRPC, changes, usage."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from headgate.testing.server import ApiError, Server
from headgate_api.event.model import Event
from headgate_client.sync import Client
from tests.support import eventually
from tests.system.publishing import Publisher

pytestmark = pytest.mark.system

SECONDS_MAX = 60.0
NAMESPACE = "quota-a"
TRIGGERS = "count/triggers.eventing.knative.dev"
EVENTS = "headgate.dev/publish-events-per-second"


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(f"{name} ")]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


def test_a_namespace_keeps_to_its_quota_and_others_do_not_notice(server: Server) -> None:
    for namespace in (NAMESPACE, "quota-b"):
        server.create("brokers", namespace, "orders", {})
        server.wait_object_ready("brokers", namespace, "orders")
    url = server.objects_url("resourcequotas", NAMESPACE)
    server.create("resourcequotas", NAMESPACE, "limits", {"hard": {TRIGGERS: 1, EVENTS: 0}})
    mine, others = Publisher(server, f"{NAMESPACE}/orders"), Publisher(server, "quota-b/orders")
    assert [mine.publish("1", "t"), others.publish("1", "t")] == [429, 202]

    spec = {"broker": "orders", "subscriber": {"uri": "http://127.0.0.1:9/"}}
    server.create("triggers", NAMESPACE, "first", spec)
    with pytest.raises(ApiError, match='"second" is forbidden: exceeded quota: limits, requested: ') as caught:
        server.create("triggers", NAMESPACE, "second", spec)
    assert caught.value.status == 403
    assert caught.value.body["details"] == {
        "name": "second",
        "group": "eventing.knative.dev",
        "kind": "triggers",
    }
    eventually(
        lambda: server.get("resourcequotas", NAMESPACE, "limits").get("status", {}).get("used") == {TRIGGERS: "1"}
    )

    # What a producer cannot publish now it publishes once the quota is wider: nothing is lost, nothing restarts.
    with Client(server.grpc, patience_s=SECONDS_MAX) as client:
        with client.producer(f"{NAMESPACE}/orders", name="patient") as producer:
            producer.send([Event("1.0", str(number), "/grpc", "t") for number in range(5)])
            found = server.get("resourcequotas", NAMESPACE, "limits")
            found["spec"]["hard"][EVENTS] = "1k"
            server.call("PUT", f"{url}/limits", found)
            assert mine.publish("2", "t") == 202, "a change counts as soon as it is answered"
            producer.flush()
        with client.read(f"{NAMESPACE}/orders", follow=False) as reader:
            stored = {(one.event.source, one.event.id) for one in reader}
    assert stored == {("/test", "2"), *(("/grpc", str(number)) for number in range(5))}
    eventually(lambda: metric(server, f'headgate_quota_events_total{{namespace="{NAMESPACE}"}}') == 6)
    assert metric(server, f'headgate_quota_refused_total{{namespace="{NAMESPACE}"}}') >= 2
    for one in ("triggers/first", "resourcequotas/limits", "brokers/orders"):
        kind, name = one.split("/")
        server.delete(kind, NAMESPACE, name)
    server.delete("brokers", "quota-b", "orders")


def test_a_broker_shows_nobody_what_is_older_than_its_retention(server: Server) -> None:
    server.create("brokers", NAMESPACE, "short", {})
    server.wait_object_ready("brokers", NAMESPACE, "short")
    assert Publisher(server, f"{NAMESPACE}/short").publish("old", "t") == 202
    url = f"{server.objects_url('brokers', NAMESPACE)}/short"

    def keep(retention: str) -> None:
        found = server.call("GET", url)
        found["spec"] = {"log": {"retention": retention}}
        server.call("PUT", url, found)

    def read() -> list[str]:
        with client.read(f"{NAMESPACE}/short", follow=False) as reader:
            return [one.event.id for one in reader]

    def is_traced() -> bool:
        return "trace" in server.call("GET", f"{url}/trace?id=old")

    with Client(server.grpc) as client:
        assert read() == ["old"]
        assert is_traced()
        keep("PT1S")
        eventually(lambda: not read() and not is_traced())
        keep("PT1H")
        eventually(lambda: read() == ["old"] and is_traced())
    server.delete("brokers", NAMESPACE, "short")


def test_a_namespace_has_so_many_readers_at_work(server: Server) -> None:
    server.create("brokers", NAMESPACE, "read", {})
    server.wait_object_ready("brokers", NAMESPACE, "read")
    assert Publisher(server, f"{NAMESPACE}/read").publish("1", "t") == 202
    server.create("resourcequotas", NAMESPACE, "readers", {"hard": {"headgate.dev/readers": 1}})

    def status() -> int:
        try:
            with urllib.request.urlopen(f"{server.url}/{NAMESPACE}/read/events", timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    with Client(server.grpc) as client:
        with client.read(f"{NAMESPACE}/read") as reader:
            assert next(iter(reader)).event.id == "1"
            eventually(lambda: status() == 429)
        eventually(lambda: status() == 200)
        server.delete("resourcequotas", NAMESPACE, "readers")
    server.delete("brokers", NAMESPACE, "read")


@pytest.mark.slow
def test_what_processes_hold_is_limited_and_shown(server: Server) -> None:
    namespace = "quota-c"
    stored, consumers, dead = (f"headgate.dev/{name}" for name in ("stored-bytes", "consumers", "dead-letters"))
    server.create("brokers", namespace, "orders", {})
    server.wait_object_ready("brokers", namespace, "orders")
    hard = {stored: "4k", consumers: 1, dead: 1}
    server.create("resourcequotas", namespace, "limits", {"hard": hard})
    mine = Publisher(server, f"{namespace}/orders")

    def used() -> dict[str, int]:
        found = server.get("resourcequotas", namespace, "limits").get("status", {}).get("used", {})
        return {name: int(value) for name, value in found.items()}

    def widen(**wider: str) -> None:
        found = server.get("resourcequotas", namespace, "limits")
        found["spec"]["hard"] |= {f"headgate.dev/{name.replace('_', '-')}": value for name, value in wider.items()}
        server.call("PUT", f"{server.objects_url('resourcequotas', namespace)}/limits", found)

    answers = [mine.publish(str(number), "t") for number in range(100)]
    assert answers.count(202) > 1
    assert answers[-1] == 429
    eventually(lambda: used().get(stored, 0) >= 4_000)
    eventually(lambda: metric(server, f'headgate_quota_stored_bytes{{namespace="{namespace}"}}') >= 4_000)
    widen(stored_bytes="1M")
    assert mine.publish("wider", "t") == 202

    server.create("subscriptions", namespace, "desk", {"broker": "orders", "type": "shared"})
    server.wait_object_ready("subscriptions", namespace, "desk")
    pull = f"{server.objects_url('subscriptions', namespace)}/desk/pull"
    left = threading.Event()

    def consume() -> None:
        """Is the one consumer, but between its pulls: then the other one may get in before it."""
        while not left.is_set():
            with suppress(ApiError):
                server.call("POST", pull, {"consumer": "a", "wait": 2})

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(consume)

        def is_refused() -> bool:
            try:
                server.call("POST", pull, {"consumer": "b"})
            except ApiError as error:
                return error.status == 429 and f"{consumers} is limited to 1" in error.message
            return False

        try:
            eventually(is_refused)
            eventually(lambda: used().get(consumers) == 1)
        finally:
            left.set()
        first.result()
    assert server.call("POST", pull, {"consumer": "b"}), "there is room again"

    delivery = {"retry": 0, "deadLetterSink": {"uri": "http://127.0.0.1:9/"}}
    spec = {"broker": "orders", "subscriber": {"uri": "http://127.0.0.1:9/"}, "delivery": delivery}
    server.create("triggers", namespace, "failing", spec)
    server.wait_trigger_ready(namespace, "failing")
    with Client(server.grpc) as client:  # together: their attempts end together, too
        client.publish(f"{namespace}/orders", [Event("1.0", f"dead-{number}", "/test", "t") for number in range(3)])
    eventually(lambda: metric(server, "headgate_quota_dead_letters_delayed_total") >= 2)
    eventually(lambda: used().get(dead) == 1)
    for one in ("triggers/failing", "subscriptions/desk", "resourcequotas/limits", "brokers/orders"):
        kind, name = one.split("/")
        server.delete(kind, namespace, name)
