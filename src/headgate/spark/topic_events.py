"""Events of a deployment on Kafka as a DataFrame, read by Spark's own source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final
from urllib.parse import parse_qs

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.log.directory import OnCorrupt
from headgate.match.kafka_columns import log_columns
from headgate.scan.source import EARLIEST, NEXT
from headgate.spark.connector import ConnectorMissingError, load_class
from headgate_api import positions
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.event import rfc3339
from headgate_api.limits import SPARK_KAFKA_ANSWER_S_MAX
from headgate_api.positions import PositionError

# --- addresses ------------------------------------------------------------------------------------

PREFIX_DEFAULT: Final = "headgate."
"""As `kafka.topic_prefix` of a deployment's configuration file."""
_HINT: Final = "kafka://HOST:PORT,HOST:PORT/?prefix=headgate. with the deployment's kafka.bootstrap and topic_prefix"
_ADDRESS: Final = re.compile(r"kafka://(?P<brokers>[^/?#]*)/?(\?(?P<query>[^#]*))?", re.IGNORECASE)
"""Not `urlsplit`: it takes a list of hosts for one, and since its fix of 2023 refuses one with IPv6 in brackets."""
_HOST_AND_PORT: Final = re.compile(r"(?:[^\s,:\[\]@]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}")
_PREFIX: Final = re.compile(r"[a-zA-Z0-9._-]{0,100}")


class EventsAddressError(InvalidInputError):
    """The address is none from which events can be read."""

    code = "spark-address"


class EventsUnreachableError(UnavailableError):
    """Kafka, which holds the events, does not answer or does not let us in."""

    code = "spark-kafka-unreachable"


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where a deployment's events are."""

    bootstrap: str  # HOST:PORT of some of Kafka's brokers, with commas between
    topic: str


def kafka_address(text: str) -> KafkaAddress:
    """Reads an address; raises EventsAddressError for one of another form."""
    parts = _ADDRESS.fullmatch(text)
    # A name and a password would be in logs and in the history of a shell.
    if "@" in (text if parts is None else parts["brokers"]):
        raise EventsAddressError("the address holds a name or a password", hint="give them in kafka_options")
    if parts is None:
        raise EventsAddressError(f"{text[:100]!r} is no address of events", hint=_HINT)
    given = parts["query"] or ""
    try:
        query = parse_qs(given, keep_blank_values=True, strict_parsing=bool(given), max_num_fields=1)
    except ValueError as error:
        raise EventsAddressError(f"{text[:100]!r} is no address of events: {error}", hint=_HINT) from error
    for one in parts["brokers"].split(","):
        if not _HOST_AND_PORT.fullmatch(one):
            raise EventsAddressError(f"{one[:100]!r} is not HOST:PORT of a broker of Kafka", hint=_HINT)
    prefix = query.pop("prefix", [PREFIX_DEFAULT])[0]
    if query or not _PREFIX.fullmatch(prefix):
        raise EventsAddressError(f"{text[:100]!r} is no address of events", hint=_HINT)
    return KafkaAddress(parts["brokers"], f"{prefix}events")


# --- offsets --------------------------------------------------------------------------------------
# Asked of the brokers by the Java client that Spark's Kafka source brings along.

_NO_RECORD: Final = -1
"""Kafka's answer where no record is as new as a time."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """What a topic holds at a moment."""

    first: Mapping[int, int]  # the first offset kept, by partition
    end: Mapping[int, int]  # behind the last record that can be read, by partition


class TopicClient:
    """Asks about one topic; made by `topic_client`."""

    def __init__(self, jvm: Any, admin: Any, topic: str, partitions: list[int]) -> None:  # noqa: ANN401 - Java's objects
        self._jvm = jvm
        self._admin = admin
        self._topic = topic
        self._partitions = partitions

    def kept(self) -> TopicOffsets:
        of = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        return TopicOffsets(self._offsets(of.earliest()), self._offsets(of.latest()))

    def at(self, place: str, kept: TopicOffsets) -> dict[int, int]:
        """The first offset to read, by partition, never outside of what is kept.

        `place` is as `from_` of `read_events`; a time finds the first record stored at or after its millisecond. Raises
        PositionError for one of none of these forms, of another topic, or behind the end of this one.
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
    """A client in the driver's JVM, for a moment; blocking. `options` are Kafka's own, without the prefix `kafka.`.

    Raises EventsAddressError where there is no such topic or an option is refused; EventsUnreachableError where Kafka
    refuses us, or does not answer within SPARK_KAFKA_ANSWER_S_MAX.
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


# --- events ---------------------------------------------------------------------------------------

_SOURCE: Final = "kafka"
_SOURCE_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_OURS: Final = frozenset({"bootstrap.servers", "isolation.level", "group.id", "auto.offset.reset"})
"""Options that the address gives, or on which it rests that nothing is missing or taken back."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read, in the words of `reading.read_events`."""

    broker: str
    from_: str
    to: str | None
    streaming: bool
    on_corrupt: OnCorrupt


def topic_events(spark: SparkSession, address: KafkaAddress, wanted: Wanted, options: Mapping[str, str]) -> DataFrame:
    """The events of a broker in a topic, in the columns of the log; raises what `reading.read_events` does.

    `broker` is `namespace/name`: every broker that has or had the name; or an identity, `namespace/name/uid`. Records
    that went before a stream has read them count as corrupt, too.
    """
    _check_source(spark)
    refused = sorted(_OURS & options.keys())
    if refused:
        raise EventsAddressError(f"kafka_options must not have {refused[0]}", hint="Headgate sets it itself")
    with topic_client(spark, address, options) as client:
        kept = client.kept()
        start = client.at(wanted.from_, kept)
        end = None if wanted.to is None else client.at(wanted.to, kept)
    settings = {f"kafka.{name}": value for name, value in options.items()} | {
        "kafka.bootstrap.servers": address.bootstrap,
        "kafka.isolation.level": "read_committed",  # else batches that were given up appear
        "subscribe": address.topic,
        "includeHeaders": "true",
        "startingOffsets": json.dumps({address.topic: start}),
        "failOnDataLoss": str(wanted.on_corrupt == "stop").lower(),
    }
    if end is not None and not wanted.streaming:
        settings["endingOffsets"] = json.dumps({address.topic: {one: max(at, start[one]) for one, at in end.items()}})
    reader = spark.readStream if wanted.streaming else spark.read
    events = log_columns(reader.format(_SOURCE).options(**settings).load())
    if end is not None and wanted.streaming:  # the source has no end for a stream
        events = events.where(_before(end))
    if wanted.on_corrupt == "stop":
        events = events.withColumn("broker", F.coalesce(F.col("broker"), F.raise_error(_foreign(address.topic))))
    broker, stored = wanted.broker, F.col("broker")
    return events.where(stored == broker if broker.count("/") > 1 else stored.startswith(f"{broker}/"))


def _check_source(spark: SparkSession) -> None:
    try:
        load_class(spark, _SOURCE_CLASS)
    except Py4JError as error:
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
        raise ConnectorMissingError(
            "this Spark session does not have Spark's Kafka source",
            hint=f"start Spark with it: SparkSession.builder.config('spark.jars.packages', '{package}')",
        ) from error


def _before(end: Mapping[int, int]) -> Column:
    parts = ((F.col("partition") == one) & (F.col("offset") < at) for one, at in end.items())
    return reduce(or_, parts)


def _foreign(topic: str) -> Column:
    where = (F.lit(f"{topic}/"), F.col("partition"), F.lit(" at offset "), F.col("offset"))
    return F.concat(*where, F.lit(": no event that Headgate stored; on_corrupt='skip' passes over it"))
