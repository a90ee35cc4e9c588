"""Retention: removes whole segments by age and size, oldest first."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.files import FileOps, sync_directory
from headgate.log.recovery import list_segments
from headgate.log.segments import SegmentFile
from headgate.log.writer import PartitionWriter


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention did; `first_offset` is the first one kept now."""

    first_offset: int
    segments_removed: int
    bytes_removed: int


def retain(
    writer: PartitionWriter,
    *,
    now_us: int,
    floor_offset: int,
    age_us_max: int | None = None,
    bytes_max: int | None = None,
    files: FileOps | None = None,
) -> Retained:
    """Remove segments that are too old or too many; may run while another thread appends.

    A segment is as old as its newest record. The last segment always stays, and so does every record at or above
    `floor_offset` (the retention floor). The first offset is published first, then the files are removed. With None,
    age or size does not matter. After an OSError a later call goes on where this one stopped. Raises CorruptChunkError
    when a segment's age cannot be read.
    """
    files = files or FileOps()
    segments = list_segments(writer.directory)
    sizes = [path.stat().st_size for _, path in segments]
    total = sum(sizes)
    going = 0
    for index in range(len(segments) - 1):
        if segments[index + 1][0] > floor_offset:
            break
        too_many = bytes_max is not None and total > bytes_max
        too_old = age_us_max is not None and _is_older(writer, *segments[index + 1], now_us - age_us_max)
        if not (too_many or too_old):
            break
        total -= sizes[index]
        going = index + 1
    if going:
        writer.publish_first_offset(segments[going][0])
        for _, path in segments[:going]:
            files.unlink(path)
        sync_directory(files, writer.directory)
    first = segments[going][0] if segments else writer.next_offset
    return Retained(first, going, sum(sizes[:going]))


def time_of_newest(partition: Partition, bytes_max: int) -> int | None:
    """When the first of a partition's newest segments, `bytes_max` together, was begun; None when all are as few.

    The last segment counts whole, however large it is. Microseconds since 1970 UTC.
    """
    segments = list_segments(partition.directory)
    total, found = 0, None
    for index, (first, path) in enumerate(reversed(segments)):
        total += path.stat().st_size
        if total > bytes_max and index:
            return found
        found = _first_time_us(partition, first, path) or found
    return None


def _first_time_us(partition: Partition, first: int, path: Path) -> int | None:
    """When a segment's first chunk was appended; None while it has none."""
    try:
        with closing(SegmentFile(path, first)) as segment:
            return segment.first_time_us(first + 1)
    except CorruptChunkError:
        if not partition.skips:
            raise
        return path.stat().st_mtime_ns // 1_000  # no earlier than its first chunk


def _is_older(writer: PartitionWriter, next_first: int, next_path: Path, time_us: int) -> bool:
    """Whether all before this segment was appended before `time_us`: its first chunk's time is later than theirs."""
    if next_first >= writer.next_offset:
        return False  # nothing published in it yet: no bound known
    first_us = _first_time_us(writer.partition, next_first, next_path)
    return first_us is not None and first_us < time_us
