"""One run on Kafka: a Spark query from the topic `events` to the topic `outbox` (docs/spec/outbox-topic.md)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.java_gateway import JavaObject, JVMView
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.errors import InvalidInputError
from headgate.limits import (
    KAFKA_APPEND_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
    LINK_ROWS_PER_EVENT_MAX,
    OUTBOX_PASSED_MS,
    OUTBOX_RECORD_TARGETS_MAX,
    OUTBOX_WAITING_MAX,
    REAL_TIME_BATCH_S,
    RUN_TASKS_S_MAX,
)
from headgate.match.dataframe import EVENT_IDENTITY, match_events
from headgate.match.errors import RunFailedError
from headgate.match.kafka_columns import log_columns
from headgate.match.query import SparkRun, start_query
from headgate.match.table import MARK, MatchTable
from headgate.store.config import KafkaConfig, resolved
from headgate.store.kafka.client import ACKNOWLEDGED, Faults, library, made_client, partition_count, translated
from headgate.store.kafka.outbox_records import HEADER, encode_hello, encode_over, encode_passed

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer


# --- java options ---------------------------------------------------------------------------------
# Options of librdkafka as those of Kafka's Java client, which Spark's source and our sink use.

_SAME: Final = ("security.protocol", "client.id", "client.rack")
_PEM: Final[Mapping[str, str]] = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.key.password": "ssl.key.password",
}
_SASL: Final = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")
_MODULES: Final[Mapping[str, str]] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_options(config: KafkaConfig) -> dict[str, str]:
    """How a Java client reaches the brokers, and who it is; it may hold secrets.

    Raises:
        InvalidInputError: An option is none that both clients have, or a secret's file cannot be read.
    """
    given = resolved(config.options)
    known = {*_SAME, *_PEM, *_SASL}
    for name in given:
        if name not in known:
            raise InvalidInputError(
                f"kafka.options: {name} has no counterpart in Kafka's Java client, which the matcher uses",
                hint=f"the matcher takes {', '.join(sorted(known))}",
            )
    made = {"bootstrap.servers": config.bootstrap}
    made |= {name: given[name] for name in _SAME if name in given}
    made |= {java: given[name] for name, java in _PEM.items() if name in given}
    if "ssl.truststore.location" in made or "ssl.truststore.certificates" in made:
        made["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.certificate.chain" in made:
        made["ssl.keystore.type"] = "PEM"
    return made | _sasl(given)


def _sasl(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms"))
    if mechanism is None:
        return {}
    if mechanism not in _MODULES:
        raise InvalidInputError(f"kafka.options: sasl.mechanism must be one of {', '.join(_MODULES)}")
    name, password = (_quoted(given.get(f"sasl.{part}", "")) for part in ("username", "password"))
    login = f"{_MODULES[mechanism]} required username={name} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# --- event columns --------------------------------------------------------------------------------
# The topic `events` as columns that the match reads, by Spark's source for Kafka.

RECORD: Final = ("key", "value", "headers")
"""The columns that hold a record as it is."""


def read_topic(spark: SparkSession, config: KafkaConfig, start: Mapping[int, int]) -> DataFrame:
    """A stream of the records of `events`, committed ones only.

    Args:
        spark: A session with the jars of `spark_jars`.
        config: Of the deployment.
        start: The first offset of every partition that is read.

    Returns:
        The columns of `match.kafka_columns.log_columns`, and the record's own: `key` BINARY, `value` BINARY, `headers`
        ARRAY of (`key` STRING, `value` BINARY). A record that is no event of ours has no `broker`, so that no filter
        takes it.

    Raises:
        InvalidInputError: No partition is named, or an option of the configuration has no counterpart in Java.
    """
    return log_columns(spark.readStream.format("kafka").options(**_options(config, start)).load(), RECORD)


def _options(config: KafkaConfig, start: Mapping[int, int]) -> dict[str, str]:
    if not start:
        raise InvalidInputError("a run needs at least one partition of the topic events")
    topic = config.topic("events")
    return {
        **{f"kafka.{name}": value for name, value in java_options(config).items()},
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic: sorted(start)}),
        "startingOffsets": _offsets(topic, start),
        "includeHeaders": "true",
    }


def _offsets(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


# --- match run ------------------------------------------------------------------------------------
# The driver writes a run's `hello` before the query starts, its first `passed` once every task has begun, and its
# `over` when it has ended. What lies between is written by the tasks (`kafka/OutboxWriter.java`).

_RUNS: Final = 2
"""Runs that stand beside each other: one in force, one that takes over."""
_POLL_S: Final = 0.02
"""Nothing tells when a task has begun."""
_DOING: Final = "the outbox cannot be written"


def check_slots(slots: int, partitions: int) -> None:
    """Checks that every task of two runs has a slot. Without one a task waits for ever, and its run is silent.

    Args:
        slots: Tasks that the session can run at once.
        partitions: Source partitions: each is a task of a run.

    Raises:
        InvalidInputError: There are too few.
    """
    needed = _RUNS * partitions
    if slots < needed:
        raise InvalidInputError(
            f"Spark has {slots} task slots, and two runs of {partitions} partitions beside each other need {needed}",
            hint=f"give Spark {needed} cores: spark.master local[{needed}], or more executors of the cluster",
        )


class OutboxDriver:
    """What a driver writes into the outbox: blocking, with one producer for all its runs.

    Args:
        config: Of the deployment.

    Raises:
        InvalidInputError: The Kafka library is missing, or an option is none of its own.
        KafkaUnreachableError: No broker answers.
        UnavailableError: There is no topic `outbox`.
    """

    def __init__(self, config: KafkaConfig) -> None:
        kafka = library()
        self._config = config
        self._topic = config.topic("outbox")
        self._faults = Faults()
        own = {
            **ACKNOWLEDGED,
            "linger.ms": 0,
            "message.timeout.ms": KAFKA_APPEND_S_MAX * 1e3,
        }
        self._producer: Producer = made_client(kafka.Producer, config, self._faults, own)
        self.partitions = partition_count(self._producer, self._topic, config, self._faults, _DOING)

    def hello(self, run: int, generation: int, start: Mapping[int, int]) -> None:
        """A run begins; `start` has the first offset of every source partition."""
        counts = {"partitions": len(start), "outbox_partitions": self.partitions}
        self._write(
            [
                encode_hello(run=run, generation=generation, partition=partition, start=offset, **counts)
                for partition, offset in start.items()
            ]
        )

    def began(self, run: int, generation: int, start: Mapping[int, int]) -> None:
        """Every task of a run has begun."""
        self._write(
            [
                encode_passed(run=run, generation=generation, partition=partition, passed=offset)
                for partition, offset in start.items()
            ]
        )

    def over(self, run: int, generation: int) -> None:
        """A run has ended."""
        self._write([encode_over(run=run, generation=generation)])

    def over_before(self, run: int) -> None:
        """Every run below this number has ended: they were of drivers before this one."""
        self._write([encode_over(run=run - 1, generation=0, and_lower=True)])

    def _write(self, headers: list[bytes]) -> None:
        """Writes each into every partition, and waits for all acknowledgements."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        for partition in range(self.partitions):
            for header in headers:
                self._producer.produce(
                    self._topic, partition=partition, headers=[(HEADER, header)], on_delivery=delivered
                )
        self._producer.flush()  # each ends by message.timeout.ms
        if failures:
            raise translated(self._faults.cause(failures[0]), _DOING, self._config)


