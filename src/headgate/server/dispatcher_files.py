"""The dispatcher's files, open for as long as it works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from headgate.delivery.cursors import CursorStore
from headgate.delivery.events import LogEvents
from headgate.delivery.journal import DIRECTORY, Journal
from headgate.log.ends import LogEnds
from headgate.log.files import FileOps
from headgate.log.writer import PartitionWriter
from headgate.outbox.reader import OutboxReader
from headgate.outbox.writer import OUTBOX_SCHEMA
from headgate.subscriptions.store import FILE as SUBSCRIPTIONS_FILE
from headgate.subscriptions.store import SubscriptionStore

_OUTBOX_PARTITION: Final = "0"


@dataclass(frozen=True)
class DispatcherFiles:
    """What is open.

    Attributes:
        writer: Of the outbox.
        outbox: Reads it for targets that lag.
        cursors: Which deliveries have ended.
        subscriptions: Where the consumers of subscriptions stand.
        ends: Of the event log.
        events: Of the event log.
        journal: The attempts.
    """

    writer: PartitionWriter
    outbox: OutboxReader
    cursors: CursorStore
    subscriptions: SubscriptionStore
    ends: LogEnds
    events: LogEvents
    journal: Journal


@asynccontextmanager
async def dispatcher_files(
    data: Path, files: FileOps | None, clock_us: Callable[[], int]
) -> AsyncIterator[DispatcherFiles]:
    """Opens them; the outbox is recovered first.

    Args:
        data: The data directory.
        files: The outbox's system calls; None for the real ones.
        clock_us: Microseconds since 1970 UTC.

    Raises:
        HeadgateError: One is damaged, or taken.
    """
    directory = data / "outbox" / _OUTBOX_PARTITION
    writer = await asyncio.to_thread(partial(PartitionWriter, files=files), directory, OUTBOX_SCHEMA)
    with (
        closing(writer),
        closing(OutboxReader(directory)) as outbox,
        closing(CursorStore(data / "dispatch.db")) as cursors,
        closing(SubscriptionStore(data / SUBSCRIPTIONS_FILE)) as subscriptions,
        closing(LogEnds(data / "log")) as ends,
        closing(LogEvents(data / "log")) as events,
        closing(Journal(data / DIRECTORY, clock_us=clock_us)) as journal,
    ):
        yield DispatcherFiles(writer, outbox, cursors, subscriptions, ends, events, journal)
