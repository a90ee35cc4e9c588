"""A matcher that stands by rehearses with real events, and nothing of that counts."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from clusters.kafka import Kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from pyspark.sql import SparkSession

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import offset_of
from headgate.backend.kafka.events import headers_of
from headgate.backend.kafka.match_run import OutboxPlaces, OutboxQueries
from headgate.backend.kafka.matcher_leadership import REHEARSAL_RUN, Rehearsal
from headgate.backend.kafka.outbox_records import EventRecord, PassedRecord, decode
from headgate.backend.kafka.outbox_takeover import OutboxTakeover
from headgate.backend.kafka.topics import Admin
from headgate_api.limits import REHEARSAL_EVENTS, REHEARSAL_LOOK_S, REHEARSAL_PAUSE_S
from tests.backend.matcher_world import OUTBOX, SOURCES, WAIT_S_MAX, Filters, Load, world_config

EVENTS = 60


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class NoEvents:
    """Places of an empty topic."""

    def newest(self, count: int) -> dict[int, int]:
        assert count == REHEARSAL_EVENTS
        return {}


def test_without_events_it_looks_again_soon() -> None:
    clock = Clock()
    places = cast(OutboxPlaces, NoEvents())
    rehearsal = Rehearsal(cast(OutboxQueries, None), places, clock)
    assert rehearsal.is_due(1)
    assert not rehearsal.run(Filters(1).snapshot(), lambda: False)
    assert not rehearsal.is_due(1)
    clock.now += REHEARSAL_LOOK_S
    assert rehearsal.is_due(1)


def outbox_of(config: KafkaConfig, until: Counter[int]) -> dict[int, list[tuple[int, object]]]:
    """Offsets and records of each partition, up to an end for each."""
    found: dict[int, list[tuple[int, object]]] = {number: [] for number in range(OUTBOX)}
    consumer = Consumer({"bootstrap.servers": config.bootstrap, "group.id": "no commits"})
    topic = config.topic("outbox")
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(OUTBOX)])
    deadline = time.monotonic() + WAIT_S_MAX
    while any(len(found[number]) < until[number] for number in range(OUTBOX)):
        assert time.monotonic() < deadline
        for message in consumer.consume(500, timeout=0.2):
            partition = message.partition()
            record = decode(headers_of(message), message.key(), message.value(), partition, OUTBOX)
            found[partition].append((offset_of(message), record))
    consumer.close()
    return found


def ends(config: KafkaConfig) -> Counter[int]:
    consumer = Consumer({"bootstrap.servers": config.bootstrap, "group.id": "no commits"})
    places = [TopicPartition(config.topic("outbox"), number) for number in range(OUTBOX)]
    found = Counter({place.partition: consumer.get_watermark_offsets(place)[1] for place in places})
    consumer.close()
    return found


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow
def test_nothing_of_a_rehearsal_counts(kafka: Kafka, spark: SparkSession, tmp_path: Path) -> None:
    config = world_config(kafka.bootstrap, f"r{uuid.uuid4().hex[:8]}.")
    Admin(config).create_missing()
    load, clock = Load(config, 1.0), Clock()
    for number in range(EVENTS):
        load.add(number)
    load.end()
    places = OutboxPlaces(config)
    rehearsal = Rehearsal(OutboxQueries(spark, config, tmp_path), places, clock)
    assert rehearsal.run(Filters(1).snapshot(), lambda: False)
    assert not rehearsal.is_due(1), "it is warm"
    assert not rehearsal.is_due(2)
    clock.now += REHEARSAL_PAUSE_S
    assert rehearsal.is_due(2)
    assert not rehearsal.run(Filters(2).snapshot(), lambda: True), "it is elected: it breaks off"
    places.close()
    seen: set[tuple[int, int]] = set()
    for records in outbox_of(config, ends(config)).values():
        takeover = OutboxTakeover(OUTBOX, lambda source: 0)
        for offset, record in records:
            assert isinstance(record, EventRecord | PassedRecord)
            assert record.run == REHEARSAL_RUN
            assert takeover.feed(offset, record) == []
            if isinstance(record, EventRecord):
                seen.add((record.source, record.offset))
        assert takeover.state.newest_run == 0, "a driver's numbers begin at 1 all the same"
    assert 0 < len(seen) <= EVENTS, "events went through the whole query"
    assert {source for source, _ in seen} <= set(range(SOURCES))