class KafkaRun:
    """A started query on Kafka; made by `start_kafka_run`.

    Attributes:
        number: The run's number.
        generation: Version of the set of filters that it evaluates.
    """

    def __init__(self, query: SparkRun, driver: OutboxDriver) -> None:
        self.number = query.number
        self.generation = query.generation
        self._query = query
        self._driver = driver

    @property
    def alive(self) -> bool:
        """See `SparkRun.alive`."""
        return self._query.alive

    def failure(self) -> str:
        """See `SparkRun.failure`."""
        return self._query.failure()

    def stop(self) -> None:
        """Ends the query, and says so in the outbox.

        Raises:
            RunFailedError: Spark could not stop it.
            SparkGoneError: There is no JVM any more.
            KafkaUnreachableError: The outbox does not hear of it.
        """
        self._query.stop()
        self._driver.over(self.number, self.generation)


def start_kafka_run(
    spark: SparkSession,
    table: MatchTable,
    *,
    config: KafkaConfig,
    driver: OutboxDriver,
    start: Mapping[int, int],
    run: int,
    generation: int,
    scratch: Path,
    batch_s: int = REAL_TIME_BATCH_S,
) -> KafkaRun:
    """Starts a query; returns when every task of it has begun and the outbox knows that.

    Args:
        spark: From `start_session`, with the jars of `spark_jars`.
        table: The filters, built on `spark`.
        config: Of the deployment.
        driver: Writes beside the query.
        start: The first offset of every partition of `events`.
        run: Grows with every run, and from driver to driver.
        generation: Version of the filters in `table`.
        scratch: Directory for the checkpoint.
        batch_s: Length of a batch. At its end the tasks begin anew where they were.

    Raises:
        InvalidInputError: Spark has too few task slots, or an option has no counterpart in Java.
        RunFailedError: Spark refuses the query, or a task of it does not begin within `RUN_TASKS_S_MAX`.
        SparkGoneError: There is no JVM any more.
        KafkaUnreachableError: The outbox cannot be written.
    """
    check_slots(spark.sparkContext.defaultParallelism, len(start))
    driver.hello(run, generation, start)
    query: SparkRun | None = None
    try:
        query = start_outbox_query(
            spark,
            table,
            config=config,
            partitions=driver.partitions,
            start=start,
            run=run,
            generation=generation,
            scratch=scratch,
            batch_s=batch_s,
        )
        _wait_begun(query, len(start))
        driver.began(run, generation, start)
    except BaseException:
        if query is not None:
            query.stop()
        driver.over(run, generation)
        raise
    return KafkaRun(query, driver)


