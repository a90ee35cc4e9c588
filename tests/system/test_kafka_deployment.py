"""A whole server on a real Kafka, every role by `headgate serve`: events come in, are matched, delivered and read.

What a single role does is tested in `tests/backend` and `tests/server`; here nothing is played.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from clusters.kafka import Kafka
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.backend.config import ClusterConfig, SourceConfig, SparkConfig
from headgate.backend.kafka.topics import Admin
from headgate.testing.server import Object, Server, condition, parts_of
from headgate_api.event.model import Event
from headgate_client.sync import Client
from tests.backend.contract import PARTITIONS
from tests.backend.outbox_stream import outbox_config
from tests.commands import told
from tests.support import eventually, times
from tests.system.keeping import EVENTS as EVENTS_REFUSED
from tests.system.keeping import Keeping
from tests.system.publishing import Publisher, broker
from tests.system.subscriber import Subscriber
from tests.system.test_publish_once import is_accepted, post, stored

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.system, pytest.mark.timeout(900)]

WAIT_S_MAX = 180.0
EVENTS = 60
Filters = Mapping[str, tuple[Object, Callable[[int], bool]]]
NUMBERED = '{"type": "numbered", "number": data.n, "data": null}'
FILTERS: Filters = {
    "large": ({"filter": {"expression": "data.n > 20"}, "transform": NUMBERED}, lambda number: number > 20),
    "odd": ({"filter": {"attributes": {"type": "odd"}}}, lambda number: number % 2 == 1),
    "sql": ({"filters": [{"cesql": "type = 'even' AND EXISTS id"}]}, lambda number: number % 2 == 0),
}
"""Triggers: a part of their spec, and which events they want."""
DEFAULT = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "namespace": "default", "name": "default"}
LATER: Filters = {
    "late": ({"filter": {"expression": "data.n >= 90"}}, lambda number: number >= 90),
    "lent": ({"brokerRef": DEFAULT, "filter": {"expression": "data.n >= 95"}}, lambda number: number >= 95),
}
"""The second one is of another namespace, which has its name."""


DEAD = ("dead-a", "dead-b", "dead-c", "dead-d")
"""Triggers whose subscriber refuses everything."""
DROPPED = "dropped"
"""A trigger without a dead-letter sink, whose subscriber refuses everything as well."""


class Deployment:
    """A server with every role and one that delivers, their Kafka, and a subscriber for all triggers."""

    def __init__(self, kafka: Kafka, folder: Path, subscriber: Subscriber) -> None:
        config = outbox_config(kafka.bootstrap, f"e{uuid.uuid4().hex[:8]}.")
        Admin(config).create_missing()
        file = folder / "headgate.yaml"
        spark = SparkConfig(master=f"local[{2 * PARTITIONS}]")
        self.topic, self.repeats = f"{config.topic_prefix}orders", f"{config.topic_prefix}repeats"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for made in admin.create_topics([NewTopic(topic, 2, 1) for topic in (self.topic, self.repeats)]).values():
            made.result()
        source = SourceConfig(name="orders", topics=(self.topic,), broker="default/default", initial="earliest")
        once = SourceConfig(name="repeats", topics=(self.repeats,), broker="default/once", initial="earliest")
        whole = ClusterConfig(kafka=config, spark=spark, sources=(source, once))
        file.write_text(whole.model_dump_json())  # JSON is YAML
        self.kafka = kafka
        self.log = folder / "server.log"
        several = str(times(1, 2))
        arguments = ("--config", str(file), "--fronts", several, "--dispatchers", several)
        self.server = Server(folder / "data", arguments=arguments, log=self.log)
        arguments = ("--config", str(file), "--role", "front,dispatcher")
        self.other = Server(folder / "other", arguments=arguments, log=self.log)
        self.subscriber = subscriber
        self.wanted: dict[str, Callable[[int], bool]] = {}
        self.accepted: list[int] = []

    def create(self, filters: Filters) -> None:
        """Creates triggers; returns when their filters count, which come into force together."""
        places = {name: name if "brokerRef" in spec else "default" for name, (spec, _) in filters.items()}
        for name, (spec, _) in filters.items():
            given: Object = {"subscriber": {"uri": self.subscriber.url(name)}, **spec}
            broker = {} if "brokerRef" in spec else {"broker": "default"}
            self.server.create("triggers", places[name], name, broker | given)
        for name, (_, wants) in filters.items():
            self.server.wait_trigger_ready(places[name], name, seconds=WAIT_S_MAX)
            self.wanted[name] = wants

    def publish(self, numbers: range) -> None:
        publisher = Publisher(self.server)
        for number in numbers:
            kind = "odd" if number % 2 else "even"
            assert publisher.publish(str(number), kind, {"n": number}, partitionkey=f"k{number % 5}") == 202
        publisher.close()
        self.accepted += numbers

    def produce(self, numbers: range) -> None:
        """Writes events to the source's topic, as any program with a client of Kafka does."""
        kinds = {number: "odd" if number % 2 else "even" for number in numbers}
        self._write(self.topic, [(str(number), "/orders", kind, {"n": number}) for number, kind in kinds.items()])
        self.accepted += numbers

    def repeat(self, *ids: str) -> None:
        """Writes events of the broker `once` to the topic of its source, each twice."""
        self._write(self.repeats, [(one, "/s", "t", {}) for one in ids for _ in range(2)])

    def _write(self, topic: str, events: Sequence[tuple[str, str, str, object]]) -> None:
        """Events by id, source, type and data."""
        failures: list[object] = []
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        told = lambda error, _: failures.append(error) if error is not None else None  # noqa: E731
        for *needed, data in events:
            names = ("ce_specversion", "ce_id", "ce_source", "ce_type", "content-type")
            headers: dict[str, str | bytes | None] = dict(
                zip(names, ("1.0", *map(str, needed), "application/json"), strict=True)
            )
            producer.produce(topic, json.dumps(data).encode(), headers=headers, on_delivery=told)
        assert producer.flush(30) == 0
        assert not failures

    def missing(self) -> dict[str, set[int]]:
        """Which events each trigger lacks."""
        lacking = {
            name: set(filter(wants, self.accepted)) - {int(id_) for id_ in self.subscriber.ids(name)}
            for name, wants in self.wanted.items()
        }
        return {name: lacks for name, lacks in lacking.items() if lacks}

    def wait_delivered(self) -> None:
        eventually(lambda: not self.missing(), self.missing, seconds=WAIT_S_MAX)

    def stored(self, expression: str) -> list[int]:
        """The numbers of the stored events that a filter takes, by reading them."""
        asked = f"{self.server.url}/default/default/events?limit=1000&from=earliest&filter={quote(expression)}"
        request = urllib.request.Request(asked, headers={"accept": "application/cloudevents-batch+json"})
        with urllib.request.urlopen(request, timeout=WAIT_S_MAX) as answer:
            return sorted(int(one["id"]) for one in json.loads(answer.read()))


