"""How do events become chunks of the log?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pyarrow as pa

from headgate.event.arrow import StoredBatch, StoredEvent, time_range_us, to_batch
from headgate.limits import COMMIT_CHUNK_EVENTS_MAX, COMMIT_QUEUE_BYTES_MAX, COMMIT_QUEUE_EVENTS_MAX
from headgate.log.commit import Appender, Encoded, GroupCommit


def encode(groups: Sequence[Sequence[StoredEvent]]) -> Encoded:
    """Makes a chunk of events, a row an event, in order; an event's filter value is its type."""
    pieces: list[pa.RecordBatch] = []
    types: list[str] = []
    for is_batch, run in groupby(groups, lambda group: isinstance(group, StoredBatch)):
        if is_batch:
            for group in run:
                assert isinstance(group, StoredBatch)
                pieces.append(group.batch)
                types += group.types
        else:
            entries = [entry for group in run for entry in group]
            pieces.append(to_batch(entries))
            types += [entry.event.type for entry in entries]
    batch = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
    return Encoded(batch, types, time_range_us(batch))


def event_commit(writer: Appender) -> GroupCommit[StoredEvent]:
    """Group commit of events into one partition, with ingress's limits."""
    return GroupCommit(
        writer,
        encode,
        queue_items_max=COMMIT_QUEUE_EVENTS_MAX,
        queue_bytes_max=COMMIT_QUEUE_BYTES_MAX,
        batch_items_max=COMMIT_CHUNK_EVENTS_MAX,
    )