def start_outbox_query(
    spark: SparkSession,
    table: MatchTable,
    *,
    config: KafkaConfig,
    partitions: int,
    start: Mapping[int, int],
    run: int,
    generation: int,
    scratch: Path,
    batch_s: int,
) -> SparkRun:
    """Starts the query of a run, of which the outbox is told nothing; returns when Spark has planned it.

    Args:
        spark: From `start_session`, with the jars of `spark_jars`.
        table: The filters, built on `spark`.
        config: Of the deployment.
        partitions: How many partitions the topic `outbox` has.
        start: The first offset of every partition of `events`.
        run: Its number.
        generation: Version of the filters in `table`.
        scratch: Directory for the checkpoint.
        batch_s: Length of a batch.

    Raises:
        RunFailedError: Spark refuses the query.
        SparkGoneError: There is no JVM any more.
    """

    def sink(jvm: JVMView) -> JavaObject:
        return _writer(jvm, config, partitions, run, generation)

    return start_query(
        spark,
        lambda: sink_rows(match_events(read_topic(spark, config, start), table, SINK_IDENTITY, marks=True)),
        sink,
        run=run,
        generation=generation,
        scratch=scratch,
        batch_s=batch_s,
    )


SINK_IDENTITY: Final = (*EVENT_IDENTITY, "append_time_us", *RECORD)
"""What the sink is told of an event."""


def sink_rows(matches: DataFrame) -> DataFrame:
    """The rows that `OutboxWriter` takes: only an event's mark carries its record."""
    of_mark = [F.when(F.col("target") == MARK, F.col(name)).alias(name) for name in SINK_IDENTITY[2:]]
    return matches.select(*EVENT_IDENTITY, "target", "verdict", *of_mark)


def _writer(jvm: JVMView, config: KafkaConfig, partitions: int, run: int, generation: int) -> JavaObject:
    client = jvm.java.util.HashMap()
    for name, value in java_options(config).items():
        client.put(name, value)
    kafka = jvm.dev.headgate.connector.kafka
    settings = kafka.OutboxSettings(
        client,
        config.topic("outbox"),
        partitions,
        run,
        generation,
        KAFKA_RECORD_BYTES_MAX,
        OUTBOX_RECORD_TARGETS_MAX,
        LINK_ROWS_PER_EVENT_MAX,
        OUTBOX_WAITING_MAX,
        int(KAFKA_APPEND_S_MAX * 1_000),
        OUTBOX_PASSED_MS,
    )
    return kafka.OutboxWriter(settings)


def _wait_begun(query: SparkRun, tasks: int) -> None:
    deadline = time.monotonic() + RUN_TASKS_S_MAX
    while query.running_tasks() < tasks:
        if not query.alive:
            raise RunFailedError(f"run {query.number} did not start: {query.failure()}")
        if time.monotonic() > deadline:
            raise RunFailedError(
                f"run {query.number} has {query.running_tasks()} of {tasks} tasks after {RUN_TASKS_S_MAX:.0f} s",
                hint="other programs may use the cluster's cores",
            )
        time.sleep(_POLL_S)
