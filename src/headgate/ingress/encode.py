"""How do events become a chunk of the log?"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.event.arrow import StoredEvent, time_range_us, to_batch
from headgate.log.commit import Encoded


def encode(entries: Sequence[StoredEvent]) -> Encoded:
    """Makes a chunk of events, a row an event, in order; an event's filter value is its type."""
    batch = to_batch(entries)
    return Encoded(batch, [entry.event.type for entry in entries], time_range_us(batch))
