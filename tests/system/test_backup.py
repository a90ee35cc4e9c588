"""A backup of a server under load is a whole server: killed, deleted, restored, it has everything, and goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from headgate.testing.server import Server
from headgate_client.sync import Client
from tests.support import eventually
from tests.system.publishing import SECONDS_MAX, Publisher
from tests.system.secured import key_line
from tests.system.subscriber import Delivery, Subscriber
from tests.system.test_authenticated_delivery import put, reference
from tests.system.test_subscriptions import ask, ids

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

HEADGATE = Path(sys.executable).with_name("headgate")
FIRST = 150
"""Events that are stored, and known by what became of them, before the backup."""


def headgate(*arguments: object) -> str:
    done = subprocess.run([str(HEADGATE), *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Load:
    """Events that are published until `stop` is called; `accepted` were answered 202, in order."""

    server: Server
    accepted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        publisher = Publisher(self.server)
        while not self._ends.is_set():
            name = f"e{len(self.accepted)}"
            assert publisher.publish(name, "order", {"n": len(self.accepted)}) == 202
            self.accepted.append(name)
            time.sleep(0.02)  # some tens a second: the test is about a moment, not about speed

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()


def authorized(delivery: Delivery) -> tuple[int, bytes]:
    return (202 if delivery.headers.get("authorization") == "Bearer sealed-token" else 401), b""


@pytest.fixture
def subscriber() -> Iterator[Subscriber]:
    with Subscriber() as running:
        running.answers = {"bad": (400, b"no"), "sink": (400, b"no"), "crm": authorized}
        yield running


def objects(server: Server, subscriber: Subscriber) -> None:
    """A trigger that takes everything, one whose events die, one that needs a Secret, a subscription."""
    put(server, "crm", token="sealed-token")
    for name, delivery in (
        ("good", {}),
        ("bad", {"retry": 0, "deadLetterSink": {"uri": subscriber.url("sink")}}),
        ("crm", {"auth": {"bearer": reference("crm")}}),
    ):
        spec = {"broker": "default", "subscriber": {"uri": subscriber.url(name)}, "delivery": delivery}
        server.create("triggers", "default", name, spec)
    server.create(
        "subscriptions",
        "default",
        "jobs",
        {"broker": "default", "type": "shared", "filter": {"attributes": {"type": "order"}}},
    )
    for name in ("good", "bad", "crm"):
        server.wait_trigger_ready("default", name, seconds=SECONDS_MAX)
    server.wait_object_ready("subscriptions", "default", "jobs", seconds=SECONDS_MAX)


def dead(server: Server) -> set[str]:
    """Events that were given up, with all pages."""
    found: set[str] = set()
    url = f"{server.url}/apis/headgate.dev/v1/namespaces/default/deadletters?limit=1000"
    place = ""
    while True:
        page = server.call("GET", url + place)
        found |= {one["eventId"] for one in page["items"]}
        if "next" not in page:
            return found
        place = "&" + urlencode({"after": page["next"], "ceiling": page["ceiling"]})


def stored(server: Server) -> list[str]:
    with Client(server.grpc) as client, client.read("default", start="earliest", follow=False) as reader:
        return [one.event.id for one in reader]


@pytest.mark.slow
def test_a_server_is_restored_from_a_backup_that_was_taken_under_load(tmp_path: Path, subscriber: Subscriber) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line("k1", 0))
    data, backup = tmp_path / "data", tmp_path / "backup.tar"
    arguments = ("--secrets-key-file", str(keys), "--dispatchers", "2")
    server = Server(data, log=tmp_path / "log", arguments=arguments)
    try:
        server.start()
        objects(server, subscriber)
        load = Load(server)
        try:
            eventually(lambda: len(load.accepted) >= FIRST, lambda: len(load.accepted))
            first = set(load.accepted[:FIRST])
            eventually(lambda: first <= dead(server), lambda: len(dead(server)))
            pulled = ask(server, "pull", {"consumer": "a", "max": 50, "wait": 20})
            acknowledged = set(ids(pulled)[:30])
            ask(server, "ack", {"ids": [one["ackId"] for one in pulled["events"][:30]]})
            generations = {
                one["metadata"]["name"]: one["metadata"]["uid"] for one in server.list("triggers", "default")
            }
            before = list(load.accepted)
            headgate("backup", "create", backup, "--data", data)
            assert len(load.accepted) > len(before), "the server took events meanwhile"
        finally:
            load.stop()
        server.kill()
        eventually(lambda: gone(data), lambda: list(data.rglob("*")))
        assert "whole: " in headgate("backup", "verify", backup)
        assert b"sealed-token" not in backup.read_bytes()

        subscriber.deliveries.clear()
        headgate("restore", backup, "--data", data)
        headgate("log", "verify", data / "log")
        server.start()
        found = stored(server)
        assert len(found) == len(set(found)), "nothing is stored twice"
        assert set(before) <= set(found)
        assert {
            one["metadata"]["name"]: one["metadata"]["uid"] for one in server.list("triggers", "default")
        } == generations
        assert first <= dead(server), "dead letters are kept"

        # What had ended before may come again; what had not must come.
        assert Publisher(server).publish("after", "order", {"n": 0}) == 202
        delivered = lambda name: subscriber.ids(name).keys()  # noqa: E731
        eventually(lambda: "after" in delivered("good"), lambda: len(subscriber.deliveries))
        eventually(lambda: "after" in delivered("crm"), lambda: len(subscriber.deliveries))
        eventually(lambda: set(found) | {"after"} <= dead(server), lambda: len(set(found) - dead(server)))
        rest = pull_all(server, set(found) - acknowledged)
        assert not acknowledged & rest, "what was acknowledged is not handed out again"
    finally:
        server.kill()


def gone(data: Path) -> bool:
    """Deletes a directory, into which processes that are being killed may still write."""
    shutil.rmtree(data, ignore_errors=True)
    return not data.exists()


def pull_all(server: Server, wanted: set[str]) -> set[str]:
    """What a consumer gets until it has all that is wanted."""
    ask(server, "leave", {"consumer": "a"})
    got: set[str] = set()
    ends = time.monotonic() + SECONDS_MAX
    while not wanted <= got:
        assert time.monotonic() < ends, (len(wanted), len(got), sorted(wanted - got)[:5])
        page: dict[str, Any] = ask(server, "pull", {"consumer": "b", "max": 500, "wait": 5})
        got |= set(ids(page))
        if page["events"]:
            ask(server, "ack", {"ids": [one["ackId"] for one in page["events"]]})
    return got
