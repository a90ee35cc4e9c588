"""How do events become chunks of the log?"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.event.arrow import StoredEvent, time_range_us, to_batch
from headgate.limits import COMMIT_CHUNK_EVENTS_MAX, COMMIT_QUEUE_BYTES_MAX, COMMIT_QUEUE_EVENTS_MAX
from headgate.log.commit import Appender, Encoded, GroupCommit


def encode(entries: Sequence[StoredEvent]) -> Encoded:
    """Makes a chunk of events, a row an event, in order; an event's filter value is its type."""
    batch = to_batch(entries)
    return Encoded(batch, [entry.event.type for entry in entries], time_range_us(batch))


def event_commit(writer: Appender) -> GroupCommit[StoredEvent]:
    """Group commit of events into one partition, with ingress's limits."""
    return GroupCommit(
        writer,
        encode,
        queue_items_max=COMMIT_QUEUE_EVENTS_MAX,
        queue_bytes_max=COMMIT_QUEUE_BYTES_MAX,
        batch_items_max=COMMIT_CHUNK_EVENTS_MAX,
    )