@pytest.fixture
def deployment(kafka: Kafka, tmp_path: Path) -> Iterator[Deployment]:
    with Subscriber() as subscriber:
        made = Deployment(kafka, tmp_path, subscriber)
        try:
            yield made
        finally:
            made.server.kill()
            made.other.kill()
            print(made.log.read_text()[-8_000:])


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_events_go_from_a_producer_to_subscribers_over_kafka(deployment: Deployment, killed: bool) -> None:
    """Also over kill -9 of a server."""
    server, other = deployment.server, deployment.other
    server.start(wait=False)
    other.start()
    server.wait_ready()
    pulling = Pulling(server, other)
    keeping = Keeping([server, other], deployment.subscriber, DEAD)
    create_refused(deployment, keeping)
    deployment.create(FILTERS)
    deployment.publish(range(EVENTS))
    deployment.wait_delivered()
    for name, (_, wants) in FILTERS.items():
        expected = {str(number): 1 for number in range(EVENTS) if wants(number)}
        assert deployment.subscriber.ids(name) == expected, "nothing died: each event comes once"
    for sent in deployment.subscriber.at("large"):
        assert (sent.headers["ce-type"], sent.headers["ce-number"], sent.body) == ("numbered", sent.id, b"")
    assert deployment.stored("data.n < 5") == [0, 1, 2, 3, 4]
    what_is_kept_is_answered_for(deployment, keeping)
    pulling.any_server_answers()
    what_became_of_events_is_told_by_every_server(deployment)
    filters_are_counted_over_stored_events_by_every_server(deployment)
    deliveries_are_counted_by_every_server(deployment)
    repeats_are_known_by_every_server(deployment)
    if killed:
        an_owner_that_stood_still_stores_nothing_again(deployment)
    pulling.consume_in_the_background(expected=len([*pulled(range(2 * EVENTS + 20))]))

    expired = {"expirytime": "2020-01-01T00:00:00Z"}
    # Nobody gets it, as its id is no number.
    assert Publisher(server).publish("too late", "odd", {"n": "none"}, **expired) == 202
    put_off = later_events_wait_with_their_partitions(deployment)
    deployment.create(LATER)  # another generation of filters takes over
    deployment.publish(range(EVENTS, 2 * EVENTS))
    if killed:
        server.kill()
    deployment.produce(range(2 * EVENTS + 10, 2 * EVENTS + 20))  # Kafka is there, no server may be
    if killed:
        server.start()
    deployment.publish(range(2 * EVENTS, 2 * EVENTS + 10))
    deployment.wait_delivered()
    for name, wants in deployment.wanted.items():
        assert all(wants(int(id_)) for id_ in deployment.subscriber.ids(name)), name
    assert deployment.stored("data.n >= 125") == list(range(125, 140))
    pulling.wait_consumed()
    put_off()
    keeping.letters(lambda found: [one["eventId"] for one in found] == ["d9"] * len(DEAD), "dead letters are lost")
    for each in (other, server):
        assert each.stop() == 0, deployment.log.read_text()[-4_000:]  # a part that hangs says where


