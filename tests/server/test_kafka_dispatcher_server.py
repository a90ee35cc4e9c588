"""Servers with control, front and dispatcher on a real Kafka: what a matcher found reaches a subscriber, and is 501."""

from __future__ import annotations

import sqlite3
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from headgate.deadletters.api import LIST
from headgate.outbox.shards import dispatcher_of
from headgate.store.config import ClusterConfig, KafkaConfig
from headgate.store.kafka.admin import Admin
from headgate.store.kafka.consumers import committed_reader
from headgate.store.kafka.library import Faults
from headgate.store.kafka.outbox_records import EVENT, HEAD, HEADER, TARGET, OutboxKind, encode_hello
from headgate.store.kafka.reader import headers_of
from headgate.testing.kafka import Kafka
from headgate.testing.server import ApiError, Server
from tests.store.outbox_stream import OUTBOX_PARTITIONS, outbox_config
from tests.store.stores import PARTITIONS

pytestmark = [pytest.mark.kafka, pytest.mark.system]
WAIT_S_MAX = 90.0
EVENTS = 40


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def subscriber(taken: list[str]) -> Iterator[str]:
    """Notes the ids of what it gets; the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            taken.append(self.headers["ce-id"])
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def post(server: Server, number: int) -> bool:
    headers = {"ce-id": str(number), "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0"}
    headers["content-type"] = "application/json"
    try:
        request = urllib.request.Request(f"{server.url}/default/default", b'{"n":1}', headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 202)
    except (urllib.error.URLError, OSError):
        return False


def created(server: Server, uri: str) -> bool:
    try:
        server.create("triggers", "default", "one", {"broker": "default", "subscriber": {"uri": uri}})
    except (ApiError, OSError):
        return False
    return True


def target_of(data: Path) -> int:
    with closing(sqlite3.connect(data / "control.db")) as connection:
        ((number,),) = connection.execute("SELECT id FROM targets").fetchall()
    return int(number)


def match_everything(config: KafkaConfig, target: int) -> None:
    """Does what a matcher's run does for one target: writes a record of the outbox for every event of the topic."""
    producer = Producer({"bootstrap.servers": config.bootstrap, "enable.idempotence": True})
    outbox, events = config.topic("outbox"), config.topic("events")
    for source in range(PARTITIONS):
        for partition in range(OUTBOX_PARTITIONS):
            hello = encode_hello(
                run=1,
                generation=1,
                partition=source,
                start=0,
                partitions=PARTITIONS,
                outbox_partitions=OUTBOX_PARTITIONS,
            )
            producer.produce(outbox, None, None, partition, headers=[(HEADER, hello)])
    found = 0
    with closing(committed_reader(config, Faults())) as consumer:
        consumer.assign([TopicPartition(events, source, 0) for source in range(PARTITIONS)])
        deadline = time.monotonic() + WAIT_S_MAX
        while found < EVENTS:
            assert time.monotonic() < deadline
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            found += 1
            head = HEAD.pack(OutboxKind.EVENT, 0, 1, 1, message.partition(), message.offset())
            own = head + EVENT.pack(message.timestamp()[1] * 1_000) + TARGET.pack(target, 3)
            producer.produce(
                outbox,
                message.value(),
                message.key(),
                dispatcher_of(target, OUTBOX_PARTITIONS),
                headers=[(HEADER, own), *headers_of(message)],
            )
    assert producer.flush(WAIT_S_MAX) == 0


def test_what_was_matched_reaches_the_subscriber_once(kafka: Kafka, tmp_path: Path) -> None:
    config = outbox_config(kafka.bootstrap, f"p{uuid.uuid4().hex[:8]}.")
    Admin(config).create_missing()
    file, log = tmp_path / "headgate.yaml", tmp_path / "server.log"
    file.write_text(ClusterConfig(kafka=config).model_dump_json())  # JSON is YAML
    arguments = ("--config", str(file), "--role", "control,front,dispatcher", "--dispatchers", "2")
    taken: list[str] = []
    server = Server(tmp_path / "data", arguments=arguments, log=log)
    try:
        with subscriber(taken) as url:
            server.start(wait=False)
            until(lambda: created(server, url))
            for number in range(EVENTS):
                until(lambda number=number: post(server, number))
            match_everything(config, target_of(tmp_path / "data"))
            until(lambda: len(taken) >= EVENTS)
            server.wait_ready()
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"{server.url}{LIST}", timeout=60)
            assert caught.value.code == 501
            caught.value.close()
            assert server.stop() == 0
    finally:
        server.kill()
        print(log.read_text()[-6_000:])
    assert sorted(taken, key=int) == [str(number) for number in range(EVENTS)]
