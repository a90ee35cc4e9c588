"""The matcher of a deployment on Kafka: it stands by with a warm Spark, and leads when it is elected.

    stands by   filters followed, tables built, rehearsals, no run            elected             -> leads
    leads       one `Matcher` loop; the numbers of runs are fenced            given away, or fenced -> stands by

Two processes that both believe to lead harm nothing but speed: the newer one has fenced the numbers of runs, and has
declared every earlier run over (`runs.py`). So a leader goes on when Kafka has not heard of it in time: perhaps only
the broker that counts its heartbeats has died. If somebody else leads, its runs are refused, and it learns from that.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from pyspark.sql import SparkSession

from headgate.backend.config import ClusterConfig, KafkaConfig, resolved
from headgate.backend.kafka.election import Election, GroupMembers, Loss
from headgate.backend.kafka.match_run import KafkaRuns, OutboxPlaces, OutboxQueries, check_slots
from headgate.backend.kafka.runs import MatcherLeadLostError, OutboxDriver, RunRegistry
from headgate.backend.kafka.spark_jars import spark_jars
from headgate.match.errors import SparkGoneError, SparkSlotsError
from headgate.match.generations import Matcher, RoutingSource
from headgate.match.requirements import connector_jar
from headgate.match.session import collect_garbage, start_session, stop_session, task_slots
from headgate.objects.kinds.routing import RoutingTable
from headgate_api import limits
from headgate_api.errors import HeadgateError, InvalidInputError, UnavailableError
from headgate_api.limits import ELECTION_SESSION_S, MATCH_RETRY_S_MIN, MATCHER_YIELD_S, RUN_TASKS_S_MAX

# --- rehearsal ------------------------------------------------------------------------------------
# The first run of a Spark application is slow: executors fetch jars and the filters' table, load and compile classes,
# meet Kafka for the first time. So a matcher that stands by rehearses: a run's query, in the same mode, with the same
# sink, over the newest events. It must write, and its number makes that harmless: nobody says `hello` for
# REHEARSAL_RUN, and readers of the outbox pass records of such a run over (docs/spec/outbox-topic.md).

REHEARSAL_RUN: Final = (1 << 63) - 1
"""The number of all rehearsals."""
_LOOK_S: Final = 0.1
"""Between two looks of a stand-by."""
_log = structlog.get_logger(__name__)


class Rehearsal:
    """Rehearses now and then; blocking, for the thread that would lead."""

    def __init__(
        self, queries: OutboxQueries, places: OutboxPlaces, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._queries = queries
        self._places = places
        self._clock = clock
        self._generation: int | None = None  # that was rehearsed
        self._looked_at = -limits.REHEARSAL_PAUSE_S

    def is_due(self, generation: int) -> bool:
        """Whether a set of filters is to be rehearsed now: none was, or another one REHEARSAL_PAUSE_S ago.

        Where there was no event yet, it is due sooner.
        """
        pause_s = limits.REHEARSAL_LOOK_S if self._generation is None else limits.REHEARSAL_PAUSE_S
        return generation != self._generation and self._clock() - self._looked_at >= pause_s

    def run(self, table: RoutingTable, is_called: Callable[[], bool]) -> bool:
        """Rehearses, unless this process is called away; returns whether events were there and went through."""
        self._looked_at = self._clock()
        start = self._places.newest(limits.REHEARSAL_EVENTS)
        if not start:
            return False
        query = self._queries.start(
            self._queries.build(table),
            start,
            self._places.partitions,
            run=REHEARSAL_RUN,
            generation=table.generation,
            batch_s=limits.REHEARSAL_BATCH_S,
        )
        began = self._clock()
        try:
            while not (done := query.has_ended_batch(limits.REHEARSAL_BATCHES - 1)):
                if is_called() or not query.alive or self._clock() - began > limits.REHEARSAL_S_MAX:
                    break
                time.sleep(_LOOK_S)
            failure = query.failure()
        finally:
            query.stop()
        took_s = round(self._clock() - began, 3)
        _log.info("rehearsed", generation=table.generation, took_s=took_s, done=done, failure=failure)
        if done:
            self._generation = table.generation
        return done


# --- matcher --------------------------------------------------------------------------------------

GROUP: Final = "matcher"
"""The consumer group of the election, and the `transactional.id`; with the topic prefix."""
STANDS_BY: Final = "stands by: another matcher leads"
"""The note of a matcher that does not lead begins so."""
REHEARSED: Final = "has rehearsed"
"""A part of the note of one that is warm."""


@dataclass(frozen=True)
class MatcherHooks:
    """Whom a matcher tells, as `Matcher` does; but `on_ready` is called with True also when this process stands by."""

    on_ready: Callable[[bool], None] = lambda _: None
    on_note: Callable[[str], None] = lambda _: None
    on_step: Callable[[], None] = lambda: None


class KafkaMatcher:
    """Stands by and leads until it is told to stop; `run` is for the main thread.

    Another thread follows the topic for the cache that `filters` reads. The group of the matchers knows it by `name`,
    if that is not empty.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: KafkaConfig,
        filters: RoutingSource,
        scratch: Path,
        hooks: MatcherHooks | None = None,
        name: str = "",
    ) -> None:
        self._config = config
        self._filters = filters
        self._hooks = hooks or MatcherHooks()
        self._name = name
        self._queries = OutboxQueries(spark, config, scratch)
        self._ended = threading.Event()  # of the loop that runs now
        self._problem: Exception | None = None  # of the election
        self._seen: int | None = None  # generation of the tables

    def run(self, stop: threading.Event) -> None:
        """Takes part in the election, and matches while it leads. Raises SparkSlotsError, SparkGoneError."""
        with closing(OutboxPlaces(self._config)) as places:
            wait_slots(self._queries.spark, places.sources, stop)
            rehearsal = Rehearsal(self._queries, places)
            with self._election() as election:

                def is_called() -> bool:
                    self._hooks.on_step()
                    return election.leads or stop.is_set()

                while not stop.is_set():
                    if election.leads:
                        self._match(election, places, stop)
                    else:
                        self._hooks.on_step()
                        if election.is_decided:  # to warm up takes a minute on a busy cluster: not before leading
                            self._stand_by(rehearsal, is_called)
                        stop.wait(_LOOK_S)
                    if self._problem is not None:
                        raise self._problem

    @contextmanager
    def _election(self) -> Iterator[Election]:
        """Takes part in a thread, which ends with the block."""

        def lost(loss: Loss) -> None:
            if loss is not Loss.SILENT:
                self._ended.set()

        election = Election(
            self._config, topic="runs", group=GROUP, on_gained=lambda: None, on_lost=lost, name=self._name
        )
        left = threading.Event()

        def take_part() -> None:
            try:
                election.run(left)
            except Exception as error:  # noqa: BLE001 - `run` raises it
                self._problem = error
                self._ended.set()

        thread = threading.Thread(target=take_part, name="election")
        thread.start()
        try:
            yield election
        finally:
            left.set()
            thread.join()

    # --- standing by --------------------------------------------------------------------------------

    def _stand_by(self, rehearsal: Rehearsal, is_called: Callable[[], bool]) -> None:
        try:
            generation = self._filters.desired_generation()
            if generation != self._seen:
                self._seen = generation
                self._hooks.on_note(STANDS_BY)
                self._queries.build(self._filters.snapshot())
            elif rehearsal.is_due(generation):
                if rehearsal.run(self._filters.snapshot(), is_called):
                    self._hooks.on_note(f"{STANDS_BY}; {REHEARSED} generation {generation}")
            else:
                return
        except UnavailableError as error:
            _log.warning("the stand-by is not warm", reason=error.message)
        self._hooks.on_ready(True)

    # --- leading --------------------------------------------------------------------------------------

    def _match(self, election: Election, places: OutboxPlaces, stop: threading.Event) -> None:
        """One lead, to its end; what other processes could mend is waited for."""
        ended = self._ended = threading.Event()
        if not election.leads:  # lost meanwhile: nobody sets this one
            return

        self._hooks.on_ready(False)
        self._hooks.on_note("leads")

        def on_step() -> None:
            self._hooks.on_step()
            if stop.is_set():
                ended.set()

        try:
            driver = OutboxDriver(self._config)
            with closing(RunRegistry(self._config, driver.partitions)) as registry:
                first_run = max(registry.newest_run, places.newest_run()) + 1
                driver.over_before(first_run)
                _log.info("drives the match", first_run=first_run)
                runs = KafkaRuns(self._queries, registry, driver, places)
                Matcher(
                    self._filters,
                    runs,
                    lambda: runs,
                    on_active=registry.in_force,  # told to the control process that leads, see `runs.py`
                    on_ready=self._hooks.on_ready,
                    on_note=self._hooks.on_note,
                    on_step=on_step,
                    on_settled=partial(collect_garbage, self._queries.spark),
                    first_run=first_run,
                ).run(ended)
        except MatcherLeadLostError as error:
            _log.warning("drives the match no more", reason=error.message, hint=error.hint)
            self._wait(ended, stop, ELECTION_SESSION_S)  # the election says so soon, if another one leads
        except UnavailableError as error:
            self._hooks.on_note(f"waits: {error.message}")
            _log.warning("the match cannot be driven now", reason=error.message, hint=error.hint)
            self._wait(ended, stop, MATCH_RETRY_S_MIN)
        self._seen = None

    def _wait(self, ended: threading.Event, stop: threading.Event, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ended.is_set() and not stop.is_set() and time.monotonic() < deadline:
            self._hooks.on_step()
            ended.wait(_LOOK_S)


def serve_kafka(
    *,
    config: ClusterConfig,
    filters: RoutingSource,
    scratch: Path,
    stop: threading.Event,
    hooks: MatcherHooks,
    on_started: Callable[[], None],
    heap_mib: int,
    name: str = "",
) -> None:
    """Stands by and matches until `stop` is set: the whole life of a matcher process.

    `on_started` is called once, when Spark has started: from then on `stop` is looked at. `name` is the same after a
    restart. Raises SparkMissingError, InvalidInputError when an option has no counterpart in Java, and what
    `KafkaMatcher.run` raises.
    """
    shutil.rmtree(scratch, ignore_errors=True)  # a killed process before this one cleaned nothing up
    if name and is_followed(config.kafka, name):
        hooks.on_note("lets another matcher take over first")
        stop.wait(MATCHER_YIELD_S)
    spark = start_session(
        jar=connector_jar(),
        threads=task_slots(config.kafka.topics.events.partitions),
        scratch=scratch,
        heap_mib=heap_mib,
        more_jars=spark_jars(),
        master=config.spark.master,
        options=resolved(config.spark.options),
    )
    on_started()
    _log.info("Spark has started", version=spark.version, master=spark.sparkContext.master)
    try:
        KafkaMatcher(spark, config.kafka, filters, scratch, hooks, name).run(stop)
    except SparkGoneError:
        if not stop.is_set():
            raise  # else a signal to all processes has ended the JVM as well
    finally:
        stop_session(spark, scratch)


def is_followed(config: KafkaConfig, name: str) -> bool:
    """Whether a process of this name has died as a member of the matchers' group, in which another one is, too.

    False where Kafka does not say. This process, of the same name, is no member yet.
    """
    try:
        names = set(GroupMembers(config, GROUP).names())
    except HeadgateError:
        return False
    return name in names and len(names) > 1


def wait_slots(spark: SparkSession, partitions: int, stop: threading.Event) -> None:
    """Waits until Spark has a task slot for every task: executors of a cluster come one after the other.

    Raises SparkSlotsError when there are too few, at once where there is no cluster, else after RUN_TASKS_S_MAX.
    """
    is_local = str(spark.sparkContext.master).startswith("local")
    deadline = time.monotonic() + (0.0 if is_local else RUN_TASKS_S_MAX)
    while True:
        try:
            check_slots(spark.sparkContext.defaultParallelism, partitions)
            return
        except InvalidInputError as error:
            if time.monotonic() >= deadline or stop.wait(_LOOK_S):
                raise SparkSlotsError(error.message, hint=error.hint) from error
