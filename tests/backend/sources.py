"""A deployment whose sources read a topic of others, and what they refused of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusters.kafka import Kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import TopicConsumer
from tests.backend.contract import PARTITIONS
from tests.backend.stores import KafkaStore, deployed
from tests.support import eventually

TOPIC_PARTITIONS = 3


@pytest.fixture
def store(kafka: Kafka) -> Iterator[KafkaStore]:
    store = KafkaStore(deployed(kafka, "events", "refused"))
    yield store
    store.close()


@pytest.fixture
def topic(store: KafkaStore) -> str:
    """A topic of others."""
    name = f"{store.config.topic_prefix}orders"
    made(store, name)
    return name


def made(store: KafkaStore, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": store.config.bootstrap})
    eventually(lambda: admin.create_topics([NewTopic(topic, TOPIC_PARTITIONS, 1)])[topic].exception() is None)
    eventually(lambda: topic in admin.list_topics(timeout=10).topics)


def refused(config: KafkaConfig) -> list[tuple[int, int, str]]:
    """Source partition, offset and reason of every refused record."""
    consumer = TopicConsumer.committed(config, "a test reads").raw
    name, found, ends = config.topic("refused"), [], set()
    consumer.assign([TopicPartition(name, partition, 0) for partition in range(PARTITIONS)])
    while len(ends) < PARTITIONS:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is not None:
            ends.add(message.partition())
            continue
        headers = dict(message.headers() or [])
        place = int(headers["headgate_partition"]), int(headers["headgate_offset"])
        found.append((*place, headers["headgate_reason"].decode()))  # type: ignore[union-attr]
    consumer.close()
    return found
