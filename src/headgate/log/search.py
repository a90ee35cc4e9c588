"""Backward reading: chunks of partitions, newest first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import closing

from headgate.log.bloom import ValueHash, hash_value, might_contain
from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.reader import Chunk
from headgate.log.segments import ChunkLocation, Segments


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
                chunk = _wanted(location, probes)
            except CorruptChunkError as error:
                if error.first_offset is None:
                    raise
                partition.pass_over(error, error.first_offset, at)
                at = min(at - 1, error.first_offset)
                continue
            if chunk is not None:
                yield chunk
            at = location.header.first_offset


def holding(partition: Partition, offsets: Iterable[int]) -> Iterator[Chunk]:
    """The chunks that hold records, each once where offsets are in order, but not what is gone. As `newest_first`."""
    last: Chunk | None = None
    with closing(Segments(partition)) as segments:
        for offset in offsets:
            if last is not None and last.first_offset <= offset < last.next_offset:
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


def _wanted(location: ChunkLocation, probes: list[ValueHash] | None) -> Chunk | None:
    """The chunk, unless its filter excludes everything that is looked for."""
    header = location.header
    if probes is not None:
        bloom = location.segment.bloom(location.position, header)
        if not (bloom and might_contain(bloom, header.hash_count, probes)):
            return None
    return Chunk(location, header.first_offset)
