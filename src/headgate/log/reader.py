"""Readers of a log, in any process: forward in order, backward, and at single records.

They never pass the published next offset. Chunks without a wanted filter value are skipped without reading their
bodies; damaged ones by the partition's policy.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa

from headgate.log.bloom import ValueHash, hash_value, might_contain
from headgate.log.directory import LogDirectory, Partition
from headgate.log.errors import CorruptChunkError, OffsetNotKeptError
from headgate.log.format import ChunkHeader, FormatError, decode_body, segment_offset
from headgate.log.segments import ChunkLocation, SegmentFile, Segments
from headgate_api.limits import LOOKUP_CACHE_BYTES_MAX, LOOKUP_CHUNK_OVERHEAD_BYTES

_READER_SEGMENTS_OPEN = 2


class Chunk:
    """Records that were written together, or, where a reader starts inside them, those from its start on. Immutable.

    `header` and `body`, the stored Arrow message with its checksum compared, are of the whole chunk, which starts at
    `byte` in `path`.
    """

    __slots__ = ("_batch", "body", "byte", "first_offset", "header", "path", "record_count", "schema")

    def __init__(self, location: ChunkLocation, start: int) -> None:
        header = location.header
        self.header = header
        self.first_offset = max(start, header.first_offset)
        self.record_count = header.next_offset - self.first_offset
        self.schema = location.segment.schema
        self.path = location.segment.path
        self.byte = location.position
        self.body = location.segment.body(location.position, header)
        self._batch: pa.RecordBatch | None = None

    @property
    def next_offset(self) -> int:
        return self.header.next_offset

    def holds(self, offset: int) -> bool:
        return self.first_offset <= offset < self.next_offset

    @property
    def append_time_us(self) -> int:
        """When the chunk was written: microseconds since 1970 UTC."""
        return self.header.append_time_us

    @property
    def size_bytes(self) -> int:
        return self.header.chunk_bytes

    @property
    def batch(self) -> pa.RecordBatch:
        """The records, decoded at the first use; CorruptChunkError when Arrow cannot read them."""
        if self._batch is None:
            try:
                whole = decode_body(self.body, self.schema, self.header.record_count)
            except FormatError as error:
                raise CorruptChunkError(self.path, self.byte, str(error), self.header.first_offset) from error
            cut = self.first_offset - self.header.first_offset
            self._batch = whole.slice(cut) if cut else whole
        return self._batch


def _may_hold(location: ChunkLocation, probes: list[ValueHash] | None) -> bool:
    """Whether a chunk's filter lets it hold something that is looked for; None: anything."""
    segment, byte, header = location
    if probes is None:
        return True
    return header.bloom_bytes > 0 and might_contain(segment.bloom(byte, header), header.hash_count, probes)


