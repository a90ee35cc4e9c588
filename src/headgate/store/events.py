"""Events of one partition that were read together from Kafka, with the same names as a chunk of the embedded log.

Scans read either (`headgate.scan.source`), and one suite of tests holds both stores to that: `tests/store/contract.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events of one partition that were read together, in the order of their offsets.

    Attributes:
        offsets: One an event; ascending. In Kafka numbers may be left out.
        append_times_us: When each was stored: microseconds since 1970 UTC. Kafka knows milliseconds.
        batch: The events, a row each; columns of `EVENT_SCHEMA`.
        next_offset: Where reading goes on; above the last of `offsets`.
    """

    offsets: Sequence[int]
    append_times_us: Sequence[int]
    batch: pa.RecordBatch
    next_offset: int

    @property
    def message(self) -> bytes | None:
        """None: see `headgate.scan.source.StoredPage`, which this is."""
        return None

    def behind(self, offset: int) -> EventPage:
        """The part from this one of its offsets on."""
        row = bisect_left(self.offsets, offset)
        return EventPage(self.offsets[row:], self.append_times_us[row:], self.batch.slice(row), self.next_offset)
