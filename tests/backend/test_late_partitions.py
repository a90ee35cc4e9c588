"""Partitions that Kafka gives to a member between its last read and its close, without a Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka import client, source
from headgate.backend.kafka.outbox_reader import OutboxMember
from headgate.backend.kafka.outbox_records import OutboxState
from headgate.backend.kafka.records import RecordError
from headgate.backend.kafka.source import SourceReader
from headgate.objects.kinds.specs import ServedBroker
from tests.backend.source_member import no_owner, served, topics

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

    def last(path: str) -> ServedBroker:
        stop.set()
        return served(path)

    reader = SourceReader(CONFIG, topics("t"), "i", last, no_owner)
    reader.run(stop)
    (consumer,) = consumers
    assert consumer.asked == []


class TrimmedConsumer(LateConsumer):
    """A consumer of a partition of which retention removes records, whose errors come before any further record."""

    first = 0

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Any] = []
        self.begun: list[int] = []

    def poll(self, _: float) -> Any:
        if self.asked.count("poll") == 0:
            self.asked.append("poll")
            self._on_assign(self, [TopicPartition("headgate.outbox", 0)])
        return self.messages.pop(0) if self.messages else None

    def committed(self, places: Sequence[TopicPartition], **_: object) -> Sequence[TopicPartition]:
        return places

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return self.first, 100

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        self.begun += [place.offset for place in places]

    def close(self) -> None: ...


def test_a_loss_is_told_once_also_when_another_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, lost = TrimmedConsumer(), list[tuple[int, int]]()
    removed = KafkaError(KafkaError.OFFSET_OUT_OF_RANGE)
    message = SimpleNamespace(error=lambda: removed, partition=lambda: 0)

    class Telling(Listener):
        def removed(self, partition: int, first: int, end: int) -> None:
            lost.append((first, end))

    monkeypatch.setattr(client, "made_client", lambda *_: consumer)
    member = OutboxMember(CONFIG, Telling())
    member.read(0)
    for consumer.first in (10, 10, 30):
        consumer.messages.append(message)
        member.read(0)
    assert lost == [(0, 10), (10, 30)]
    assert consumer.begun == [0, 10, 10, 30]