class PartitionReader:
    """Reads one partition forward; it need not exist yet. Not for several threads at once.

    Bounded memory: one chunk, and 64 KiB read ahead.
    """

    @classmethod
    def open_at_time(cls, partition: Partition, time_us: int) -> PartitionReader:
        """Read from the first chunk on that was appended at or after `time_us`; the end, when there is none."""
        self = cls(partition, start=0)
        try:
            self.position = self._segments.offset_at_time(time_us, self.committed_offset())
        except BaseException:
            self.close()
            raise
        return self

    def __init__(self, partition: Partition, start: int) -> None:
        self._partition = partition
        self.position = start  # offset of the next record to be read; grows over skipped chunks too
        self.records_missed = 0  # those that retention removed before this reader came to them
        self.records_corrupt = 0  # those in damaged chunks that were passed over
        self.chunks_skipped = 0  # passed over by their filter
        self._segments = Segments(partition, open_max=_READER_SEGMENTS_OPEN)
        self._committed = self._segments.committed
        self._next: tuple[SegmentFile, int] | None = None
        self._wanted: frozenset[str] | None = None
        self._probes: list[ValueHash] = []

    def committed_offset(self) -> int:
        """Next offset: every record below it can be read. 0 while there is no partition."""
        return self._committed.next_offset()

    def first_offset(self) -> int:
        """First offset that retention has kept."""
        return self._committed.first_offset()

    def seek(self, offset: int) -> None:
        """Go on reading at `offset`, which may lie inside a chunk."""
        self.position = offset
        self._next = None

    def read(
        self,
        *,
        wanted: Collection[str] | None = None,
        match_unfiltered: bool = False,
        passes: Callable[[ChunkHeader, bytes], bool] | None = None,
        chunks_max: int | None = None,
    ) -> Chunk | None:
        """The next chunk that may hold what is wanted, from `position` on.

        None at the end of what is durable (call again when `committed_offset()` has grown), or after `chunks_max`
        skipped ones. Raises CorruptChunkError for a damaged chunk, unless damage is passed over; `position` stays.

        Args:
            wanted: Filter values; a chunk whose filter excludes all of them is passed over. None: every chunk. Give the
                same frozenset again and its values are hashed once.
            match_unfiltered: Chunks with a record without filter value are wanted too.
            passes: Looks at a chunk's header and the bytes of its filter; False: it is passed over.
        """
        probes = None if wanted is None else self._probes_of(wanted)

        def is_wanted(location: ChunkLocation) -> bool:
            segment, byte, header = location
            if not (match_unfiltered and header.unfiltered) and not _may_hold(location, probes):
                return False
            return passes is None or passes(header, segment.bloom(byte, header))

        while True:
            try:
                return self._read(None if wanted is None and passes is None else is_wanted, chunks_max)
            except CorruptChunkError as error:
                if not self._partition.skips:
                    raise
                self._pass_over(error)

    def _read(self, is_wanted: Callable[[ChunkLocation], bool] | None, chunks_max: int | None) -> Chunk | None:
        committed = self._committed.next_offset()
        last = None if chunks_max is None else self.chunks_skipped + chunks_max
        while self.position < committed and (last is None or self.chunks_skipped < last):
            location = self._location(committed)
            if location is None:
                return None
            if is_wanted is None or is_wanted(location):
                chunk = Chunk(location, self.position)
                self._advance(location)
                return chunk
            self.chunks_skipped += 1
            self._advance(location)
        return None

    def _pass_over(self, error: CorruptChunkError) -> None:
        first = self.position
        self._next = None
        self.position = self._segments.behind(error, first, self._committed.next_offset())
        self.records_corrupt += self.position - first
        self._partition.pass_over(error, first, self.position)

    def close(self) -> None:
        self._next = None
        self._segments.close()

    def __enter__(self) -> PartitionReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _location(self, committed: int) -> ChunkLocation | None:
        """The chunk of `position`, where the last one ended or wherever it is; moves over what retention took."""
        if self._next is not None:
            segment, byte = self._next
            header = segment.header(byte, self.position, committed)
            if header is not None:
                return ChunkLocation(segment, byte, header)
            self._next = None
        while self.position < committed:
            location = self._segments.locate(self.position, committed)
            if location is not None:
                return location
            first = self._committed.first_offset()
            if first <= self.position:
                reason = f"no segment holds record {self.position}"
                raise CorruptChunkError(self._partition.directory, 0, reason, self.position)
            self.records_missed += first - self.position
            self.position = first
        return None

    def _advance(self, location: ChunkLocation) -> None:
        self.position = location.header.next_offset
        self._next = location.segment, location.position + location.header.chunk_bytes

    def _probes_of(self, wanted: Collection[str]) -> list[ValueHash]:
        if wanted is self._wanted:
            return self._probes
        probes = [hash_value(value) for value in wanted if value]
        if isinstance(wanted, frozenset):
            self._wanted, self._probes = wanted, probes
        return probes


class LogEnds:
    """First and next offsets of all partitions of a log; the files stay open between calls."""

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        self._readers: dict[int, PartitionReader] = {}

    def partitions(self) -> list[int]:
        return self._log.partitions()

    def end_offset(self, partition: int) -> int:
        return self._reader(partition).committed_offset()

    def first_offset(self, partition: int) -> int:
        return self._reader(partition).first_offset()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _reader(self, partition: int) -> PartitionReader:
        reader = self._readers.get(partition)
        if reader is None:
            reader = self._readers[partition] = PartitionReader(self._log.partition(partition), start=0)
        return reader