def later_events_wait_with_their_partitions(deployment: Deployment) -> Callable[[], None]:
    """Some events wait, also over a kill; what is returned looks whether they came, once all else has."""
    server, other, ids = deployment.server, deployment.other, [f"z{number}" for number in range(8)]
    wanted = {"filter": {"expression": 'ce.type == "later"'}}
    rules: dict[str, Object] = {"put-off": {}, "put-off-far": {"delay": "PT1H"}}
    for name, delivery in rules.items():
        subscriber = {"uri": deployment.subscriber.url(name)}
        spec = {"broker": "default", **wanted, "delivery": delivery, "subscriber": subscriber}
        server.create("triggers", "default", name, spec)
    for name in rules:
        server.wait_trigger_ready("default", name, seconds=WAIT_S_MAX)
    due = datetime.now(UTC) + timedelta(seconds=15)
    publisher = Publisher(server)
    for id_ in ids:
        # The others' filters compare a number.
        assert publisher.publish(id_, "later", {"n": -1}, deliverytime=due.isoformat()) == 202
    publisher.close()
    url = "/apis/headgate.dev/v1/namespaces/default/pending"
    for each in (other, server):
        eventually(lambda each=each: each.call("GET", f"{each.url}{url}/counts")["total"] == 16, seconds=WAIT_S_MAX)
        why = each.call("GET", f"{each.objects_url('triggers', 'default')}/put-off-far/why?id=z0")
        assert why["fate"] == "pending", why
    assert deployment.subscriber.ids("put-off") == {}
    assert datetime.now(UTC) < due, "the machine is too slow"

    def look() -> None:
        eventually(lambda: deployment.subscriber.ids("put-off").keys() == {*ids}, seconds=WAIT_S_MAX)
        assert datetime.now(UTC) >= due
        eventually(lambda: other.call("GET", f"{other.url}{url}/counts")["total"] == 8, seconds=WAIT_S_MAX)
        done = told("pending", "cancel", "-t", "put-off-far", "--yes", HEADGATE_SERVER=other.url)
        assert done.splitlines()[0] == "8 events are cancelled"
        assert deployment.subscriber.ids("put-off-far") == {}

    return look


PULLED = 'ce.type != "dead" && data.n % 3 == 0'


def pulled(numbers: range) -> Iterator[str]:
    """The ids of those events that the subscription wants."""
    return (str(number) for number in numbers if number % 3 == 0)


