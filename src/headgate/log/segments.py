"""A partition's segments for reading: open files, remembered positions, search by offset or time.

Read by pread, not through mmap: touching a mapped page of a file that somebody cut is a SIGBUS for the whole process,
and mmap gains nothing to speak of (measured: 28 against 26 M events/s in chunks of 1,000, 0.12 against 0.13 in chunks
of one).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headgate.log.directory import Partition, SegmentIndexes
from headgate.log.errors import CorruptChunkError, OffsetNotKeptError
from headgate.log.files import Committed, read_at
from headgate.log.format import (
    CHUNK_HEADER_BYTES,
    PREFIX_BYTES_MAX,
    ChunkHeader,
    FormatError,
    check_bloom,
    check_payload,
    unpack_chunk_header,
)
from headgate.log.recovery import find_chunk, list_segments, read_chunk, read_segment_header
from headgate_api.limits import SEGMENTS_OPEN_MAX

_WINDOW_BYTES = 1 << 16
_SMALL_CHUNK_BYTES = 1 << 14
"""Chunks below it are read many at a time; above it a skipping reader fetches little more than each header."""
_PREFIX_READ_BYTES = 512
_RETENTION_RACES_MAX = 8


class SegmentFile:
    """One open segment file, whose first chunk starts at byte `data_start`. Not searched, it needs no `indexes`."""

    def __init__(self, path: Path, first_offset: int, indexes: SegmentIndexes | None = None) -> None:
        self.path = path
        self.first_offset = first_offset
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.schema: pa.Schema
            self.schema, self.data_start = read_segment_header(path, self._fd)
        except BaseException:
            os.close(self._fd)
            raise
        indexes = indexes or SegmentIndexes()
        self.index = indexes.of(path, self._fd, first_offset, self.data_start)
        self._behind_last = (first_offset, self.data_start)
        self._window = b""
        self._window_at = 0
        self._window_offset = 0
        self._chunk_bytes = 0

    def header(self, position: int, offset: int, committed: int) -> ChunkHeader | None:
        """The header of the chunk at `position`; None when the file ends before a whole one.

        `committed` is the next offset as read before this call; `offset` is below it. Raises CorruptChunkError when the
        header is damaged, or not of this offset.
        """
        # What was read ahead before its chunk was published may have been half-written then.
        at = position - self._window_at
        data = self._window
        if offset >= self._window_offset or at < 0 or at + PREFIX_BYTES_MAX > len(data):
            size = _WINDOW_BYTES if self._chunk_bytes < _SMALL_CHUNK_BYTES else _PREFIX_READ_BYTES
            self._window = data = os.pread(self._fd, size, position)
            self._window_at = position
            self._window_offset = committed
            at = 0
            if len(data) < CHUNK_HEADER_BYTES:
                return None
        try:
            header = unpack_chunk_header(data[at : at + CHUNK_HEADER_BYTES])
        except FormatError as error:
            raise CorruptChunkError(self.path, position, str(error), offset) from error
        if header.first_offset != offset:
            reason = f"the chunk starts with record {header.first_offset}, not {offset}"
            raise CorruptChunkError(self.path, position, reason, offset)
        self._chunk_bytes = header.chunk_bytes
        self._behind_last = header.next_offset, position + header.chunk_bytes
        self.index.note(offset, position, header.append_time_us)
        return header

    def bloom(self, position: int, header: ChunkHeader) -> bytes:
        """The stored filter of a chunk whose header was just read, its checksum compared; raises CorruptChunkError."""
        at = position - self._window_at + CHUNK_HEADER_BYTES
        bits = self._window[at : at + header.bloom_bytes]
        try:
            check_bloom(header, bits)
        except FormatError as error:
            raise CorruptChunkError(self.path, position, str(error), header.first_offset) from error
        return bits

    def body(self, position: int, header: ChunkHeader) -> pa.Buffer:
        """The Arrow message of a chunk, its checksum compared; raises CorruptChunkError."""
        at = position - self._window_at + CHUNK_HEADER_BYTES
        if at >= 0 and at + header.payload_bytes <= len(self._window):
            payload = self._window[at : at + header.payload_bytes]
        else:
            payload = read_at(self._fd, header.payload_bytes, position + CHUNK_HEADER_BYTES)
        try:
            check_payload(header, payload)
        except FormatError as error:
            raise CorruptChunkError(self.path, position, str(error), header.first_offset) from error
        return pa.py_buffer(payload).slice(header.bloom_padded_bytes)

    def nearest(self, offset: int) -> tuple[int, int]:
        """(offset, position) from where to walk to `offset`: a remembered chunk, or where the last walk ended."""
        remembered = self.index.at_offset(offset)
        return max(remembered, self._behind_last) if self._behind_last[0] <= offset else remembered

    def behind(self, position: int, offset: int) -> tuple[int, int] | None:
        """Offset and position of the next good chunk behind the damaged one at `position`; None when there is none.

        `offset` is that of any of its records. A good header gives the end of its chunk. Behind a bad one every
        multiple of 8 is searched, header and payload.
        """
        try:
            header = read_chunk(self._fd, position, with_payload=False)
            if header is not None and header.first_offset <= offset < header.next_offset:
                return header.next_offset, position + header.chunk_bytes
        except FormatError:
            pass
        found = find_chunk(self._fd, position + 8, offset + 1)
        return None if found is None else (found[1].first_offset, found[0])

    def first_time_us(self, committed: int) -> int | None:
        """When the first chunk was appended; None while there is none. Errors as `header`."""
        header = self.header(self.data_start, self.first_offset, committed)
        return None if header is None else header.append_time_us

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ChunkLocation(NamedTuple):
    """Where a chunk stands."""

    segment: SegmentFile
    position: int
    header: ChunkHeader


class Segments:
    """The files of a partition as one reader sees them; a few segments stay open."""

    def __init__(self, partition: Partition, *, open_max: int = SEGMENTS_OPEN_MAX) -> None:
        self.partition = partition
        self.committed = Committed(partition.directory)
        self._open_max = open_max
        self._firsts: list[int] = []
        self._paths: list[Path] = []
        self._opened: OrderedDict[int, SegmentFile] = OrderedDict()

    def refresh(self) -> None:
        """Read the directory again and let go of removed segments."""
        listed = list_segments(self.partition.directory)
        self._firsts = [first for first, _ in listed]
        self._paths = [path for _, path in listed]
        for first in self._opened.keys() - set(self._firsts):
            self._opened.pop(first).close()

    def containing(self, offset: int) -> SegmentFile | None:
        """The segment of `offset` at the last `refresh`; None: all start above it. FileNotFoundError: removed since."""
        at = bisect_right(self._firsts, offset) - 1
        return self._get(at) if at >= 0 else None

    def _get(self, index: int) -> SegmentFile:
        first = self._firsts[index]
        segment = self._opened.get(first)
        if segment is None:
            segment = self._opened[first] = SegmentFile(self._paths[index], first, self.partition.indexes)
            while len(self._opened) > self._open_max:
                self._opened.popitem(last=False)[1].close()
        else:
            self._opened.move_to_end(first)
        return segment

    def locate(self, offset: int, committed: int) -> ChunkLocation | None:
        """The chunk that holds `offset`, which is below `committed`; None when retention has removed its segment."""
        for fresh in (False, True):
            if fresh:
                self.refresh()
            try:
                segment = self.containing(offset)
            except FileNotFoundError:
                continue
            if segment is None:
                continue
            location, position = self._walk(segment, offset, committed)
            if location is not None:
                return location
            if fresh:
                raise CorruptChunkError(segment.path, position, f"the file ends before record {offset}", offset)
        return None

    def behind(self, error: CorruptChunkError, offset: int, committed: int) -> int:
        """The first record above `offset`, which is damaged, that may be whole; `committed` when there is none."""
        self.refresh()
        try:
            segment = self.containing(offset)
            if segment is not None and segment.path == error.path:
                found = segment.behind(error.byte, offset)
                if found is not None:
                    return min(found[0], committed)
        except (CorruptChunkError, FileNotFoundError):
            pass  # the segment as a whole
        return min([first for first in self._firsts if first > offset], default=committed)

    def offset_at_time(self, time_us: int, committed: int) -> int:
        """First offset of the first chunk appended at or after a time; `committed` when there is none.

        Append times never decrease: segments are searched by halves through their first headers, then headers are
        walked.
        """
        for _ in range(_RETENTION_RACES_MAX):
            self.refresh()
            if not self._firsts:
                return committed
            try:
                at = self._near_time(time_us, committed)
            except FileNotFoundError:
                continue  # retention removed a segment between the listing and its opening
            except CorruptChunkError:
                if not self.partition.skips:
                    raise
                at = self._firsts[0]  # what is damaged has no time: chunk after chunk
            return self._walk_to_time(at, time_us, committed)
        raise OffsetNotKeptError(f"{self.partition.directory} loses segments faster than they can be searched")

    def _near_time(self, time_us: int, committed: int) -> int:
        """Offset of a chunk from which to walk to a time."""
        low, high = 0, sum(first < committed for first in self._firsts)
        while low < high:
            middle = (low + high) // 2
            segment = self._get(middle)
            begun_us = segment.first_time_us(committed)
            if begun_us is None:
                raise CorruptChunkError(segment.path, segment.data_start, "the file ends before its first chunk")
            if begun_us < time_us:
                low = middle + 1
            else:
                high = middle
        return self._get(max(0, low - 1)).index.before_time(time_us)

    def _walk_to_time(self, at: int, time_us: int, committed: int) -> int:
        while at < committed:
            try:
                location = self.locate(at, committed)
                if location is None or location.header.append_time_us >= time_us:
                    break
                at = location.header.next_offset
            except CorruptChunkError as error:
                if not self.partition.skips:
                    raise
                at = self.behind(error, at, committed)
        return at

    def _walk(self, segment: SegmentFile, offset: int, committed: int) -> tuple[ChunkLocation | None, int]:
        """The chunk of a segment that holds `offset`, or where the file ends before it.

        Damage before the record raises, too, unless it is passed over.
        """
        at, position = segment.nearest(offset)
        while True:
            try:
                header = segment.header(position, at, committed)
            except CorruptChunkError:
                behind = segment.behind(position, at) if self.partition.skips else None
                if behind is None or behind[0] > offset:
                    raise
                at, position = behind
                continue
            if header is None:
                return None, position
            if offset < header.next_offset:
                return ChunkLocation(segment, position, header), position
            at = header.next_offset
            position += header.chunk_bytes

    def close(self) -> None:
        self.committed.close()
        for segment in self._opened.values():
            segment.close()
        self._opened.clear()
