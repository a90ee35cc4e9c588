"""Events that are to be delivered later, on a real server that is killed meanwhile: none is lost, none comes early."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headgate.testing.server import Server
from tests.commands import told
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Delivery, Subscriber
from tests.system.test_subscriptions import ask

pytestmark = pytest.mark.system

DELAY_S = 8.0
"""Long enough for a kill and a start."""
EVENTS = 40


def at(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()


class Noting(Subscriber):
    """Notes when each event came to each path for the first time."""

    def take(self, delivery: Delivery) -> None:
        self.first.setdefault((delivery.path.strip("/"), delivery.id), time.time())
        super().take(delivery)

    def __post_init__(self) -> None:
        self.first: dict[tuple[str, str], float] = {}
        super().__post_init__()


def pulled_by(server: Server, wait_s: int) -> set[str]:
    """What one pull gets."""
    pulled = ask(server, "pull", {"consumer": "a", "wait": wait_s, "max": 100}, name="pulled")
    return {one["event"]["id"] for one in pulled["events"]}


@pytest.fixture
def noting() -> Iterator[Noting]:
    with Noting() as made:
        yield made


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "data", arguments=("--dispatchers", "2"))
    try:
        made.start()
        yield made
    finally:
        made.kill()


def test_what_waits_survives_a_kill_and_comes_in_time(own_server: Server, noting: Noting) -> None:
    server, subscriber = own_server, noting
    wanted = {"filter": {"cel": 'ce.type == "later"'}}
    rules = {"delayed": {"delay": f"PT{DELAY_S:g}S"}, "plain": {}, "far": {"delay": "P7D"}}
    for name, rule in rules.items():
        spec = {"broker": "default", **wanted, "delivery": rule, "subscriber": {"uri": subscriber.url(name)}}
        server.create("triggers", "default", name, spec)
    server.create("subscriptions", "default", "pulled", {"broker": "default", **wanted})
    for name in rules:
        server.wait_trigger_ready("default", name)
    server.wait_object_ready("subscriptions", "default", "pulled")
    publisher = Publisher(server)
    begun = time.time()
    due = begun + DELAY_S
    for number in range(EVENTS):
        assert publisher.publish(f"w{number}", "later", deliverytime=at(due)) == 202
    assert publisher.publish("now", "later") == 202
    assert publisher.publish("cancelled", "later", deliverytime=at(due)) == 202
    assert publisher.publish("wrong", "later", deliverytime=(datetime.now(UTC) + timedelta(days=8)).isoformat()) == 400
    headgate = {"HEADGATE_SERVER": server.url}
    url = f"{server.url}/apis/headgate.dev/v1/namespaces/default/pending"
    eventually(lambda: server.call("GET", f"{url}/counts")["total"] == 3 * EVENTS + 5)
    eventually(lambda: subscriber.ids("plain") == {"now": 1})
    why = server.call("GET", f"{server.objects_url('triggers', 'default')}/plain/why?id=w0")
    assert why["fate"] == "pending"
    assert at(due)[:19] in why["message"]
    assert "waits until" in told("trace", "w0", **headgate)
    listed = json.loads(told("pending", "list", "--trigger", "plain", "--event", "cancelled", "--json", **headgate))
    assert [one["eventId"] for one in listed] == ["cancelled"]
    done = told("pending", "cancel", "--event", "cancelled", "--yes", **headgate)
    assert done.splitlines()[0] == "3 events are cancelled"
    server.kill()
    server.start()
    early = pulled_by(server, wait_s=0)
    if time.time() < due:  # else the machine was slow
        assert early == {"now"}
    eventually(lambda: len(subscriber.ids("plain")) == EVENTS + 1)
    eventually(lambda: len(subscriber.ids("delayed")) == EVENTS + 1)
    ids = {"now", *(f"w{number}" for number in range(EVENTS))}
    assert subscriber.ids("plain").keys() == subscriber.ids("delayed").keys() == ids
    waited = {key: came for key, came in noting.first.items() if key != ("plain", "now")}
    assert min(waited.values()) >= due
    late_s = max(came for (name, _), came in waited.items() if name == "plain") - due
    print(f"the last one came {late_s:.3f} s after its time")
    assert late_s < 5.0, "it is 1 s on a machine that does nothing else"
    assert eventually(lambda: early.update(pulled_by(server, wait_s=1)) or early >= ids)
    eventually(lambda: server.call("GET", f"{url}/counts")["total"] == EVENTS + 1)
    assert subscriber.ids("far") == {}
    done = told("pending", "cancel", "--trigger", "far", "--yes", **headgate)
    assert done.splitlines()[0] == f"{EVENTS + 1} events are cancelled"