class Pulling:
    """Consumers of a subscription of which at most one of two servers has the owner.

    Args:
        server: Is killed meanwhile.
        other: Is not; consumers that go on are there.
    """

    def __init__(self, server: Server, other: Server) -> None:
        self._server, self._other = server, other
        spec = {"broker": "default", "type": "shared", "filter": {"expression": PULLED}, "transform": NUMBERED}
        server.create("subscriptions", "default", "pulled", spec)  # is ready with the triggers, which are made later
        self._threads = ThreadPoolExecutor(1)
        self._seen: Counter[str] = Counter()
        self._consuming: Future[None] | None = None

    def _ask(self, server: Server, action: str, body: Object | None = None) -> Object:
        method = "GET" if action == "stats" else "POST"
        return server.call(method, f"{server.objects_url('subscriptions', 'default')}/pulled/{action}", body)

    def any_server_answers(self) -> None:
        """Over HTTP and gRPC: what one has handed out the other one does not, and acknowledges."""
        first = self._ask(self._server, "pull", {"consumer": "a", "max": 5, "wait": 20})
        second = self._ask(self._other, "pull", {"consumer": "b", "max": 5, "wait": 20})
        ids = {one["event"]["id"] for pull in (first, second) for one in pull["events"]}
        assert len(ids) == 10
        assert all(one["event"]["number"] == int(one["event"]["id"]) for one in first["events"])
        assert ids < {*pulled(range(EVENTS))}
        for server, pull in ((self._other, first), (self._server, second)):
            done = self._ask(server, "ack", {"ids": [one["ackId"] for one in pull["events"]]})
            assert done == {"acknowledged": 5, "stale": []}
        left = {*pulled(range(EVENTS))} - ids
        for server in (self._server, self._other):
            found = self._ask(server, "analyze", {"filter": {"expression": "data.n >= 30"}})
            assert (found["accepted"], found["complete"]) == (sum(int(id_) >= 30 for id_ in left), True)
            with Client(server.grpc) as client:
                assert client.stats("pulled").acknowledged == 10
                assert client.seek("pulled", first="data.n == 9").epoch
            again = self._ask(server, "pull", {"consumer": "a", "max": 100, "wait": 20})
            assert {one["event"]["id"] for one in again["events"]} == {*pulled(range(9, EVENTS))}
            self._ask(server, "leave", {"consumer": "a"})
            left = {*pulled(range(9, EVENTS))}  # the seek brings back what was acknowledged
        self._ask(self._server, "seek", {"to": "earliest"})

    def consume_in_the_background(self, expected: int) -> None:
        """Consumes over gRPC until so many events have come."""

        def consume() -> None:
            with Client(self._other.grpc) as client, client.subscribe("pulled", consumer="c") as consumer:
                for received in consumer:
                    assert received.event.type == "numbered"
                    self._seen[received.event.id] += 1
                    consumer.ack(received)
                    if len(self._seen) == expected:
                        return

        self._consuming = self._threads.submit(consume)

    def wait_consumed(self) -> None:
        """The consumer has had each event once, whatever died; nothing is left."""
        assert self._consuming is not None
        self._consuming.result(WAIT_S_MAX)
        self._threads.shutdown()
        assert self._seen == dict.fromkeys(pulled(range(2 * EVENTS + 20)), 1)
        eventually(lambda: self._ask(self._server, "stats")["backlog"] == 0, "something is left")


def create_refused(deployment: Deployment, keeping: Keeping) -> None:
    """Triggers whose subscribers refuse everything."""
    subscriber = deployment.subscriber
    subscriber.answers[DROPPED] = (400, b"no")
    spec = {"broker": "default", "filter": {"attributes": {"type": "dead"}}, "delivery": {"retry": 0}}
    deployment.server.create("triggers", "default", DROPPED, spec | {"subscriber": {"uri": subscriber.url(DROPPED)}})
    keeping.create_triggers()


