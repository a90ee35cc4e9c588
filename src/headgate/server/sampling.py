"""The front's gauges, sampled once a second, away from the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from headgate.control.database import StoreUnavailableError
from headgate.control.store import Store
from headgate.limits import METRICS_WRITE_S
from headgate.log.writer import PartitionWriter
from headgate.observe import metrics
from headgate.server import ready
from headgate.settings import Settings

_log = structlog.get_logger(__name__)


async def sample(
    settings: Settings,
    store: Store,
    writers: Sequence[PartitionWriter],
    *,
    brokers: Callable[[], int],
    connections: Callable[[], int],
    on_sample: Callable[[], None],
) -> None:
    """Sets the front's gauges until it is cancelled.

    Args:
        settings: The server's settings.
        store: Objects and generations.
        writers: The event log's partitions.
        brokers: How many accept events.
        connections: How many clients are connected.
        on_sample: Called at every sample: the loop turns.
    """
    while True:
        on_sample()
        metrics.BROKERS.set(brokers())
        metrics.CONNECTIONS.set(connections())
        metrics.LOG_RECORDS.labels("events").set(sum(w.next_offset - w.first_offset for w in writers))
        try:
            await asyncio.to_thread(_sample_files, settings, store)
        except (OSError, StoreUnavailableError) as error:
            _log.debug("gauges not sampled", error=str(error))
        await asyncio.sleep(METRICS_WRITE_S)


def _sample_files(settings: Settings, store: Store) -> None:
    metrics.LOG_BYTES.labels("events").set(bytes_on_disk(settings))
    metrics.GENERATION_DESIRED.set(store.counters()["desired_generation"])
    for part, is_ready in ready.parts_ready(settings.run_directory).items():
        metrics.READY.labels(part).set(is_ready)


def bytes_on_disk(settings: Settings) -> int:
    """Bytes of the event log's segments."""
    return sum(path.stat().st_size for path in settings.log_directory.glob("*/*.seg"))
