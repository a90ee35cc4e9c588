"""Random access to records, mostly new ones, in order and several times each; a bounded cache of decoded chunks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict

from headgate.log.directory import LogDirectory, Partition
from headgate.log.errors import OffsetNotKeptError
from headgate.log.reader import Chunk
from headgate.log.segments import Segments
from headgate_api.limits import LOOKUP_CACHE_BYTES_MAX, LOOKUP_CHUNK_OVERHEAD_BYTES


class RecordLookup:
    """Finds records of a log. Not for several threads at once.

    Decoded chunks stay up to `cache_bytes_max`, stored bytes and LOOKUP_CHUNK_OVERHEAD_BYTES each; one is always kept.
    """

    def __init__(self, log: LogDirectory, *, cache_bytes_max: int = LOOKUP_CACHE_BYTES_MAX) -> None:
        self.log = log
        self._cache_bytes_max = cache_bytes_max
        self._cache_bytes = 0
        self._partitions: dict[int, _Partition] = {}
        self._recent: OrderedDict[tuple[int, int], Chunk] = OrderedDict()

    def chunk(self, partition: int, offset: int) -> Chunk:
        """The whole chunk that holds this offset; raises OffsetNotKeptError also when it is not durable yet."""
        held = self._partitions.get(partition)
        if held is None:
            held = self._partitions[partition] = _Partition(self.log.partition(partition))
        last = held.last
        if last is not None and last.first_offset <= offset < last.next_offset:
            return last
        at = bisect_right(held.starts, offset) - 1
        if at >= 0:
            key = (partition, held.starts[at])
            cached = self._recent[key]
            if offset < cached.next_offset:
                self._recent.move_to_end(key)
                held.last = cached
                return cached
        chunk = held.read(offset)
        self._keep(partition, held, chunk)
        return chunk

    def close(self) -> None:
        for held in self._partitions.values():
            held.close()
        self._partitions.clear()
        self._recent.clear()
        self._cache_bytes = 0

    def _keep(self, partition: int, held: _Partition, chunk: Chunk) -> None:
        held.last = chunk
        insort(held.starts, chunk.first_offset)
        self._recent[partition, chunk.first_offset] = chunk
        self._cache_bytes += _cost(chunk)
        while self._cache_bytes > self._cache_bytes_max and len(self._recent) > 1:
            (owner, _), old = self._recent.popitem(last=False)
            self._cache_bytes -= _cost(old)
            self._partitions[owner].forget(old)


def _cost(chunk: Chunk) -> int:
    return chunk.size_bytes + LOOKUP_CHUNK_OVERHEAD_BYTES


class _Partition:
    """One partition's files, and which offsets are cached."""

    def __init__(self, partition: Partition) -> None:
        self._segments = Segments(partition)
        self.last: Chunk | None = None
        self.starts: list[int] = []  # first offsets of its cached chunks, sorted

    def read(self, offset: int) -> Chunk:
        published = self._segments.committed
        first, end = published.first_offset(), published.next_offset()
        location = self._segments.locate(offset, end) if first <= offset < end else None
        if location is None:
            first, end = published.first_offset(), published.next_offset()
            directory = self._segments.partition.directory
            raise OffsetNotKeptError(f"{directory} holds records {first} to {end - 1}, not {offset}")
        return Chunk(location, location.header.first_offset)

    def forget(self, chunk: Chunk) -> None:
        del self.starts[bisect_left(self.starts, chunk.first_offset)]
        if self.last is chunk:
            self.last = None

    def close(self) -> None:
        self._segments.close()
