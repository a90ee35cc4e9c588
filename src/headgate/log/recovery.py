"""Recovery: what the writer finds, cuts and refuses when it opens a partition."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError, NewerLogError
from headgate.log.files import FileOps, read_at, sync_directory
from headgate.log.format import (
    CHUNK_HEADER_BYTES,
    CHUNK_MAGIC,
    COMMITTED_NAME,
    SEGMENT_ALIGN,
    SEGMENT_FIXED_BYTES,
    ChunkHeader,
    FormatError,
    NewerFormatError,
    check_payload,
    segment_offset,
    segment_size_promised,
    unpack_chunk_header,
    unpack_segment_header,
)

NO_APPEND_TIME = -(1 << 63)
_SCAN_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Walk:
    """How far the chunks of a segment are good: up to the byte `end`. `problem` says what stands there, if anything."""

    end: int
    next_offset: int
    append_time_us: int
    problem: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """A partition after recovery, with its last segment. Without `schema` the writer starts a new one."""

    segment: Path | None
    schema: pa.Schema | None
    data_start: int  # byte of the segment's first chunk
    end: int  # byte behind its last chunk
    first_offset: int
    next_offset: int
    append_time_us: int  # of the last chunk, NO_APPEND_TIME without one
    cut_bytes: int  # bytes of a torn tail that were removed


def list_segments(directory: Path) -> list[tuple[int, Path]]:
    """(first offset, file) of every segment, in order; an absent directory has none."""
    try:
        paths = list(directory.iterdir())
    except FileNotFoundError:
        return []
    return sorted((first, path) for path in paths if (first := segment_offset(path)) is not None)


def read_segment_header(path: Path, fd: int) -> tuple[pa.Schema, int]:
    """Schema and position of the first chunk; raises CorruptChunkError, or NewerLogError for a newer Headgate's."""
    try:
        size = segment_size_promised(read_at(fd, SEGMENT_FIXED_BYTES, 0))
        return unpack_segment_header(read_at(fd, size, 0))
    except NewerFormatError as error:
        raise NewerLogError(path, str(error)) from error
    except FormatError as error:
        raise CorruptChunkError(path, 0, str(error), segment_offset(path)) from error


def read_chunk(fd: int, position: int, *, with_payload: bool) -> ChunkHeader | None:
    """Read and check a chunk; None exactly at the end of the file, FormatError where no good chunk stands."""
    data = read_at(fd, CHUNK_HEADER_BYTES, position)
    if not data:
        return None
    header = unpack_chunk_header(data)
    if with_payload:
        check_payload(header, read_at(fd, header.payload_bytes, position + CHUNK_HEADER_BYTES))
    elif position + header.chunk_bytes > os.fstat(fd).st_size:
        raise FormatError("the chunk is cut off")
    return header


def walk(path: Path, fd: int, position: int, offset: int, *, with_payload: bool = True) -> Walk:
    """Follow good chunks from `position`, whose first record must have `offset`.

    Raises CorruptChunkError when a chunk with good checksums has another offset than the one before it promises.
    """
    append_time_us = NO_APPEND_TIME
    while True:
        try:
            header = read_chunk(fd, position, with_payload=with_payload)
        except FormatError as error:
            return Walk(position, offset, append_time_us, str(error))
        if header is None:
            return Walk(position, offset, append_time_us, "")
        if header.first_offset != offset:
            raise CorruptChunkError(path, position, f"the chunk starts with record {header.first_offset}, not {offset}")
        position += header.chunk_bytes
        offset = header.next_offset
        append_time_us = header.append_time_us


def chunk_behind(fd: int, position: int, offset: int) -> tuple[int, ChunkHeader] | None:
    """Byte and header of the good chunk behind the bad one at `position`, whose first record would have `offset`.

    None when the bad one is a torn tail. A bad chunk with a good header gives the start of the next one, and nothing
    else is searched: its records may hold bytes that look like chunks. Behind a bad header every multiple of 8 is
    searched.
    """
    try:
        bad = unpack_chunk_header(read_at(fd, CHUNK_HEADER_BYTES, position))
    except FormatError:
        return find_chunk(fd, position + 8, offset + 1)
    behind = position + bad.chunk_bytes
    header = _good_chunk(fd, behind)
    return None if header is None or header.first_offset != bad.next_offset else (behind, header)


def _good_chunk(fd: int, position: int) -> ChunkHeader | None:
    try:
        return read_chunk(fd, position, with_payload=True)
    except FormatError:
        return None


def find_chunk(fd: int, position: int, offset_min: int) -> tuple[int, ChunkHeader] | None:
    """Where the first good chunk of `offset_min` or above starts, from `position` (a multiple of 8) on; its header."""
    while data := read_at(fd, _SCAN_PIECE_BYTES, position):
        at = data.find(CHUNK_MAGIC)
        while at >= 0:
            header = None if (position + at) % 8 else _good_chunk(fd, position + at)
            if header is not None and header.first_offset >= offset_min:
                return position + at, header
            at = data.find(CHUNK_MAGIC, at + 1)
        # Chunks start at multiples of 8 and so do the pieces, so no magic is cut in two.
        position += len(data) if len(data) % 8 == 0 else len(data) - len(data) % 8 + 8
    return None