def end_offsets(log: LogDirectory, partitions: Iterable[int]) -> dict[int, int]:
    """Where some partitions end now; `LogEnds` is for who asks again and again."""
    with closing(LogEnds(log)) as ends:
        return {partition: ends.end_offset(partition) for partition in partitions}


# --- backward -------------------------------------------------------------------------------------


def newest_first(
    partition: Partition, *, before: int | None = None, not_before_us: int = 0, wanted: Collection[str] | None = None
) -> Iterator[Chunk]:
    """The durable chunks of a partition, the last one first; the partition need not exist.

    Stops at a chunk that was appended before `not_before_us`. `before` is a chunk's first offset or behind the last
    one. Chunks whose filter excludes all `wanted` values are passed over without being read. Raises CorruptChunkError
    at damage, or on the way to a chunk; not where damage is passed over.
    """
    probes = None if wanted is None else [hash_value(value) for value in wanted if value]
    with closing(Segments(partition)) as segments:
        committed = segments.committed.next_offset()
        at = committed if before is None else min(before, committed)
        while at > segments.committed.first_offset():
            try:
                location = segments.locate(at - 1, committed)
                if location is None or location.header.append_time_us < not_before_us:
                    return
                first = location.header.first_offset
                chunk = Chunk(location, first) if _may_hold(location, probes) else None
            except CorruptChunkError as error:
                if error.first_offset is None:
                    raise
                partition.pass_over(error, error.first_offset, at)
                at = min(at - 1, error.first_offset)
                continue
            if chunk is not None:
                yield chunk
            at = first


class ChunkEntry(NamedTuple):
    """What stands before a chunk's body; of a damaged chunk its offsets alone, as far as they are known."""

    first_offset: int
    next_offset: int
    header: ChunkHeader | None
    bloom: bytes = b""
    damage: str = ""  # what is wrong where there is no header; empty for nothing


def entries_newest_first(partition: Partition, *, before: int | None = None) -> Iterator[ChunkEntry]:
    """Headers and Bloom filters of the durable chunks of a partition, the last one first; no body is read.

    `before` is any offset: the chunk that holds the one before it comes first. What is damaged is told, and the others
    follow where the partition skips. Raises CorruptChunkError where nothing says which records cannot be read.
    """
    with closing(Segments(partition)) as segments:
        committed = segments.committed.next_offset()
        at = committed if before is None else min(before, committed)
        while at > segments.committed.first_offset():
            try:
                location = segments.locate(at - 1, committed)
                if location is None:
                    return
                segment, byte, header = location
                entry = ChunkEntry(header.first_offset, header.next_offset, header, segment.bloom(byte, header))
            except CorruptChunkError as error:
                known = segment_offset(error.path) if error.first_offset is None else error.first_offset
                if known is None:
                    raise
                entry = ChunkEntry(min(known, at - 1), at, None, damage=error.reason)
            yield entry
            at = entry.first_offset


def holding(partition: Partition, offsets: Iterable[int]) -> Iterator[Chunk]:
    """The chunks that hold records, each once where offsets are in order, but not what is gone. As `newest_first`."""
    last: Chunk | None = None
    with closing(Segments(partition)) as segments:
        for offset in offsets:
            if last is not None and last.holds(offset):
                continue
            committed = segments.committed.next_offset()
            if not segments.committed.first_offset() <= offset < committed:
                continue
            try:
                location = segments.locate(offset, committed)
                if location is None:
                    continue
                last = Chunk(location, location.header.first_offset)
            except CorruptChunkError as error:
                partition.pass_over(error, offset, offset + 1)
                continue
            yield last


# --- single records -------------------------------------------------------------------------------


class RecordLookup:
    """Finds records, mostly new ones, in order and several times each. Not for several threads at once.

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
        if last is not None and last.holds(offset):
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
