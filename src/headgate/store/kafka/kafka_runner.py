"""What `match/matcher.py` needs of a deployment on Kafka: runs, the word of the dispatchers, and the filters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.sql import SparkSession

from headgate.control.routing import RoutingTable
from headgate.errors import InvalidInputError, UnavailableError
from headgate.limits import RUN_WARM_EVENTS
from headgate.match.driver_link import LinkAddress, Message
from headgate.match.errors import RunFailedError
from headgate.match.matcher import RoutingSource
from headgate.match.query import spark_errors
from headgate.match.table import MatchTable, TableBuilder
from headgate.store.config import KafkaConfig
from headgate.store.kafka.client import Faults, committed_places, library, made_client, partition_count, watermarks
from headgate.store.kafka.match_run import KafkaRun, OutboxDriver, check_slots, start_kafka_run
from headgate.store.kafka.outbox_records import OutboxState, decode_state
from headgate.store.kafka.runs import MatcherLeadLostError, RunRegistry

if TYPE_CHECKING:
    from confluent_kafka import Consumer


# --- outbox places --------------------------------------------------------------------------------
# Where the next run must begin: from what the dispatchers have committed of the outbox.
#
# A commit of the group `dispatchers` has the takeover's state beside the offset, and with it W of each source
# partition. It is a lower bound of the W that the reader will have at the next record of the log: W never falls, and
# the log alone decides it. A run that starts at or below W is never refused; what it has below W does not count. So the
# committed W is enough to begin at, and dispatchers need not say it a second time. What a late commit costs is work,
# not correctness: the events between the committed W and the true one are matched once more.

_DOING: Final = "the place to match from cannot be found"


def lowest_watermarks(states: Sequence[OutboxState | None], sources: int) -> dict[int, int]:
    """The lowest W of all outbox partitions, for each source partition. Pure.

    Args:
        states: What is committed of each outbox partition; None where nothing is: there W may be any.
        sources: How many source partitions there are.

    Returns:
        By source partition; 0 where one is unknown.
    """

    def watermark(state: OutboxState | None, source: int) -> int:
        known = None if state is None else state.takeover.partitions.get(source)
        return 0 if known is None else known.watermark

    return {source: min((watermark(state, source) for state in states), default=0) for source in range(sources)}


class OutboxPlaces:
    """What the dispatchers have committed, seen from outside of their group; blocking, for one thread.

    Args:
        config: Of the deployment.

    Attributes:
        sources: How many partitions the topic `events` has.
        partitions: How many the topic `outbox` has.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
        UnavailableError: Kafka does not answer, or a topic is not there.
    """

    def __init__(self, config: KafkaConfig) -> None:
        kafka = library()
        self._config = config
        self._events, self._outbox = config.topic("events"), config.topic("outbox")
        self._faults = Faults()
        own = {"group.id": config.topic("dispatchers"), "enable.auto.commit": False}
        self._consumer: Consumer = made_client(kafka.Consumer, config, self._faults, own)
        try:
            self.sources = partition_count(self._consumer, self._events, config, self._faults, _DOING)
            self.partitions = partition_count(self._consumer, self._outbox, config, self._faults, _DOING)
        except BaseException:
            self.close()
            raise

    def starts(self, earlier: int = 0) -> dict[int, int]:
        """The first offset of each source partition for a run that begins now: the lowest W, if it is still there.

        Args:
            earlier: So many offsets before it, as far as they are still there.

        Raises:
            UnavailableError: Kafka does not answer.
            RecordError: A commit is none of ours.
        """
        lowest = lowest_watermarks(self._states(), self.sources)
        return {source: max(offset - earlier, self._bounds(source)[0]) for source, offset in lowest.items()}

    def newest(self, count: int) -> dict[int, int]:
        """Of each source partition an offset that so many offsets at most follow; empty where no partition has any.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        bounds = {source: self._bounds(source) for source in range(self.sources)}
        if all(first == end for first, end in bounds.values()):
            return {}
        return {source: max(first, end - count) for source, (first, end) in bounds.items()}

    def newest_run(self) -> int:
        """The highest number of a run that a committed state knows; 0 without one.

        Raises:
            UnavailableError: Kafka does not answer.
            RecordError: A commit is none of ours.
        """
        return max((state.newest_run for state in self._states() if state is not None), default=0)

    def _states(self) -> list[OutboxState | None]:
        kafka = library()
        places = [kafka.TopicPartition(self._outbox, number) for number in range(self.partitions)]
        found = committed_places(self._consumer, places, self._config, self._faults, _DOING)
        return [decode_state(place.metadata or "") if place.offset >= 0 else None for place in found]

    def _bounds(self, source: int) -> tuple[int, int]:
        """The first offset of a source partition, and its end."""
        place = library().TopicPartition(self._events, source)
        return watermarks(self._consumer, place, self._config, self._faults, _DOING)

    def close(self) -> None:
        """Gives everything back; idempotent."""
        with suppress(RuntimeError):  # closed already
            self._consumer.close()


# --- kafka runner ---------------------------------------------------------------------------------

_NO_ADDRESS: Final = LinkAddress((), b"")
"""Runs reach the dispatchers through the outbox."""
_log = structlog.get_logger(__name__)