def what_is_kept_is_answered_for(deployment: Deployment, keeping: Keeping) -> None:
    """Dead letters, replays and what was found of targets; at the end one event is dead for each of some triggers."""
    server = deployment.server
    keeping.dead_letters_are_listed_shown_redriven_and_discarded()
    keeping.replays_send_stored_events_again()
    keeping.refuse("d9")
    keeping.letters(lambda found: len(found) == len(DEAD), "dead letters are missing")

    def told() -> str:
        return str(condition(server.get("triggers", "default", DROPPED), "EventsKept").get("message"))

    # Each event once: what owners of a partition found adds up.
    eventually(lambda: told().startswith(f"{EVENTS_REFUSED + 1} events"), "what was found is not in the status")


def what_became_of_events_is_told_by_every_server(deployment: Deployment) -> None:
    """By HTTP and by command: `other` has no control process, and its dispatcher has half of the partitions."""
    for server in (deployment.server, deployment.other):
        fates = {one["trigger"]: one["fate"] for one in asked(server, "why", "7")["triggers"]}
        assert {name: fates[name] for name in FILTERS} == {
            "large": "filter-false",
            "odd": "ended",
            "sql": "filter-false",
        }
        one = asked(server, "why", "7", "--trigger", "odd")
        assert one["fate"] == "ended"
        assert one["event"]["event"]["data"] == {"n": 7}
        dead = asked(server, "why", "d9", "--trigger", DEAD[0])
        assert (dead["fate"], dead["attempts"]["code"]) == ("dead-letter", 400)
        assert asked(server, "why", "nosuch")["fate"] == "not-stored"
        trace = asked(server, "trace", "d9")
        kept = [one for one in trace["matches"] if "deadLetter" in one]
        assert {one["name"] for one in kept} == {f"default/{name}" for name in DEAD}
        assert trace["evaluated"]


def filters_are_counted_over_stored_events_by_every_server(deployment: Deployment) -> None:
    for server in (deployment.server, deployment.other):
        arguments = ["filter", "backtest", "data.n > 20", "--against", 'ce.type == "odd"', "--json"]
        found = json.loads(told(*arguments, "--server", server.url))
        counts = {name: found[name] for name in ("complete", "taken", "against", "both")}
        large, odd = set(range(21, EVENTS)), set(range(1, EVENTS, 2))
        assert counts == {"complete": True, "taken": len(large), "against": len(odd), "both": len(large & odd)}
        assert {one["name"]: one["both"] for one in found["triggers"]}["default/large"] == len(large)
        assert {one["type"] for one in found["onlyFilter"]} == {"even"}
        assert {one["type"] for one in found["onlyAgainst"]} == {"odd"}


def deliveries_are_counted_by_every_server(deployment: Deployment) -> None:
    """Each asks the owners of the other's partitions, and hears what the other has counted."""
    own, eventing = "/apis/headgate.dev/v1", "/apis/eventing.knative.dev/v1/namespaces/default"
    found = []
    for server in (deployment.server, deployment.other):
        listed = server.call("GET", f"{server.url}{own}/triggerstats?limit=500")["items"]
        assert {one["name"] for one in listed} >= {*FILTERS, *DEAD, DROPPED}
        assert [one["name"] for one in listed if "stats" not in one] == []
        found.append({one["name"]: (one["stats"]["delivered"], one["stats"]["failed"]) for one in listed})
        within = server.call("GET", f"{server.url}{own}/namespaces/default/triggerstats?search=odd")["items"]
        one = server.call("GET", f"{server.url}{eventing}/triggers/odd/stats")
        assert [one["stats"]["delivered"]] == [one["stats"]["delivered"] for one in within] == [found[0]["odd"][0]]
        what_flows_is_known(server)
        numbers_are_those_of_all_servers(deployment, server)
    assert found[0] == found[1]
    for name, (_, wants) in FILTERS.items():
        assert 0 < found[0][name][0] <= sum(map(wants, range(EVENTS))), name
    assert all(found[0][name][1] for name in (*DEAD, DROPPED))


