"""The matcher process: Spark, the driver connection and the loop, put together."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog
from pyspark.sql import SparkSession

from headgate.log.directory import LogDirectory
from headgate.log.reader import end_offsets
from headgate.match.dataframe import match_events
from headgate.match.driver_link import DriverLinks, LinkAddress
from headgate.match.errors import SparkGoneError
from headgate.match.generations import Matcher, fresh_run_number
from headgate.match.query import SparkRun, spark_errors, start_run
from headgate.match.requirements import connector_jar
from headgate.match.session import collect_garbage, start_session, stop_session, task_slots
from headgate.match.table import TableBuilder
from headgate.objects.kinds.routing import RoutingTable
from headgate.objects.store.store import Store
from headgate_api.limits import JVM_HEAP_MIB

_log = structlog.get_logger(__name__)


class SparkRunner:
    """Starts runs of routing tables over the partitions from 0 on, which look for events at sockets in `wakeups`."""

    def __init__(
        self, spark: SparkSession, log: LogDirectory, partitions: int, scratch: Path, wakeups: Path | None = None
    ) -> None:
        self._spark = spark
        self._tables = TableBuilder(spark)
        self._log = log
        self._partitions = range(partitions)
        self._scratch = scratch
        self._wakeups = wakeups
        self._routed: RoutingTable | None = None
        """What the last table was made of."""
        self._last: int | None = None
        """The run that has the last table."""

    def ends(self) -> dict[int, int]:
        return end_offsets(self._log, self._partitions)

    def start(self, table: RoutingTable, number: int, start: Mapping[int, int], link: LinkAddress) -> SparkRun:
        """Start a run; a partition that `start` does not name starts at 0. Raises RunFailedError, SparkGoneError."""
        self._last = None
        with spark_errors(f"run {number} did not start"):
            changed, self._routed = table.changed_since(self._routed), table
            filters = self._tables.build(table.targets, table.generation, changed=changed)
        run = start_run(
            self._spark,
            lambda events: match_events(events, filters),
            log=self._log,
            start={partition: start.get(partition, 0) for partition in self._partitions},
            run=number,
            generation=table.generation,
            link=link,
            scratch=self._scratch,
            wakeups=self._wakeups,
            table=filters.name,
        )
        self._last = number
        return run

    def change(self, number: int, table: RoutingTable) -> bool:
        """Have a run go on to a table's filters; False when it is not the last one, or its plan lacks something."""
        if number != self._last:
            return False
        with spark_errors(f"run {number} does not go on to generation {table.generation}"):
            changed, self._routed = table.changed_since(self._routed), table
            return self._tables.offer(table.targets, table.generation, changed=changed)


def serve(
    *,
    routing: Store,
    log: LogDirectory,
    partitions: int,
    dispatchers: int,
    run_directory: Path,
    token: bytes,
    stop: threading.Event,
    on_ready: Callable[[bool], None],
    on_note: Callable[[str], None],
    on_step: Callable[[], None],
    on_started: Callable[[], None] = lambda: None,
    heap_mib: int = JVM_HEAP_MIB,
) -> None:
    """Match until `stop` is set: the whole life of the matcher process.

    In `run_directory` the dispatchers publish their addresses, the log's writers tell of new events, and Spark has its
    temporary files. `on_started` is called once, when Spark has started: from then on `stop` is looked at. The other
    callbacks are those of `Matcher`. Raises SparkMissingError; after SparkGoneError a new process may do better.
    """
    scratch = run_directory / "spark"
    shutil.rmtree(scratch, ignore_errors=True)  # a killed process before this one cleaned nothing up
    spark = start_session(jar=connector_jar(), threads=task_slots(partitions), scratch=scratch, heap_mib=heap_mib)
    on_started()
    _log.info("Spark has started", version=spark.version)
    on_note("Spark has started, no query in force yet")
    commits = routing.commits()
    matcher = Matcher(
        routing,
        SparkRunner(spark, log, partitions, scratch, run_directory),
        partial(DriverLinks.published, run_directory, token, dispatchers, commits),
        on_active=routing.counters.activate,
        on_ready=on_ready,
        on_note=on_note,
        on_step=on_step,
        on_settled=partial(collect_garbage, spark),
        first_run=fresh_run_number(),
    )
    try:
        matcher.run(stop)
    except SparkGoneError:
        if not stop.is_set():
            raise  # else a signal to all processes has ended the JVM as well
    finally:
        commits.close()
        stop_session(spark, scratch)
