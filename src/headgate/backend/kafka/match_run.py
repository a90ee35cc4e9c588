"""Runs on Kafka: Spark queries from the topic `events` to the topic `outbox` (docs/spec/outbox-topic.md)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
from py4j.java_gateway import JavaObject, JVMView
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.backend.config import KafkaConfig, resolved
from headgate.backend.kafka.client import TopicConsumer, library
from headgate.backend.kafka.outbox_records import OutboxState, decode_state
from headgate.backend.kafka.runs import MatcherLeadLostError, OutboxDriver, RunRegistry
from headgate.match.dataframe import EVENT_IDENTITY, match_events
from headgate.match.driver_link import LinkAddress, Message
from headgate.match.errors import RunFailedError
from headgate.match.kafka_columns import log_columns
from headgate.match.query import SparkRun, spark_errors, start_query
from headgate.match.table import MARK, MatchTable, TableBuilder
from headgate.objects.kinds.routing import RoutingTable
from headgate_api.errors import HeadgateError, InvalidInputError, UnavailableError
from headgate_api.limits import (
    KAFKA_APPEND_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
    LINK_ROWS_PER_EVENT_MAX,
    OUTBOX_PASSED_MS,
    OUTBOX_RECORD_TARGETS_MAX,
    OUTBOX_WAITING_MAX,
    REAL_TIME_BATCH_S,
    RUN_TASKS_S_MAX,
    RUN_WARM_EVENTS,
)

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

    Raises InvalidInputError when an option is none that both clients have, or a secret's file cannot be read.
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

_RECORD: Final = ("key", "value", "headers")
"""The columns that hold a record as it is: BINARY, BINARY, ARRAY of (`key` STRING, `value` BINARY)."""
_SINK_IDENTITY: Final = (*EVENT_IDENTITY, "append_time_us", *_RECORD)
"""What the sink is told of an event."""


def _read_topic(spark: SparkSession, config: KafkaConfig, start: Mapping[int, int]) -> DataFrame:
    """A stream of the committed records of `events`, from the first offset of every partition that is read.

    It has the columns of `match.kafka_columns.log_columns`, and the record's own. A record that is no event of ours has
    no `broker`, so that no filter takes it.
    """
    if not start:
        raise InvalidInputError("a run needs at least one partition of the topic events")
    topic = config.topic("events")
    options = {
        **{f"kafka.{name}": value for name, value in java_options(config).items()},
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic: sorted(start)}),
        "startingOffsets": json.dumps({topic: {str(partition): offset for partition, offset in start.items()}}),
        "includeHeaders": "true",
    }
    return log_columns(spark.readStream.format("kafka").options(**options).load(), _RECORD)


# --- match run ------------------------------------------------------------------------------------

_RUNS: Final = 2
"""Runs that stand beside each other: one in force, one that takes over."""
_POLL_S: Final = 0.02
"""Nothing tells when a task has begun."""
_log = structlog.get_logger(__name__)


def check_slots(slots: int, partitions: int) -> None:
    """InvalidInputError unless two runs have a slot for each source partition: without one a task waits for ever."""
    needed = _RUNS * partitions
    if slots < needed:
        raise InvalidInputError(
            f"Spark has {slots} task slots, and two runs of {partitions} partitions beside each other need {needed}",
            hint=f"give Spark {needed} cores: spark.master local[{needed}], or more executors of the cluster",
        )


class OutboxQueries:
    """The queries of this process; its tables are kept from one leading to the next, so that a stand-by is warm."""

    def __init__(self, spark: SparkSession, config: KafkaConfig, scratch: Path) -> None:
        self.spark = spark
        self._config = config
        self._scratch = scratch
        self._tables = TableBuilder(spark)
        self._routed: RoutingTable | None = None

    def build(self, table: RoutingTable) -> MatchTable:
        """The filters of a routing table as a table of Spark; raises RunFailedError, SparkGoneError."""
        with spark_errors(f"the filters of generation {table.generation} cannot be used"):
            changed, self._routed = table.changed_since(self._routed), table
            return self._tables.build(table.targets, table.generation, changed=changed)

    def start(
        self,
        filters: MatchTable,
        start: Mapping[int, int],
        partitions: int,
        *,
        run: int,
        generation: int,
        batch_s: int = REAL_TIME_BATCH_S,
    ) -> SparkRun:
        """Starts a query of which the outbox is told nothing; returns when Spark has planned it.

        `start` has the first offset of every partition of `events`, one at least. At the end of a batch the tasks begin
        anew where they were. Raises RunFailedError, SparkGoneError, and as `java_options`.
        """

        def rows() -> DataFrame:
            events = _read_topic(self.spark, self._config, start)
            matches = match_events(events, filters, _SINK_IDENTITY, marks=True)
            # Only an event's mark carries its record.
            of_mark = [F.when(F.col("target") == MARK, F.col(name)).alias(name) for name in _SINK_IDENTITY[2:]]
            return matches.select(*EVENT_IDENTITY, "target", "verdict", *of_mark)

        return start_query(
            self.spark,
            rows,
            lambda jvm: _writer(jvm, self._config, partitions, run, generation),
            run=run,
            generation=generation,
            scratch=self._scratch,
            batch_s=batch_s,
        )


class KafkaRun:
    """A started query of which the outbox knows; made by `start_kafka_run`."""

    def __init__(self, query: SparkRun, driver: OutboxDriver, registry: RunRegistry | None) -> None:
        self.number = query.number
        self.generation = query.generation
        self.failure = query.failure
        self._query = query
        self._driver = driver
        self._registry = registry

    @property
    def alive(self) -> bool:
        return self._query.alive

    def stop(self) -> None:
        """Ends the query, and says so in the topics `outbox` and `runs`; RunFailedError when Spark or Kafka refuses."""
        self._query.stop()
        try:
            self._driver.over(self.number, self.generation)
            if self._registry is not None:
                self._registry.over(self.number, self.generation)
        except MatcherLeadLostError as error:
            what = "the end of a run is not told: the next driver has told it"
            _log.info(what, run=self.number, reason=error.message)
        except UnavailableError as error:
            raise RunFailedError(f"run {self.number} has ended unheard: {error.message}", hint=error.hint) from error


def start_kafka_run(
    queries: OutboxQueries,
    filters: MatchTable,
    start: Mapping[int, int],
    driver: OutboxDriver,
    registry: RunRegistry | None = None,
    *,
    run: int,
    generation: int,
) -> KafkaRun:
    """Starts a query; returns when every task of it has begun and the outbox knows that.

    `registry` hears of its end. `run` grows with every run, and from driver to driver. Raises as `OutboxQueries.start`,
    RunFailedError also when a task does not begin within RUN_TASKS_S_MAX, and KafkaUnreachableError.
    """
    driver.hello(run, generation, start)
    query: SparkRun | None = None
    try:
        query = queries.start(filters, start, driver.partitions, run=run, generation=generation)
        _wait_begun(query, len(start))
        driver.passed(run, generation, start)
    except BaseException:
        try:
            if query is not None:
                query.stop()
            driver.over(run, generation)
        except HeadgateError as error:  # must not take the place of why it did not start
            _log.warning("the end of a run is not told", run=run, reason=error.message)
        raise
    return KafkaRun(query, driver, registry)


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


# --- outbox places --------------------------------------------------------------------------------
# The next run begins at what the dispatchers have committed of the outbox.
#
# A commit of the group `dispatchers` has the takeover's state beside the offset, and with it W of each source
# partition: a lower bound of the true W, which never falls. A run that starts at or below W is never refused; what it
# has below W does not count. So a late commit costs work alone: events from it to the true W are matched once more.


def lowest_watermarks(states: Sequence[OutboxState | None], sources: int) -> dict[int, int]:
    """The lowest W of all outbox partitions, by source partition; 0 where it is unknown or nothing is committed."""

    def watermark(state: OutboxState | None, source: int) -> int:
        known = None if state is None else state.takeover.partitions.get(source)
        return 0 if known is None else known.watermark

    return {source: min((watermark(state, source) for state in states), default=0) for source in range(sources)}


class OutboxPlaces:
    """What the dispatchers have committed, seen from outside of their group; blocking, for one thread.

    `sources` and `partitions` count the partitions of the topics `events` and `outbox`.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._events, self._outbox = config.topic("events"), config.topic("outbox")
        own = {"group.id": config.topic("dispatchers")}
        self._consumer = TopicConsumer(config, "the place to match from cannot be found", own)
        try:
            self.sources = self._consumer.partition_count(self._events)
            self.partitions = self._consumer.partition_count(self._outbox)
        except BaseException:
            self.close()
            raise

    def starts(self, earlier: int = 0) -> dict[int, int]:
        """Where a run that begins now starts in each source partition: the lowest W, or so much `earlier`, if kept."""
        lowest = lowest_watermarks(self._states(), self.sources)
        return {source: max(offset - earlier, self._bounds(source)[0]) for source, offset in lowest.items()}

    def newest(self, count: int) -> dict[int, int]:
        """Of each source partition an offset that `count` offsets at most follow; empty where no partition has any."""
        bounds = {source: self._bounds(source) for source in range(self.sources)}
        if all(first == end for first, end in bounds.values()):
            return {}
        return {source: max(first, end - count) for source, (first, end) in bounds.items()}

    def newest_run(self) -> int:
        """The highest number of a run that a committed state knows; 0 without one."""
        return max((state.newest_run for state in self._states() if state is not None), default=0)

    def _states(self) -> list[OutboxState | None]:
        places = [library().TopicPartition(self._outbox, number) for number in range(self.partitions)]
        found = self._consumer.commits(places)
        return [decode_state(place.metadata or "") if place.offset >= 0 else None for place in found]

    def _bounds(self, source: int) -> tuple[int, int]:
        return self._consumer.bounds(self._events, source)

    def close(self) -> None:
        """Gives everything back; idempotent."""
        self._consumer.close()