def recover(partition: Partition, files: FileOps, published_offset: int) -> Recovered:
    """Find the end of a partition, cut a torn tail, remove a last segment that was never finished.

    A tail is torn where nothing of it was published: publishing comes behind the sync. Published records that cannot be
    read are damage, and their offsets are never given out again. Raises CorruptChunkError when a bad chunk or segment
    header has a good chunk behind it, or published records are gone; not where damage is passed over.

    `published_offset` is the next offset that the file `committed` held before, 0 when unknown.
    """
    directory = partition.directory
    segments = list_segments(directory)
    cut_bytes = 0
    while segments:
        first, path = segments[-1]
        fd = files.open(path, os.O_RDWR)
        try:
            try:
                schema, start = read_segment_header(path, fd)
            except CorruptChunkError as error:
                behind = find_chunk(fd, SEGMENT_ALIGN, first)
                if behind is not None or published_offset > first:
                    return _without_schema(partition, error, fd, behind, segments, published_offset)
                cut_bytes += os.fstat(fd).st_size
                files.unlink(path)
                sync_directory(files, directory)
                segments.pop()
                if not segments:
                    return _empty(first, cut_bytes)
                continue
            good = walk(path, fd, start, first)
            while good.problem and partition.skips and (behind := chunk_behind(fd, good.end, good.next_offset)):
                position, header = behind
                damage = CorruptChunkError(path, good.end, good.problem, good.next_offset)
                partition.pass_over(damage, good.next_offset, header.first_offset)
                good = walk(path, fd, position, header.first_offset)
            if good.problem and good.next_offset >= published_offset:
                cut_bytes += _cut(path, fd, good, files)
        finally:
            files.close(fd)
        append_time_us = good.append_time_us
        if append_time_us == NO_APPEND_TIME and len(segments) > 1:
            append_time_us = _last_append_time(partition, *segments[-2])
        kept_first, end = segments[0][0], good.next_offset
        if end < published_offset:
            _pass_over_lost(partition, path, good, published_offset)
            return Recovered(path, None, 0, 0, kept_first, published_offset, append_time_us, cut_bytes)
        return Recovered(path, schema, start, good.end, kept_first, end, append_time_us, cut_bytes)
    if published_offset:
        nothing = Walk(0, 0, NO_APPEND_TIME, "there is no segment")
        _pass_over_lost(partition, directory / COMMITTED_NAME, nothing, published_offset)
    return _empty(published_offset, 0)


def _pass_over_lost(partition: Partition, path: Path, good: Walk, published_offset: int) -> None:
    """Reports published records that are lost at the log's end. Their bytes stay: a new segment begins behind them."""
    end = good.next_offset
    lost = f"{published_offset - end} records from {end} on are gone, which were published as durable"
    error = CorruptChunkError(path, good.end, f"{good.problem or 'the file ends'}; {lost}", end)
    partition.pass_over(error, end, published_offset)


def _without_schema(
    partition: Partition,
    error: CorruptChunkError,
    fd: int,
    behind: tuple[int, ChunkHeader] | None,
    segments: list[tuple[int, Path]],
    published_offset: int,
) -> Recovered:
    """The end of a last segment whose header is damaged: nothing can be read of it, and a new segment follows."""
    end, append_time_us = published_offset, NO_APPEND_TIME
    if behind is not None:
        position, header = behind
        good = walk(error.path, fd, position, header.first_offset)
        end, append_time_us = max(good.next_offset, end), good.append_time_us
    elif len(segments) > 1:
        append_time_us = _last_append_time(partition, *segments[-2])
    partition.pass_over(error, segments[-1][0], end)
    return Recovered(error.path, None, 0, 0, segments[0][0], end, append_time_us, 0)


def _empty(next_offset: int, cut_bytes: int) -> Recovered:
    return Recovered(None, None, 0, 0, next_offset, next_offset, NO_APPEND_TIME, cut_bytes)


def _cut(path: Path, fd: int, good: Walk, files: FileOps) -> int:
    behind = chunk_behind(fd, good.end, good.next_offset)
    if behind is not None:
        raise CorruptChunkError(path, good.end, f"{good.problem}; a good chunk follows at byte {behind[0]}")
    size = os.fstat(fd).st_size
    files.ftruncate(fd, good.end)
    files.fsync(fd)
    return size - good.end


def _last_append_time(partition: Partition, first: int, path: Path) -> int:
    with path.open("rb") as file:
        try:
            _, start = read_segment_header(path, file.fileno())
        except CorruptChunkError:
            if not partition.skips:
                raise
            return NO_APPEND_TIME
        return walk(path, file.fileno(), start, first, with_payload=False).append_time_us
