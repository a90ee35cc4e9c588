"""Offsets of a Kafka topic by place: asked of the brokers by the Java client that Spark's Kafka source brings along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headgate.event import rfc3339
from headgate.limits import SPARK_KAFKA_ANSWER_S_MAX
from headgate.log import positions
from headgate.log.errors import PositionError
from headgate.scan.starts import EARLIEST, NEXT
from headgate.spark.errors import EventsAddressError, EventsUnreachableError
from headgate.spark.kafka_address import KafkaAddress

_NO_RECORD: Final = -1
"""Kafka's answer where no record is as new as a time."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """What a topic holds at a moment.

    Attributes:
        first: The first offset kept, by partition.
        end: Behind the last record that can be read, by partition.
    """

    first: Mapping[int, int]
    end: Mapping[int, int]


class TopicClient:
    """Asks about one topic; made by `topic_client`."""

    def __init__(self, jvm: Any, admin: Any, topic: str, partitions: list[int]) -> None:  # noqa: ANN401 - Java's objects
        self._jvm = jvm
        self._admin = admin
        self._topic = topic
        self._partitions = partitions

    def kept(self) -> TopicOffsets:
        """What the topic holds now."""
        of = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        return TopicOffsets(self._offsets(of.earliest()), self._offsets(of.latest()))

    def at(self, place: str, kept: TopicOffsets) -> dict[int, int]:
        """The first offset to read, by partition, never outside of what is kept.

        Args:
            place: `earliest`, `next`, a time (RFC 3339; the first record stored at or after its millisecond) or a
                position.
            kept: What the topic holds.

        Raises:
            PositionError: It is none of them, or a position of another topic or behind the end of this one.
        """
        found = self._found(place, kept)
        return {one: min(max(found[one], kept.first[one]), kept.end[one]) for one in self._partitions}

    def _found(self, place: str, kept: TopicOffsets) -> Mapping[int, int]:
        if place == EARLIEST:
            return kept.first
        if place == NEXT:
            return kept.end
        time_us = rfc3339.micros(place)
        if time_us is not None:
            millisecond = max(0, -(-time_us // 1_000))
            found = self._offsets(self._jvm.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(millisecond))
            return {one: kept.end[one] if at == _NO_RECORD else at for one, at in found.items()}
        if place[:1].isdigit():
            return positions.read(place, kept.end)
        raise PositionError(
            f"{place[:64]!r} is no place in the topic {self._topic}",
            hint=f"{EARLIEST}, {NEXT}, a time such as 2026-03-04T05:06:07Z, or a position such as 0:123,1:456",
        )

    def _offsets(self, spec: object) -> dict[int, int]:
        """What one specification says of every partition; records of open transactions are not there yet."""
        jvm = self._jvm
        asked = {one: jvm.org.apache.kafka.common.TopicPartition(self._topic, one) for one in self._partitions}
        specs = jvm.java.util.HashMap()
        for partition in asked.values():
            specs.put(partition, spec)
        committed = jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        options = jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(committed)
        answer = self._admin.listOffsets(specs, options)
        return {one: answer.partitionResult(partition).get().offset() for one, partition in asked.items()}


@contextmanager
def topic_client(spark: SparkSession, address: KafkaAddress, options: Mapping[str, str]) -> Iterator[TopicClient]:
    """A client in the driver's JVM, for a moment; blocking.

    Args:
        spark: A session that has Spark's Kafka source.
        address: The topic.
        options: Of Kafka's Java clients, without the prefix `kafka.`.

    Raises:
        EventsAddressError: There is no such topic, or an option is refused.
        EventsUnreachableError: No answer within SPARK_KAFKA_ANSWER_S_MAX, or Kafka refuses us.
    """
    jvm: Any = spark.sparkContext._jvm
    settings = jvm.java.util.Properties()
    wait_ms = str(round(SPARK_KAFKA_ANSWER_S_MAX * 1_000))
    waits = {"default.api.timeout.ms": wait_ms, "request.timeout.ms": wait_ms}
    for name, value in {**waits, **options, "bootstrap.servers": address.bootstrap}.items():
        settings.setProperty(name, value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    except Py4JJavaError as error:
        raise EventsAddressError(
            f"no client of Kafka can be made for {address.bootstrap}: {_cause(error)}",
            hint="kafka_options are those of Kafka's Java clients, without the prefix kafka.",
        ) from error
    try:
        described = admin.describeTopics(jvm.java.util.Collections.singletonList(address.topic))
        partitions = described.allTopicNames().get()[address.topic].partitions()
        yield TopicClient(jvm, admin, address.topic, sorted(one.partition() for one in partitions))
    except Py4JJavaError as error:
        said = _cause(error)
        if "UnknownTopicOrPartition" in said:
            raise EventsAddressError(
                f"there is no topic {address.topic} at {address.bootstrap}",
                hint="is the prefix the deployment's kafka.topic_prefix? headgate cluster init makes the topics",
            ) from error
        raise EventsUnreachableError(
            f"Kafka at {address.bootstrap} does not answer: {said}",
            hint="check the address, that its brokers run, and security.protocol and the login in kafka_options",
        ) from error
    finally:
        admin.close(jvm.java.time.Duration.ZERO)


def _cause(error: Py4JJavaError) -> str:
    """The innermost error of Java, in one line."""
    java = error.java_exception
    while java.getCause() is not None:
        java = java.getCause()
    return f"{java.getClass().getSimpleName()}: {java.getMessage()}"[:500]
