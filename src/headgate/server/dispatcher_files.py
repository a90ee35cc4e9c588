"""The dispatcher's files, open for as long as it works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial

from headgate.delivery.cursors import CursorStore
from headgate.delivery.events import LogEvents
from headgate.delivery.journal import Journal
from headgate.log.directory import LogDirectory, Partition
from headgate.log.ends import LogEnds
from headgate.log.files import FileOps
from headgate.log.writer import PartitionWriter
from headgate.outbox.reader import OutboxReader
from headgate.outbox.writer import OUTBOX_SCHEMA
from headgate.storage.files import DispatcherDirectory
from headgate.subscriptions.store import SubscriptionStore


@dataclass(frozen=True)
class DispatcherFiles:
    """What is open.

    Attributes:
        log: The event log.
        writer: Of the outbox.
        outbox: Reads it for targets that lag.
        cursors: Which deliveries have ended.
        subscriptions: Where the consumers of subscriptions stand.
        ends: Of the event log.
        events: Of the event log.
        journal: The attempts.
    """

    log: LogDirectory
    writer: PartitionWriter
    outbox: OutboxReader
    cursors: CursorStore
    subscriptions: SubscriptionStore
    ends: LogEnds
    events: LogEvents
    journal: Journal


@asynccontextmanager
async def dispatcher_files(
    own: DispatcherDirectory, log: LogDirectory, files: FileOps | None, clock_us: Callable[[], int]
) -> AsyncIterator[DispatcherFiles]:
    """Opens them; the outbox is recovered first.

    Args:
        own: The dispatcher's directory.
        log: The event log.
        files: The outbox's system calls; None for the real ones.
        clock_us: Microseconds since 1970 UTC.

    Raises:
        HeadgateError: One is damaged, or taken.
    """
    partition = Partition(own.outbox, log.on_corrupt)
    writer = await asyncio.to_thread(partial(PartitionWriter, files=files), partition, OUTBOX_SCHEMA)
    with (
        closing(writer),
        closing(OutboxReader(partition)) as backlog,
        closing(CursorStore(own.cursors)) as cursors,
        closing(SubscriptionStore(own.subscriptions)) as subscriptions,
        closing(LogEnds(log)) as ends,
        closing(LogEvents(log)) as events,
        closing(Journal(own.attempts, clock_us=clock_us)) as journal,
    ):
        yield DispatcherFiles(log, writer, backlog, cursors, subscriptions, ends, events, journal)