# --- kafka runs -----------------------------------------------------------------------------------


class KafkaRuns:
    """What a `Matcher` that leads needs of Kafka: `matcher.Runner` and, by topics instead of a link, `DispatcherLink`.

    Each run has a number that the topic `runs` has taken first. What dispatchers say is in that topic, and in what they
    commit.
    """

    address = LinkAddress((), b"")
    """Runs reach the dispatchers through the outbox."""

    def __init__(
        self, queries: OutboxQueries, registry: RunRegistry, driver: OutboxDriver, places: OutboxPlaces
    ) -> None:
        self._queries = queries
        self._registry = registry
        self._driver = driver
        self._places = places

    def resume(self) -> dict[int, int]:
        return self._places.starts()

    def ends(self) -> dict[int, int]:
        """Where a run beside another one begins: a log cannot be held up until the run's rows count, so not at its end.

        It begins somewhat earlier than it must. What it has of those events does not count, and by then it is warm.
        """
        return self._places.starts(earlier=RUN_WARM_EVENTS)

    def start(self, table: RoutingTable, number: int, start: Mapping[int, int], _link: LinkAddress) -> KafkaRun:
        """Starts a run where there are task slots for two; where not, or where Spark refuses, RunFailedError.

        So does a table that is older than what another leader brought into force: events were promised to its filters.
        """
        if table.generation < self._registry.generation:
            raise RunFailedError(
                f"generation {self._registry.generation} is in force, and this server's objects are of"
                f" generation {table.generation}",
                hint="its cache of the topic objects is behind, and will follow",
            )
        try:
            check_slots(self._queries.spark.sparkContext.defaultParallelism, len(start))
        except InvalidInputError as error:  # executors may come back
            raise RunFailedError(error.message, hint=error.hint) from error
        filters, generation = self._queries.build(table), table.generation
        self._registry.started(number, generation, start)
        return start_kafka_run(
            self._queries, filters, start, self._driver, self._registry, run=number, generation=generation
        )

    def change(self, _number: int, _table: RoutingTable) -> bool:
        """Never: Kafka's source has no place between two events at which a task could go on to other filters."""
        return False

    def started(self, run: int, generation: int) -> None:
        """Nothing: the registry has told of the run before it began."""

    def receive(self, timeout_s: float) -> list[Message]:
        try:
            return self._registry.news(timeout_s)
        except UnavailableError:
            time.sleep(timeout_s)  # the error may come at once: the loop must not spin
            raise

    def close(self) -> None:
        """Nothing: registry and places are those of the lead."""
