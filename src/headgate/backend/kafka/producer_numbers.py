"""The newest number of each numbered producer, by partition: commits of a consumer group of its own without members.

So a number becomes known in the transaction that has its event. Where owners of partitions store it, the number of the
stream stands behind it. docs/adr/0025-a-stream-is-a-fenced-transaction.md has the reasons.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Final

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import KafkaAdmin, TopicConsumer, library

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

_OFFSET_MAX: Final = 1 << 62
"""A number may be larger than an offset: it stands in the commit's metadata, and the offset is for people."""


def producer_name(broker: str, producer: str) -> str:
    """The name of a producer of a broker, by its identity, in Kafka: of its group, and of its transactions."""
    digest = hashlib.sha256(f"{broker}\0{producer}".encode()).hexdigest()
    return f"producer-{digest[:32]}"


def read_numbers(admin: KafkaAdmin, name: str, partitions: Iterable[int] | None = None) -> dict[int, tuple[int, int]]:
    """The newest number by partition, and its stream, 0 for none; blocking. Waits for transactions under way."""
    config = admin.config
    every = range(config.topics.events.partitions)
    found = admin.commits(config.topic(name), config.topic("events"), every if partitions is None else partitions)
    texts = {partition: text.partition(":") for partition, text in found.items()}
    return {partition: (int(number), int(stream or 0)) for partition, (number, _, stream) in texts.items()}


def group_of(config: KafkaConfig, name: str, doing: str) -> object:
    """A group as transactions take it, see `FencedWriter.add_places`; asks Kafka nothing."""
    with closing(TopicConsumer.committed(config, doing, group=name)) as reader:
        return reader.raw.consumer_group_metadata()


def number_place(config: KafkaConfig, partition: int, number: int, stream: int = 0) -> TopicPartition:
    """The commit that says which number is the newest one."""
    text = f"{number}:{stream}" if stream else str(number)
    place: TopicPartition = library().TopicPartition(
        config.topic("events"), partition, min(number + 1, _OFFSET_MAX), text
    )
    return place
