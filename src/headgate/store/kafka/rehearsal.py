"""The rehearsal of a matcher that stands by: a run over the newest events, of which nothing counts.

The first run of a Spark application is slow where it has done nothing yet: executors fetch jars and the filters' table,
load and compile classes, meet Kafka for the first time. A rehearsal is the same query as a run's, in the same mode,
with the same sink, over a sample of events that the topic has. So it must write, and its number makes that harmless:
nobody says `hello` for REHEARSAL_RUN, and readers of the outbox pass records of such a run over
(docs/spec/outbox-topic.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from headgate import limits
from headgate.control.routing import RoutingTable
from headgate.store.config import KafkaConfig
from headgate.store.kafka.kafka_runner import KafkaTables
from headgate.store.kafka.match_run import start_outbox_query
from headgate.store.kafka.outbox_places import OutboxPlaces

REHEARSAL_RUN: Final = (1 << 63) - 1
"""The number of all rehearsals."""
_LOOK_S: Final = 0.1
_log = structlog.get_logger(__name__)


class Rehearsal:
    """Rehearses now and then; blocking, for the thread that would lead.

    Args:
        tables: Filters as tables.
        config: Of the deployment.
        places: Where events are.
        scratch: Directory for checkpoints.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        tables: KafkaTables,
        config: KafkaConfig,
        places: OutboxPlaces,
        scratch: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tables = tables
        self._config = config
        self._places = places
        self._scratch = scratch
        self._clock = clock
        self._generation: int | None = None  # that was rehearsed
        self._looked_at = -limits.REHEARSAL_PAUSE_S

    def is_due(self, generation: int) -> bool:
        """Whether a set of filters is to be rehearsed now: none was, or another one REHEARSAL_PAUSE_S ago.

        Where there was no event yet, it is asked for sooner.
        """
        pause_s = limits.REHEARSAL_LOOK_S if self._generation is None else limits.REHEARSAL_PAUSE_S
        return generation != self._generation and self._clock() - self._looked_at >= pause_s

    def run(self, table: RoutingTable, is_called: Callable[[], bool]) -> bool:
        """Rehearses with these filters; returns whether events were there and went through.

        Args:
            table: The filters.
            is_called: Whether this process is needed for something else: then it breaks off.

        Raises:
            RunFailedError: Spark refuses.
            SparkGoneError: There is no JVM any more.
            UnavailableError: Kafka does not answer.
        """
        self._looked_at = self._clock()
        start = self._places.newest(limits.REHEARSAL_EVENTS)
        if not start:
            return False
        filters = self._tables.build(table)
        query = start_outbox_query(
            self._tables.spark,
            filters,
            config=self._config,
            partitions=self._places.partitions,
            start=start,
            run=REHEARSAL_RUN,
            generation=table.generation,
            scratch=self._scratch,
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