class RegisteredRun:
    """A run that is in the topic `runs`.

    Attributes:
        number: The run's number.
        generation: Version of the set of filters that it evaluates.
    """

    def __init__(self, run: KafkaRun, registry: RunRegistry) -> None:
        self.number = run.number
        self.generation = run.generation
        self._run = run
        self._registry = registry

    @property
    def alive(self) -> bool:
        """See `SparkRun.alive`."""
        return self._run.alive

    def failure(self) -> str:
        """See `SparkRun.failure`."""
        return self._run.failure()

    def stop(self) -> None:
        """Ends the query, and says so in the topics `outbox` and `runs`.

        Raises:
            RunFailedError: Spark could not stop it, or Kafka does not hear of it.
            SparkGoneError: There is no JVM any more.
        """
        try:
            self._run.stop()
            self._registry.over(self.number, self.generation)
        except MatcherLeadLostError as error:
            _log.info(
                "the end of a run is not told: the next driver has told it", run=self.number, reason=error.message
            )
        except RunFailedError:
            raise
        except UnavailableError as error:
            raise RunFailedError(f"run {self.number} has ended unheard: {error.message}", hint=error.hint) from error


class KafkaTables:
    """Filters of this process as tables of Spark; kept from one leading to the next, so that a stand-by is warm.

    Args:
        spark: From `start_session`, with the jars of `spark_jars`.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._builder = TableBuilder(spark)

    def build(self, table: RoutingTable) -> MatchTable:
        """The filters of a routing table.

        Raises:
            RunFailedError: Spark refuses them.
            SparkGoneError: There is no JVM any more.
        """
        with spark_errors(f"the filters of generation {table.generation} cannot be used"):
            return self._builder.build((target.id, target.broker, target.filter) for target in table.targets)


class KafkaRunner:
    """Starts runs on Kafka (`matcher.Runner`), each with a number that the topic `runs` has taken first.

    Args:
        tables: Filters as tables.
        config: Of the deployment.
        registry: Of the driver that leads.
        driver: Writes into the outbox beside the queries.
        places: Where runs begin.
        scratch: Directory for checkpoints.
    """

    def __init__(
        self,
        tables: KafkaTables,
        config: KafkaConfig,
        registry: RunRegistry,
        driver: OutboxDriver,
        places: OutboxPlaces,
        scratch: Path,
    ) -> None:
        self._tables = tables
        self._config = config
        self._registry = registry
        self._driver = driver
        self._places = places
        self._scratch = scratch

    def ends(self) -> dict[int, int]:
        """Where a run beside another one begins: a log cannot be held up until the run's rows count, so not at its end.

        It begins somewhat earlier than it must. What it has of those events does not count, and by then it is warm.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        return self._places.starts(earlier=RUN_WARM_EVENTS)

    def start(self, table: RoutingTable, number: int, start: Mapping[int, int], link: LinkAddress) -> RegisteredRun:
        """Starts a run.

        Raises:
            RunFailedError: Spark refuses the filters or the query, or has too few task slots.
            SparkGoneError: There is no JVM any more.
            MatcherLeadLostError: Another driver leads.
            UnavailableError: The outbox cannot be written.
        """
        spark = self._tables.spark
        try:
            check_slots(spark.sparkContext.defaultParallelism, len(start))
        except InvalidInputError as error:  # executors may come back
            raise RunFailedError(error.message, hint=error.hint) from error
        filters = self._tables.build(table)
        self._registry.started(number, table.generation, start)
        run = start_kafka_run(
            spark,
            filters,
            config=self._config,
            driver=self._driver,
            start=start,
            run=number,
            generation=table.generation,
            scratch=self._scratch,
        )
        return RegisteredRun(run, self._registry)


class KafkaLink:
    """What the dispatchers say (`matcher.DispatcherLink`), by the topic `runs` and by their commits."""

    address = _NO_ADDRESS

    def __init__(self, registry: RunRegistry, places: OutboxPlaces) -> None:
        self._registry = registry
        self._places = places

    def resume(self) -> dict[int, int]:
        """Where a run begins when none is alive: the lowest W of all outbox partitions.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        return self._places.starts()

    def started(self, run: int, generation: int) -> None:
        """Nothing: the registry has told of the run before it began."""

    def receive(self, timeout_s: float) -> list[Message]:
        """Messages about runs, as soon as there are any; none after this time.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        try:
            return self._registry.news(timeout_s)
        except UnavailableError:
            time.sleep(timeout_s)  # the error may come at once: the loop must not spin
            raise

    def close(self) -> None:
        """Nothing: registry and places are those of the lead."""


class KafkaRouting:
    """The filters of a follower's cache; the generation in force goes to the topic `runs` (`matcher.RoutingSource`).

    Args:
        cache: The store over control.db, which only the control process that leads may write.
        registry: Of the driver that leads.
    """

    def __init__(self, cache: RoutingSource, registry: RunRegistry) -> None:
        self._cache = cache
        self._registry = registry

    def data_version(self) -> int:
        """See `RoutingSource.data_version`."""
        return self._cache.data_version()

    def desired_generation(self) -> int:
        """See `RoutingSource.desired_generation`."""
        return self._cache.desired_generation()

    def snapshot(self) -> RoutingTable:
        """See `RoutingSource.snapshot`."""
        return self._cache.snapshot()

    def set_active_generation(self, generation: int) -> None:
        """Tells the control process that leads, see `runs.py`.

        Raises:
            MatcherLeadLostError: Another matcher leads.
        """
        self._registry.in_force(generation)
