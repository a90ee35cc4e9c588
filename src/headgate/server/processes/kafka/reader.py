"""The reader of a server in a deployment on Kafka: the same API from the topic `events`; each reads all partitions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Final

from headgate.backend.kafka.objects import open_cache
from headgate.backend.kafka.scan import KafkaLog
from headgate.server import child
from headgate.server.processes import reader
from headgate.server.processes.reader import ReaderStore
from headgate_api.limits import READERS_MAX

_READER_FILES: Final = 2_048
"""The database, gRPC's connections, those of KAFKA_SCAN_CONSUMERS_MAX to every broker, the event loop's own."""


def run(context: child.Context) -> None:
    """Answers until told to stop."""
    reader.run(context, _reader_store)


@contextlib.asynccontextmanager
async def _reader_store(context: child.Context, stop: asyncio.Event) -> AsyncIterator[ReaderStore]:
    child.raise_file_limit(READERS_MAX + _READER_FILES)
    objects = await asyncio.to_thread(open_cache, context.settings.data / "control.db", stop.is_set)
    with closing(objects):
        # Nobody can take a record out of a topic: one that is none of ours must not end every search for ever.
        yield ReaderStore(objects, KafkaLog(context.on_kafka.kafka, "skip"))
