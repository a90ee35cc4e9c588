"""Partitions that Kafka gives to a member between its last read and its close, without a Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from headgate.store.config import KafkaConfig, SourceConfig
from headgate.store.kafka import client, source
from headgate.store.kafka.outbox_reader import OutboxMember
from headgate.store.kafka.outbox_records import OutboxState
from headgate.store.kafka.records import RecordError
from headgate.store.kafka.source import SourceReader

CONFIG = KafkaConfig(bootstrap="127.0.0.1:1")


class LateConsumer:
    """A consumer that is told of its partitions in its close, as librdkafka does.

    It notes what is asked there: a consumer that closes is told of no commit, and waits for one until the time is over.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._on_assign: Callable[[Any, Sequence[TopicPartition]], None] = lambda *_: None

    def subscribe(self, _: Sequence[str], *, on_assign: Callable[..., None], **__: object) -> None:
        self._on_assign = on_assign

    def close(self) -> None:
        self._on_assign(self, [TopicPartition("outbox", 0)])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*_: object, **__: object) -> list[TopicPartition]:
            self.asked.append(name)
            return []

        return ask


class Listener:
    """Notes which partitions are taken."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def taking(self, partitions: Sequence[int]) -> None:
        self.taken += partitions

    def assigned(self, partition: int, state: OutboxState) -> None: ...

    def revoked(self, partitions: Sequence[int], *, is_lost: bool) -> None: ...

    def passed_over(self, partition: int, offset: int, error: RecordError) -> None: ...

    def removed(self, partition: int, first: int, end: int) -> None: ...


def test_a_dispatcher_that_leaves_takes_no_partition_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, listener = LateConsumer(), Listener()
    monkeypatch.setattr(client, "made_client", lambda *_: consumer)
    OutboxMember(CONFIG, listener).close()
    assert (listener.taken, consumer.asked) == ([], [])


def test_a_source_that_stops_begins_no_partition_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    consumers: list[LateConsumer] = []

    def made_client(*_: object) -> LateConsumer:
        consumers.append(LateConsumer())
        return consumers[-1]

    monkeypatch.setattr(client, "made_client", made_client)
    monkeypatch.setattr(source, "FencedWriter", lambda *_: SimpleNamespace(close=lambda: None))
    stop = threading.Event()

    def identity(_: str) -> str:
        stop.set()
        return "broker"

    reader = SourceReader(CONFIG, SourceConfig(name="s", topics=("t",), broker="default/default"), "i", identity)
    reader.run(stop)
    (consumer,) = consumers
    assert consumer.asked == []
