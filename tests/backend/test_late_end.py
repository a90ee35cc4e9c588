"""An end of a transaction that reaches Kafka late, while a later transaction of the same name is open.

A client that waited in vain for the answer to EndTxn does not know whether Kafka has the request. Kafka tells an old
one by the epoch of its producer alone, so after a failure who writes takes a new producer. A proxy holds the request
back until the next transaction is about to end, and only then lets it through.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.kafka import Kafka
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.backend.kafka.appender import KafkaAppender, NumberedWriter
from headgate.backend.kafka.client import KafkaAdmin
from headgate.backend.kafka.producer_numbers import producer_name, read_numbers
from headgate.backend.kafka.records import records_of
from headgate.backend.kafka.source import SourceReader
from headgate.backend.kafka.topics import Admin
from headgate.backend.kafka.transactions import EventRecords
from headgate_api.errors import UnavailableError
from tests.backend.contract import BROKER, entries, stored
from tests.backend.scan_contract import known
from tests.backend.source_member import no_owner, served, topics
from tests.backend.stores import KafkaStore, kafka_config
from tests.support import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

END_TXN = 26
FLEXIBLE_SINCE = 3
"""The version of EndTxn from which on headers have tagged fields."""
WAIT_S_MAX = 60.0


class LateEnds:
    """A proxy before one broker that can hold one EndTxn back.

    Attributes:
        port: Where clients connect.
        broker_port: The broker's.
        holds: Set: the next EndTxn is held.
        held: One is.
        lets_in: Set: it goes on when the next EndTxn comes, which waits until it is answered.
        answered: It was answered.
        error: How.
    """

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.broker_port = 0
        self.holds, self.held, self.lets_in, self.answered = (threading.Event() for _ in range(4))
        self._goes_on = threading.Event()
        self._late: tuple[socket.socket, bytes] | None = None
        self.error: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._goes_on.set()
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.broker_port))
                except OSError:  # it does not listen yet
                    client.close()
                    continue
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, broker), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(client):
                (kind,) = struct.unpack_from(">h", frame, 4)
                if kind == END_TXN and self.holds.is_set():
                    self.holds.clear()
                    self._late = broker, frame
                    self.held.set()
                    self._goes_on.wait()
                elif kind == END_TXN and self.lets_in.is_set():
                    self.lets_in.clear()
                    self._goes_on.set()
                    self.answered.wait(WAIT_S_MAX)
                broker.sendall(frame)
        if self._late is not None and self._late[0] is broker:
            self.answered.wait(WAIT_S_MAX)  # its client is gone, and the broker does not know
        broker.close()

    def _answers(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(broker):
                if self._late is not None and self._late[0] is broker and frame[4:8] == self._late[1][8:12]:
                    (version,) = struct.unpack_from(">h", self._late[1], 6)
                    (self.error,) = struct.unpack_from(">h", frame, 13 if version >= FLEXIBLE_SINCE else 12)
                    self.answered.set()
                with contextlib.suppress(OSError):
                    client.sendall(frame)
        client.close()


def _frame(source: socket.socket) -> bytes:
    """A request or an answer with its size before it; empty at the end."""
    size = _exactly(source, 4)
    return size + _exactly(source, struct.unpack(">i", size)[0]) if size else b""


def _exactly(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = source.recv(size - len(found))
        if not piece:
            return b""
        found += piece
    return bytes(found)


@pytest.fixture
def proxy() -> Iterator[LateEnds]:
    proxy = LateEnds()
    yield proxy
    proxy.close()


@pytest.fixture
def store(tmp_path: Path, proxy: LateEnds) -> Iterator[KafkaStore]:
    kafka = Kafka(tmp_path / "kafka", settings={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"})
    proxy.broker_port = int(kafka.bootstrap.rpartition(":")[2])
    with kafka:
        store = KafkaStore(kafka_config(f"127.0.0.1:{proxy.port}", "late."))
        Admin(store.config).create_missing()
        yield store
        store.close()


def test_a_late_end_ends_no_later_transaction(store: KafkaStore, proxy: LateEnds) -> None:
    async def work() -> None:
        appender = KafkaAppender(store.config, "test")
        await appender.append({0: entries("a1", "a2"), 1: entries("a3")}, 100)
        proxy.holds.set()
        with pytest.raises(UnavailableError):
            await appender.append({0: entries("b1", "b2"), 1: entries("b3")}, 100)
        assert proxy.held.is_set()
        assert not proxy.answered.is_set()
        proxy.lets_in.set()
        await appender.append({0: entries("c1", "c2"), 1: entries("c3")}, 100)
        assert proxy.answered.is_set(), "it came while that transaction was open"
        store.settle(await appender.append({0: entries("d1", "d2"), 1: entries("d3")}, 100))
        await appender.close()

    asyncio.run(work())
    found = [each.id for partition in (0, 1) for each in stored(store.reader(partition)).values()]
    # `b` was aborted by the next producer before its end came: whole or not at all, and here not at all.
    assert found == ["a1", "a2", "c1", "c2", "d1", "d2", "a3", "c3", "d3"]
    assert proxy.error in (KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


def test_a_late_end_ends_no_later_transaction_of_a_numbered_producer(store: KafkaStore, proxy: LateEnds) -> None:
    """A failure ends the stream. The next one of the producer is a new writer, and knows what was stored."""
    first = NumberedWriter(store.config, BROKER, "p")
    first.store([EventRecords({0: records_of(entries("a1", "a2")), 1: records_of(entries("a3"))}, {0: 1, 1: 2})])
    proxy.holds.set()
    with pytest.raises(UnavailableError):
        first.store([EventRecords({0: records_of(entries("b1", "b2")), 1: records_of(entries("b3"))}, {0: 4, 1: 5})])
    assert proxy.held.is_set()
    following = NumberedWriter(store.config, BROKER, "p")
    numbers = read_numbers(KafkaAdmin(store.config, "a test reads"), producer_name(BROKER, "p"))
    newest = {partition: number for partition, (number, _) in numbers.items()}
    is_stored = newest == {0: 4, 1: 5}  # the client may have asked again, on another connection
    assert is_stored or newest == {0: 1, 1: 2}
    assert not proxy.answered.is_set()
    proxy.lets_in.set()
    following.store([EventRecords({0: records_of(entries("c1", "c2")), 1: records_of(entries("c3"))}, {0: 7, 1: 8})])
    assert proxy.answered.is_set(), "it came while that transaction was open"
    first.close()
    following.close()
    found = sorted(each.event.id for each in known(store))
    assert found == ["a1", "a2", "a3", *(["b1", "b2", "b3"] if is_stored else []), "c1", "c2", "c3"]
    assert proxy.error in (KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


def test_a_late_end_ends_no_later_transaction_of_a_source(store: KafkaStore, proxy: LateEnds) -> None:
    """A failure begins the source anew, with a new writer, at the records that were not admitted: each comes once."""
    topic = f"{store.config.topic_prefix}orders"
    admin = AdminClient({"bootstrap.servers": store.config.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    stop = threading.Event()
    reader = SourceReader(store.config, topics(topic), "one", served, no_owner)
    running = threading.Thread(target=reader.run, args=(stop,))
    running.start()
    written = Producer({"bootstrap.servers": store.config.bootstrap, "log_level": "0"})
    try:
        for name in ("e1", "e2", "e3"):
            headers = [("ce_specversion", "1.0"), ("ce_id", name), ("ce_source", "/s"), ("ce_type", "t")]
            written.produce(topic, b"x", headers=headers)  # type: ignore[arg-type]
            assert written.flush(30) == 0
            if name == "e2":
                assert proxy.held.wait(WAIT_S_MAX)
                proxy.lets_in.set()
                assert proxy.answered.wait(WAIT_S_MAX), "it came while the next transaction was open"
            eventually(lambda name=name: name in {one.event.id for one in known(store)}, seconds=WAIT_S_MAX)
            if name == "e1":
                proxy.holds.set()
    finally:
        stop.set()
        running.join(WAIT_S_MAX)
    assert not running.is_alive()
    assert [one.event.id for one in known(store)] == ["e1", "e2", "e3"]
    assert proxy.error in (KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
