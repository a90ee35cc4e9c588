"""The reader of a partition: records in order, in any process.

It follows the published next offset and never passes it. Chunks without a wanted filter value are skipped without
reading their bodies; damaged ones by the partition's policy. Bounded memory: one chunk, and 64 KiB read ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import closing

import pyarrow as pa

from headgate.log.bloom import ValueHash, hash_value, might_contain
from headgate.log.directory import LogDirectory, Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.format import ChunkHeader, FormatError, decode_body
from headgate.log.segments import ChunkLocation, SegmentFile, Segments

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
        """Offset behind the last record."""
        return self.header.next_offset

    @property
    def append_time_us(self) -> int:
        """When the chunk was written: microseconds since 1970 UTC."""
        return self.header.append_time_us

    @property
    def size_bytes(self) -> int:
        """Bytes of the stored chunk."""
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


class PartitionReader:
    """Reads one partition forward; it need not exist yet. Not for several threads at once.

    Attributes:
        position: Offset of the next record to be read; grows over skipped chunks too.
        records_missed: Records that retention removed before this reader came to them.
        records_corrupt: Records in damaged chunks that were passed over.
        chunks_skipped: Chunks passed over by their filter.
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
        self.position = start
        self.records_missed = 0
        self.records_corrupt = 0
        self.chunks_skipped = 0
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
        while True:
            try:
                return self._read(wanted, match_unfiltered, passes, chunks_max)
            except CorruptChunkError as error:
                if not self._partition.skips:
                    raise
                self._pass_over(error)

    def _read(
        self,
        wanted: Collection[str] | None,
        match_unfiltered: bool,
        passes: Callable[[ChunkHeader, bytes], bool] | None,
        chunks_max: int | None,
    ) -> Chunk | None:
        probes = None if wanted is None else self._probes_of(wanted)
        committed = self._committed.next_offset()
        last = None if chunks_max is None else self.chunks_skipped + chunks_max
        while self.position < committed and (last is None or self.chunks_skipped < last):
            location = self._location(committed)
            if location is None:
                return None
            segment, byte, header = location
            if (
                probes is None
                or (match_unfiltered and header.unfiltered)
                or (header.bloom_bytes and might_contain(segment.bloom(byte, header), header.hash_count, probes))
            ) and (passes is None or passes(header, segment.bloom(byte, header))):
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
        """Close files and mapping; idempotent."""
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
        """Offset behind the last durable event."""
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
