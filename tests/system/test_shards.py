"""Two fronts and two dispatchers on a real server: whoever asks sees one server, and each target has one dispatcher."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from headgate.testing.server import START_S_MAX, Server, object_of, parts_of
from headgate_client.sync import Client
from tests.support import eventually
from tests.system.keeping import Keeping
from tests.system.kills import ARGUMENTS, DISPATCHERS, PARTS, owners
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

SUBSCRIPTIONS = [f"s{number}" for number in range(4)]
DEAD = [f"dead{number}" for number in range(4)]
APPLIED = 2_000
APPLIERS = 4
POST_PAUSE_S = 0.05
FRONT_SHARE_MAX = 0.8
"""What an apply may cost the fronts, which pass it on: a share of what it costs the process of the objects."""
OWN = "/apis/headgate.dev/v1/namespaces/default"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("shards")
    with Server(folder / "data", log=folder / "server.log", arguments=ARGUMENTS) as running:
        yield running


def page(server: Server, path: str) -> str:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_every_front_knows_a_broker_as_soon_as_its_write_is_answered(server: Server) -> None:
    for number in range(10):
        name = f"at-once-{number}"
        server.create("brokers", "default", name, {})
        for wanted in (202, 404):
            answers = set()
            for one in range(12):  # a connection each: the system gives them to both fronts
                publisher = Publisher(server, f"default/{name}")
                answers.add(publisher.publish(f"{name}-{wanted}-{one}", "t"))
                publisher.close()
            assert answers == {wanted}
            if wanted == 202:
                server.delete("brokers", "default", name)


def test_both_fronts_answer_for_the_whole_server(server: Server) -> None:
    eventually(server.is_ready, "the server is not ready", seconds=START_S_MAX)
    pages = set()
    for _ in range(8):
        pages.add(frozenset(json.loads(page(server, "/readyz"))))
        assert server.list("brokers", "default")
    assert pages == {frozenset({*PARTS, "log"})}


def test_every_subscription_is_pulled_over_both_apis(server: Server) -> None:
    for name in SUBSCRIPTIONS:
        spec = {"broker": "default", "type": "shared", "filter": {"attributes": {"type": "pulled"}}}
        server.create("subscriptions", "default", name, spec)
    for name in SUBSCRIPTIONS:
        server.wait_object_ready("subscriptions", "default", name)
    assert {owners(server)[name] for name in SUBSCRIPTIONS} == set(range(DISPATCHERS)), "both have some"
    publisher = Publisher(server)
    for number in range(20):
        assert publisher.publish(f"p{number}", "pulled", {"n": number}) == 202
    wanted = {f"p{number}" for number in range(20)}
    with Client(server.grpc) as client:
        for name in SUBSCRIPTIONS:
            base = f"{server.url}{OWN}/subscriptions/{name}"
            eventually(lambda base=base: server.call("GET", f"{base}/stats")["backlog"] == 20, "matches are missing")
            pulled = server.call("POST", f"{base}/pull", {"consumer": "a", "max": 10, "wait": 10})["events"]
            ids = [one["ackId"] for one in pulled]
            answer = server.call("POST", f"{base}/ack", {"consumer": "a", "ids": ids})
            assert answer == {"acknowledged": len(ids), "stale": []}
            got = {one["event"]["id"] for one in pulled}
            with client.subscribe(f"default/{name}", consumer="b") as consumer:
                while got != wanted:
                    received = next(iter(consumer))
                    got.add(received.event.id)
                    consumer.ack(received)


def test_dead_letters_replays_and_questions_are_of_all(server: Server, subscriber: Subscriber) -> None:
    keeping = Keeping([server], subscriber, DEAD)
    keeping.create_triggers()
    assert {owners(server)[name] for name in DEAD} == set(range(DISPATCHERS))
    keeping.dead_letters_are_listed_shown_redriven_and_discarded()
    keeping.replays_send_stored_events_again()

    api = f"{server.url}/apis/eventing.knative.dev/v1/namespaces/default"
    assert len(server.call("GET", f"{api}/brokers/default/trace?id=d1")["trace"]["matches"]) == len(DEAD)
    for name in DEAD:
        answer = server.call("GET", f"{api}/triggers/{name}/why?id=d1")
        assert answer["fate"] in ("ended", "dead-letter"), answer
    eventually(lambda: 'headgate_deliveries_total{result="delivered"}' in page(server, "/metrics"), "no metrics")


def test_a_large_apply_delays_no_producer(server: Server) -> None:
    """The fronts pass it on and work on nothing of it; single POSTs are acknowledged all along."""
    applied: list[int] = []
    at_each_post: list[int] = [0]
    threads = [threading.Thread(target=apply, args=(server, first, applied)) for first in range(APPLIERS)]
    publisher, before = Publisher(server), processor_s(server)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert publisher.publish(f"beside-{len(at_each_post)}", "beside") == 202
        at_each_post.append(len(applied))
        time.sleep(POST_PAUSE_S)
    publisher.close()
    spent = {part: seconds - before[part] for part, seconds in processor_s(server).items()}
    fronts = sum(seconds for part, seconds in spent.items() if part.startswith("front-"))
    most = max(later - earlier for earlier, later in pairwise([*at_each_post, APPLIED]))
    print(f"{len(at_each_post)} POSTs, at most {most} triggers between two; seconds: {fronts:.2f} of {spent}")
    assert sorted(applied) == list(range(APPLIED))
    assert most < APPLIED / 10
    assert fronts < FRONT_SHARE_MAX * spent["control"]


def apply(server: Server, first: int, applied: list[int]) -> None:
    """Creates every fourth trigger, each with a filter of its own that takes some time to compile."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    path = server.objects_url("triggers", "default").removeprefix(server.url)
    for number in range(first, APPLIED, APPLIERS):
        terms = " || ".join(f'(data.f{field} > {number} && ce.subject.startsWith("s{number}"))' for field in range(6))
        spec = {"broker": "default", "filter": {"expression": f'ce.type == "bulk" && ({terms})'}}
        item = object_of("triggers", "default", f"bulk-{number}", spec | {"subscriber": {"uri": "http://127.0.0.1:9/"}})
        connection.request("POST", path, json.dumps(item).encode(), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status == 201:
            applied.append(number)
        answer.read()
    connection.close()


def processor_s(server: Server) -> dict[str, float]:
    """Processor time of each part so far, seconds."""
    found = {}
    for part, pid in parts_of(server.pid).items():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        found[part] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
