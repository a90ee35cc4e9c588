"""The reader of a deployment on Kafka: the same API, answered from the topic `events`.

Any number of servers may have one. Each reads all partitions, and keeps nothing between two requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headgate.server import child, reader
from headgate.server.reader import ReaderStore
from headgate.store.kafka.objects import open_cache
from headgate.store.kafka.scan import KafkaLog
from headgate_api.limits import READERS_MAX

_OTHER_FILES = 2_048
"""The database, gRPC's connections, those of KAFKA_SCAN_CONSUMERS_MAX to every broker, the event loop's own."""


def run(context: child.Context) -> None:
    """Serves readers until told to stop."""
    child.raise_file_limit(READERS_MAX + _OTHER_FILES)
    reader.run_with(context, _topic)


@contextlib.asynccontextmanager
async def _topic(context: child.Context, stop: asyncio.Event) -> AsyncIterator[ReaderStore]:
    objects = await asyncio.to_thread(open_cache, context.settings.data / "control.db", stop.is_set)
    with contextlib.closing(objects):
        # Nobody can take a record out of a topic: one that is none of ours must not end every search for ever.
        yield ReaderStore(objects, KafkaLog(context.on_kafka.kafka, "skip"))
