"""What `match/matcher.py` needs of a deployment on Kafka: runs, the word of the dispatchers, and the filters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from pyspark.sql import SparkSession

from headgate.control.routing import RoutingTable
from headgate.errors import InvalidInputError, UnavailableError
from headgate.limits import RUN_WARM_EVENTS
from headgate.match.dataframe import MatchTable, TableBuilder
from headgate.match.driver_link import LinkAddress, Message
from headgate.match.errors import RunFailedError
from headgate.match.matcher import RoutingSource
from headgate.match.query import spark_errors
from headgate.store.config import KafkaConfig
from headgate.store.kafka.match_run import KafkaRun, OutboxDriver, check_slots, start_kafka_run
from headgate.store.kafka.outbox_places import OutboxPlaces
from headgate.store.kafka.run_registry import MatcherLeadLostError, RunRegistry

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
        """Tells the control process that leads, see `generations.py`.

        Raises:
            MatcherLeadLostError: Another matcher leads.
        """
        self._registry.in_force(generation)