def what_flows_is_known(server: Server) -> None:
    """`other` has no control process, so another server answers for it; whoever does has followed the whole topic."""
    path = f"{server.url}/apis/eventing.knative.dev/v1/namespaces/default/brokers/default/catalogue"

    def followed() -> Object | None:
        found: Object = server.call("GET", path)
        return found if found["complete"] else None

    found = eventually(followed, "the catalogue of a topic that was followed")
    odd = next(one for one in found["items"] if one["type"] == "odd")
    assert {one["type"] for one in found["items"]} >= {"odd", "even"}
    assert odd["count"] >= EVENTS // 2
    one = server.call("GET", f"{path}?type=odd&source={quote(odd['source'])}")["items"][0]
    assert one["example"]["type"] == "odd"
    assert "default/odd" in one["wantedBy"]


def numbers_are_those_of_all_servers(deployment: Deployment, server: Server) -> None:
    """The summary and the counters of brokers are the same on each server, whichever took and delivered the events."""
    own = f"{server.url}/apis/headgate.dev/v1"
    both = {deployment.server.url, deployment.other.url}

    def heard() -> Object | None:
        found = server.call("GET", f"{own}/summary")
        return found if {part["server"] for part in found["parts"]} == both else None

    found = eventually(heard, "the numbers of both servers")
    letters = server.call("GET", f"{own}/deadletters/counts")
    assert found["deadLetters"] == {"count": letters["total"], "kept": letters["kept"]}
    assert found["objects"]["triggers"] == server.call("GET", f"{own}/triggerstats?limit=1")["total"]
    one = server.call("GET", f"{own}/namespaces/default/summary")
    assert all("note" not in part for part in one["parts"])

    def counted() -> int:
        items = server.call("GET", f"{own}/brokerstats")["items"]
        return next(int(item["stats"]["received"]) for item in items if item["name"] == "default")

    eventually(lambda: counted() >= EVENTS, "what both servers have stored")


def repeats_are_known_by_every_server(deployment: Deployment) -> None:
    """Of a broker that stores an event once, also over kill -9 of the front that writes its partition."""
    server, other = deployment.server, deployment.other
    broker(server, "once", {"deduplication": {"window": "PT10M"}})
    ids = [f"once-{number}" for number in range(12)]
    places = {one: until_accepted(other, one) for one in ids}
    assert len({str(place).partition(":")[0] for place in places.values()}) == PARTITIONS
    assert {one: post(server, one).position for one in ids} == places
    batch = post(other, *ids[:5], "once-new", "once-new")
    assert (batch.status, batch.duplicates, batch.position) == (202, 6, None)
    with Client(server.grpc) as client:
        client.publish("once", [Event("1.0", one, "/s", "t") for one in (*ids[5:], "once-newer")])
    deployment.repeat(*ids, "once-read")
    numbered = [f"once-numbered-{number}" for number in range(300)]
    with Client(server.grpc) as client, client.producer("once", name="p") as producer:
        for number, one in enumerate([*ids, *numbered]):
            producer.send(Event("1.0", one, "/s", "t"))
            if number in (100, 200):
                os.kill(parts_of((server if number == 100 else other).pid)["front-0"], signal.SIGKILL)
                deployment.repeat(*ids, "once-read", f"once-read-{number}")
    for each in (other, server):
        assert {one: until_accepted(each, one) for one in ids} == places
    expected = {*ids, *numbered, "once-new", "once-newer", "once-read", "once-read-100", "once-read-200"}
    eventually(lambda: stored(server).keys() >= expected, lambda: expected - stored(server).keys())
    assert stored(server).keys() == expected


def an_owner_that_stood_still_stores_nothing_again(deployment: Deployment) -> None:
    server, other = deployment.server, deployment.other
    front = parts_of(other.pid)["front-0"]
    os.kill(front, signal.SIGSTOP)
    ids = [f"still-{number}" for number in range(12)]
    places = {one: until_accepted(server, one) for one in ids}  # of the other's partitions, once they are ours
    os.kill(front, signal.SIGCONT)
    for each in (other, server):
        assert {one: until_accepted(each, one) for one in ids} == places
    assert stored(server).keys() >= {*ids}


def until_accepted(server: Server, one: str) -> str | None:
    """Sends an event as a producer does; where it is."""
    while not is_accepted(server, one):
        time.sleep(0.1)
    return post(server, one).position


def asked(server: Server, command: str, *arguments: str) -> Object:
    """What a command says as JSON."""
    found: Object = json.loads(told(command, *arguments, "--json", "--server", server.url))
    return found
