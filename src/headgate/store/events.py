"""The reading half of an event store: events by partition and offset. `ingress/partitions.py` has the other half.

Two stores have both: the embedded log (`store/embedded.py`) and Kafka (`store/kafka/`). One suite of tests holds them
to what is said here (`tests/store/contract.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


class EventReader(Protocol):
    """Reads one partition forward; blocking, for one thread at a time. Sees what is durable, and nothing else."""

    @property
    def position(self) -> int:
        """Offset of the next event to be read, or below it where numbers are left out."""
        ...

    def read(self) -> EventPage | None:
        """The next events, from `position` on; None at the end of what is durable.

        Everything below an `end_offset()` that was asked for before is read before None is returned.

        Raises:
            UnavailableError: The store does not answer; `position` stays.
        """
        ...

    def seek(self, offset: int) -> None:
        """Goes on reading at `offset`. What retention has removed is passed over."""
        ...

    def first_offset(self) -> int:
        """The first offset that retention has kept."""
        ...

    def end_offset(self) -> int:
        """Every event that can be read now is below it."""
        ...

    def close(self) -> None:
        """Gives everything back; idempotent."""
        ...
