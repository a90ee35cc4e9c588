"""The embedded event store: the log's group commit and reader behind the interface that Kafka has too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.ingress.encode import Entries
from headgate.ingress.partitions import all_stored
from headgate.log.commit import GroupCommit
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.store.events import EventPage


class EmbeddedAppender:
    """Appends to the partitions of one log. A part is one submit, which no chunk divides.

    Args:
        commits: Every partition by its number; closed with this object. Their owner closes the writers.
    """

    def __init__(self, commits: Sequence[GroupCommit[Entries]]) -> None:
        self._commits = commits

    async def append(self, parts: Mapping[int, Entries], size_bytes: int) -> Mapping[int, Sequence[int]]:
        """See `EventAppender.append`."""
        total = sum(len(entries) for entries in parts.values())
        firsts = await all_stored(
            [
                self._commits[partition].enqueue(entries, size_bytes * len(entries) // total)
                for partition, entries in parts.items()
            ]
        )
        return {
            partition: range(first, first + len(entries))
            for (partition, entries), first in zip(parts.items(), firsts, strict=True)
        }

    async def close(self) -> None:
        """See `EventAppender.close`."""
        for commit in self._commits:
            await commit.close()


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
