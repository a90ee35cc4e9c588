"""A broker that stores an event once does so on a real server of two fronts: over HTTP and gRPC, whatever is killed.

`test_kafka_deployment.py` has the same on Kafka.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.kafka import Kafka
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.backend.config import ClusterConfig, SourceConfig
from headgate.backend.kafka.topics import Admin
from headgate.testing.server import ApiError, Server, condition, parts_of
from headgate_api.event.model import Event
from headgate_client.sync import Client
from tests.backend.stores import kafka_config
from tests.certificates import Authority
from tests.support import eventually
from tests.system.publishing import broker

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
IDS = [f"id-{number}" for number in range(40)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(
        tmp_path / "data", arguments=("--fronts", "2", "--partitions", "3"), log=tmp_path / "server.log"
    ) as found:
        broker(found, "once", {"deduplication": {"window": "PT10M"}})
        yield found


class Answer:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        answer.read()
        self.status = answer.status
        self.duplicates = int(answer.headers.get("headgate-duplicates") or -1)
        self.position = answer.headers.get("headgate-position")


def post(server: Server, *ids: str, secure: ssl.SSLContext | None = None, **extensions: str) -> Answer:
    """On a connection of its own: whichever front takes it."""
    events = [{"specversion": "1.0", "id": one, "source": "/s", "type": "t"} | extensions for one in ids]
    body, kind = (events[0], "") if len(ids) == 1 else (events, "-batch")
    headers = {"content-type": f"application/cloudevents{kind}+json"}
    request = urllib.request.Request(f"{server.url}/default/once", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30, context=secure) as answer:
        return Answer(answer)


def stored(server: Server) -> dict[str, str]:
    """Places of all events, by id; each is there once."""
    found: list[tuple[str, str]] = []
    with Client(server.grpc) as client, client.read("once", follow=False) as reader:
        found += [(one.event.id, f"{one.partition}:{one.offset}") for one in reader]
    assert max(Counter(id_ for id_, _ in found).values(), default=0) <= 1
    return dict(found)


def test_an_event_that_comes_again_is_accepted_and_not_stored(server: Server) -> None:
    item = server.get("brokers", "default", "once")
    assert condition(item, "Deduplicated")["status"] == "True"
    first = {one: post(server, one) for one in IDS}
    assert {(one.status, one.duplicates) for one in first.values()} == {(202, 0)}
    places = {one: answer.position for one, answer in first.items()}
    assert len({str(place).partition(":")[0] for place in places.values()}) == 3, "events go to all partitions"
    assert stored(server) == places

    again = {one: post(server, one) for one in IDS}
    assert {one: answer.position for one, answer in again.items()} == places
    assert {(one.status, one.duplicates) for one in again.values()} == {(202, 1)}
    batch = post(server, *IDS[:10], "new-1", "new-2", "new-1")
    assert (batch.status, batch.duplicates, batch.position) == (202, 11, None)
    with Client(server.grpc) as client:
        client.publish("once", [event(one) for one in (*IDS[30:], "new-3")])
    server.kill()
    server.start()
    assert {one: post(server, one).position for one in IDS} == places
    assert stored(server).keys() == {*IDS, "new-1", "new-2", "new-3"}

    keyed = {one: post(server, one, partitionkey="k") for one in ("k-1", "k-2", "k-1")}
    assert keyed["k-1"].duplicates == 1
    with pytest.raises(ApiError, match=r"spec\.deduplication\.window"):
        server.create("brokers", "default", "long", {"deduplication": {"window": "PT25H"}})


def event(one: str) -> Event:
    return Event("1.0", one, "/s", "t")


def test_producers_that_send_again_until_they_are_answered_store_each_event_once(server: Server) -> None:
    sent: dict[int, int] = {}
    ended = threading.Event()

    def produce(producer: int) -> None:
        number = 0
        while not ended.is_set():
            while not is_accepted(server, f"{producer}-{number}"):
                time.sleep(0.02)
            number += 1
            sent[producer] = number

    producers = [threading.Thread(target=produce, args=[number]) for number in range(6)]
    for one in producers:
        one.start()
    for kill in range(4):
        reached = sum(sent.values())
        eventually(lambda reached=reached: sum(sent.values()) > reached + 30, seconds=120)
        name = f"front-{kill % 2}"
        os.kill(eventually(lambda name=name: parts_of(server.pid).get(name)), signal.SIGKILL)
    reached = sum(sent.values())
    eventually(lambda: sum(sent.values()) > reached + 30, seconds=120)
    ended.set()
    for one in producers:
        one.join()
    assert stored(server).keys() == {f"{one}-{number}" for one, count in sent.items() for number in range(count)}


def is_accepted(server: Server, one: str) -> bool:
    """False where it is not known: it may be stored."""
    try:
        return post(server, one).status == 202
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.kafka
@pytest.mark.slow
def test_servers_on_kafka_pass_on_what_clients_with_certificates_send(kafka: Kafka, tmp_path: Path) -> None:
    """Where every client must have one: a server shows its own, and judges for the other one. So does a source's."""
    config = kafka_config(kafka.bootstrap, f"p{time.monotonic_ns()}.")
    Admin(config).create_missing()
    topic = f"{config.topic_prefix}orders"
    source = SourceConfig(name="orders", topics=(topic,), broker="default/once", initial="earliest")
    (tmp_path / "headgate.yaml").write_text(ClusterConfig(kafka=config, sources=(source,)).model_dump_json())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for name in (*IDS[:5], "read", "read"):
        needed = {"ce_specversion": b"1.0", "ce_id": name.encode(), "ce_source": b"/s", "ce_type": b"t"}
        producer.produce(topic, b"x", headers=list(needed.items()))
    assert producer.flush(30) == 0
    authority = Authority(tmp_path)
    own, client = authority.issue("server", ("127.0.0.1",)), authority.issue("ada", groups=("system:masters",))
    given = {
        "--config": tmp_path / "headgate.yaml",
        "--tls-cert": own.certificate,
        "--tls-key": own.key,
        "--tls-ca": authority.path,
        "--tls-client-ca": authority.path,
    }
    arguments = tuple(str(one) for pair in given.items() for one in pair)
    secure, log = authority.context(client), tmp_path / "server.log"
    servers = [
        Server(tmp_path / role, arguments=(*arguments, "--role", role), secure=secure, log=log)
        for role in ("control,front,reader", "front")
    ]
    with servers[0] as one, servers[1] as two:
        one.create("brokers", "default", "once", {"deduplication": {"window": "PT10M"}})

        def answered(server: Server, id_: str) -> Answer | None:
            try:
                return post(server, id_, secure=secure)
            except OSError:
                return None

        def found() -> Counter[str]:
            asked = urllib.request.Request(
                f"{one.url}/default/once/events?from=earliest&limit=1000",
                headers={"accept": "application/cloudevents-batch+json"},
            )
            with urllib.request.urlopen(asked, timeout=30, context=secure) as answer:
                return Counter(event["id"] for event in json.loads(answer.read()))

        first = {one_id: eventually(lambda id_=one_id: answered(one, id_)) for one_id in IDS}
        again = {one_id: eventually(lambda id_=one_id: answered(two, id_)) for one_id in IDS}
        assert {id_: answer.position for id_, answer in first.items()} == {
            id_: answer.position for id_, answer in again.items()
        }
        assert {answer.duplicates for answer in again.values()} == {1}
        reading = Server(tmp_path / "source", arguments=(*arguments, "--role", "source"), log=log)
        reading.start(wait=False)
        try:
            eventually(lambda: len(found()) > len(IDS), lambda: log.read_text()[-3_000:])
        finally:
            reading.kill()
        assert found() == Counter([*IDS, "read"])
    assert "pass-refused" not in log.read_text()
