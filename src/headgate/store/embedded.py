"""The embedded event store: the log's reader behind the interface that Kafka has, too.

`ingress/partitions.py: EmbeddedAppender` is how events come into it.
"""

from __future__ import annotations

from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.store.events import EventPage


class EmbeddedReader:
    """Reads one partition of a log; see `EventReader`.

    Args:
        partition: Which, and what is done at damaged chunks.
        start: First offset to read.
    """

    def __init__(self, partition: Partition, start: int = 0) -> None:
        self._reader = PartitionReader(partition, start)

    @property
    def position(self) -> int:
        """Offset of the next event to be read."""
        return self._reader.position

    def read(self) -> EventPage | None:
        """The events of the next chunk, from `position` on; None at the end."""
        chunk = self._reader.read()
        if chunk is None:
            return None
        times = [chunk.append_time_us] * chunk.record_count
        return EventPage(range(chunk.first_offset, chunk.next_offset), times, chunk.batch, chunk.next_offset)

    def seek(self, offset: int) -> None:
        """See `EventReader.seek`."""
        self._reader.seek(offset)

    def first_offset(self) -> int:
        """See `EventReader.first_offset`."""
        return self._reader.first_offset()

    def end_offset(self) -> int:
        """See `EventReader.end_offset`."""
        return self._reader.committed_offset()

    def close(self) -> None:
        """See `EventReader.close`."""
        self._reader.close()
