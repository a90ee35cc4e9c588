"""The dispatcher's gauges: sampled once a second, so that a delivery pays for none of them."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable
from pathlib import Path

import structlog

from headgate.delivery.events import Events
from headgate.delivery.scheduler import Scheduler
from headgate.filter.cel.evaluate import program
from headgate.log.writer import PartitionWriter
from headgate.observe import metrics
from headgate.observe.logs import Recurring
from headgate_api import limits
from headgate_api.errors import HeadgateError

_log = structlog.get_logger(__name__)


class Gauges:
    """Samples until it is cancelled."""

    def __init__(
        self,
        scheduler: Scheduler,
        events: Events,
        outbox: PartitionWriter,
        *,
        clock_us: Callable[[], int],
    ) -> None:
        self._scheduler = scheduler
        self._events = events
        self._outbox = outbox
        self._clock_us = clock_us

    async def run(self) -> None:
        samples = Recurring(_log, "gauges cannot be sampled", OSError, HeadgateError)
        while True:
            with samples.attempt():
                await self.sample()
            await asyncio.sleep(limits.METRICS_WRITE_S)

    async def sample(self) -> None:
        scheduler = self._scheduler
        metrics.BACKLOG.set(scheduler.live_count + scheduler.rows_waiting)
        metrics.TARGETS_LAGGING.set(sum(state.lag is not None for state in scheduler.behind))
        for slow, count in scheduler.attempts_taken.items():
            metrics.ATTEMPTS.labels("slow" if slow else "healthy").set(count)
        metrics.CIRCUITS_OPEN.set(sum(state.subscriber.circuit.opened for state in scheduler.behind))
        await self._sample_triggers()
        cache = program.cache_info()
        for name, value in (("hits", cache.hits), ("misses", cache.misses), ("size", cache.currsize)):
            metrics.FILTER_CACHE.labels(name).set(value)
        metrics.LOG_RECORDS.labels("outbox").set(self._outbox.next_offset - self._outbox.first_offset)
        metrics.LOG_BYTES.labels("outbox").set(await asyncio.to_thread(_bytes, self._outbox.directory))

    async def _sample_triggers(self) -> None:
        """Backlog and age of the triggers that are furthest behind."""
        worst = heapq.nlargest(
            limits.METRICS_TRIGGERS_MAX,
            self._scheduler.behind,
            key=lambda state: (state.lag is not None, len(state.deliveries.live)),
        )
        metrics.TRIGGER_BACKLOG.replace({state.target.name: len(state.deliveries.live) for state in worst})
        oldest = [(state.target.name, delivery) for state in worst if (delivery := state.oldest) is not None]
        ages: dict[str, float] = {}
        for name, delivery in oldest:
            try:
                event = await self._events.load(delivery.partition, delivery.offset)
            except HeadgateError:  # gone or damaged: nobody can tell its age
                continue
            ages[name] = (self._clock_us() - event.append_time_us) / 1e6
        metrics.TRIGGER_OLDEST.replace(ages)


def _bytes(directory: Path) -> int:
    found = 0
    for path in directory.glob("*.seg"):
        with contextlib.suppress(FileNotFoundError):  # retention has removed it since
            found += path.stat().st_size
    return found
