"""Verification, statistics and dump of a log, for people.

Read-only and without locks, so all of it may run beside a living writer. Takes a partition (`<log>/0`), a directory of
partitions, or a data directory that holds `log/`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.files import Committed, read_at
from headgate.log.format import (
    CHUNK_HEADER_BYTES,
    COMMITTED_NAME,
    SEGMENT_ALIGN,
    ChunkHeader,
    Codec,
    FormatError,
    check_payload,
    decode_body,
    unpack_chunk_header,
)
from headgate.log.reader import PartitionReader
from headgate.log.recovery import NO_APPEND_TIME, find_chunk, list_segments, read_segment_header
from headgate_api.errors import NotFoundError

_ALL = (1 << 63) - 1


@dataclass(slots=True)
class PartitionReport:
    """What a partition holds and what is wrong with it."""

    directory: Path
    first_offset: int = 0
    next_offset: int = 0
    segments: int = 0
    bytes: int = 0
    chunks: int = 0
    records: int = 0
    chunks_without_filter: int = 0
    tail_bytes: int = 0  # behind the last durable record: an append in the making, or a torn one that opening will cut
    append_time_us: tuple[int, int] | None = None  # of the first and the last good chunk; None without one
    codecs: dict[str, int] = field(default_factory=dict)  # good chunks by compression
    problems: list[CorruptChunkError] = field(default_factory=list)

    def add(self, header: ChunkHeader) -> None:
        self.chunks += 1
        self.records += header.record_count
        self.chunks_without_filter += not header.bloom_bytes
        name = Codec(header.codec).name.lower()
        self.codecs[name] = self.codecs.get(name, 0) + 1
        first = self.append_time_us[0] if self.append_time_us else header.append_time_us
        self.append_time_us = first, header.append_time_us


@dataclass(frozen=True, slots=True)
class Record:
    """One record as stored; `columns` are Python values, None where the column is null."""

    offset: int
    append_time_us: int
    columns: dict[str, object]


def partitions(path: Path) -> list[Path]:
    """The partition directories that `path` means, in order; at least one, else NotFoundError."""
    for root in (path, path / "log"):
        if (root / COMMITTED_NAME).is_file() or list_segments(root):
            return [root]
        if root.is_dir():
            found = [p for p in root.iterdir() if p.name.isdecimal() and p.is_dir()]
            if found:
                return sorted(found, key=lambda p: int(p.name))
    raise NotFoundError(
        f"{path} holds no log partition",
        hint="give a data directory, its log/ directory, or one partition: data/log/0, data/dispatcher/0/outbox",
    )


def inspect(directory: Path, *, bodies: bool) -> PartitionReport:
    """Read a partition from end to end: with `bodies` every checksum and every record, else headers only (fast)."""
    report = PartitionReport(directory)
    committed = Committed(directory)
    published = committed.next_offset() if (directory / COMMITTED_NAME).is_file() else _ALL
    segments = list_segments(directory)
    there = segments[0][0] if segments else 0
    # Asked behind the listing: what retention has removed by then is below it.
    report.first_offset = committed.first_offset() if published != _ALL else there
    offset = min(there, report.first_offset) if segments else report.first_offset
    for first, path in segments:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if first < committed.first_offset():
                offset = max(offset, committed.first_offset())
                continue  # retention was faster
            raise
        try:
            report.segments += 1
            report.bytes += os.fstat(fd).st_size
            if first != offset and offset < published:
                reason = f"the segment starts at {first}, and none before it holds the records from {offset} on"
                report.problems.append(CorruptChunkError(path, 0, reason, offset))
            offset = _Inspection(report, path, fd, published, bodies=bodies).run(first)
        finally:
            os.close(fd)
    report.next_offset = offset if published == _ALL else published
    if published != _ALL and offset < published:
        place = segments[-1][1] if segments else directory
        size = place.stat().st_size if segments else 0
        reason = f"the log ends at record {offset}, but {published} was published as durable"
        report.problems.append(CorruptChunkError(place, size, reason, offset))
    committed.close()
    return report


class _Inspection:
    """One segment's chunks, the bad ones stepped over."""

    def __init__(self, report: PartitionReport, path: Path, fd: int, published: int, *, bodies: bool) -> None:
        self._report = report
        self._path = path
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._published = published
        self._bodies = bodies
        self._schema: pa.Schema | None = None

    def run(self, offset: int) -> int:
        """Returns the offset behind the segment's last good or stepped-over chunk."""
        position: int | None
        try:
            self._schema, position = read_segment_header(self._path, self._fd)
        except CorruptChunkError as error:
            if offset >= self._published:
                self._report.tail_bytes += self._size
                return offset
            self._report.problems.append(error)
            behind = find_chunk(self._fd, SEGMENT_ALIGN, offset)
            position = None if behind is None else behind[0]
        while position is not None and position < self._size:
            if offset >= self._published:
                self._report.tail_bytes += self._size - position
                break
            position, offset = self._chunk(position, offset)
        return offset

    def _chunk(self, position: int, offset: int) -> tuple[int | None, int]:
        """Check one chunk; returns where the next one starts (None: none found) and its offset."""
        try:
            header = unpack_chunk_header(read_at(self._fd, CHUNK_HEADER_BYTES, position))
        except FormatError as error:
            behind = find_chunk(self._fd, position + 8, offset + 1)
            if behind is None and self._published == _ALL:
                self._report.tail_bytes += self._size - position  # nothing shows that it was ever whole
                return None, offset
            self._bad(position, str(error))
            return (None, offset) if behind is None else (behind[0], behind[1].first_offset)
        if header.first_offset != offset:
            self._bad(position, f"the chunk starts with record {header.first_offset}, not {offset}")
        last = self._report.append_time_us[1] if self._report.append_time_us else NO_APPEND_TIME
        if header.append_time_us < last:
            reason = f"the append time {header.append_time_us} is before the one of an earlier chunk, {last}"
            self._bad(position, reason)
        end = position + header.chunk_bytes
        try:
            if end > self._size:
                raise FormatError("the chunk is cut off")
            if self._bodies:
                self._read_body(position, header)
        except FormatError as error:
            if end > self._size and self._published == _ALL:
                self._report.tail_bytes += self._size - position
                return None, offset
            self._bad(position, str(error))
        else:
            self._report.add(header)
        return end, header.next_offset

    def _read_body(self, position: int, header: ChunkHeader) -> None:
        payload = read_at(self._fd, header.payload_bytes, position + CHUNK_HEADER_BYTES)
        check_payload(header, payload)
        if self._schema is not None:
            body = pa.py_buffer(payload).slice(header.bloom_padded_bytes)
            batch = decode_body(body, self._schema, header.record_count)
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as error:
                raise FormatError(f"the records break their schema: {error}") from error

    def _bad(self, position: int, reason: str) -> None:
        self._report.problems.append(CorruptChunkError(self._path, position, reason))


def records(directory: Path, *, start: int = 0, limit: int | None = None) -> Iterator[Record]:
    """Durable records of a partition from `start` on, at most `limit`; raises CorruptChunkError at damage."""
    left = _ALL if limit is None else limit
    with PartitionReader(Partition(directory, "stop"), start=start) as reader:
        while left > 0 and (chunk := reader.read()) is not None:
            rows = chunk.batch.slice(0, min(left, chunk.record_count)).to_pylist()
            left -= len(rows)
            for row, columns in enumerate(rows):
                yield Record(chunk.first_offset + row, chunk.append_time_us, columns)
