"""The embedded log as scans see it: chunks, of which many are passed over by a look at their headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import repeat
from typing import Final

import pyarrow as pa

from headgate.filter.cel.evaluate import publish_time_us
from headgate.filter.skipping.prune import ChunkMatch, ChunkSummary, Pruning, pruning
from headgate.log.bloom import hash_value, might_contain
from headgate.log.directory import LogDirectory
from headgate.log.format import ChunkHeader, Codec
from headgate.log.reader import Chunk, LogEnds, PartitionReader, end_offsets, holding, newest_first
from headgate.scan.source import Query, ScanCounters, StoredPage, newest_of_all
from headgate_api.limits import PRUNE_VALUES_MAX, SCAN_CHUNKS_MAX

_NOTHING_PRUNED: Final = Pruning()
_probe: Final = lru_cache(PRUNE_VALUES_MAX)(hash_value)  # the same few values are looked for in chunk after chunk


class ChunkLog:
    """The embedded log as a `SearchableLog`."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._ends: LogEnds | None = None

    def partitions(self) -> list[int]:
        return self._directory.partitions()

    def source(self, query: Query, start: Mapping[int, int], end: Mapping[int, int]) -> ChunkSource:
        return ChunkSource(self._directory, query, start)

    def first_offsets(self) -> dict[int, int]:
        with closing(LogEnds(self._directory)) as ends:
            return {partition: ends.first_offset(partition) for partition in ends.partitions()}

    def end_offsets(self) -> dict[int, int]:
        return end_offsets(self._directory, self.partitions())

    def offsets_at_time(self, partitions: Sequence[int], time_us: int) -> dict[int, int]:
        found = {}
        for partition in partitions:
            with PartitionReader.open_at_time(self._directory.partition(partition), time_us) as reader:
                found[partition] = reader.position
        return found

    def newest(self, before: Mapping[int, int], not_before_us: int = 0) -> Iterator[tuple[int, StoredPage]]:
        def pages(number: int, offset: int) -> Iterator[StoredPage]:
            place = self._directory.partition(number)
            return map(ChunkPage, newest_first(place, before=offset, not_before_us=not_before_us))

        return newest_of_all({number: pages(number, offset) for number, offset in before.items()})

    def holding(self, partition: int, offsets: Iterable[int]) -> Iterator[ChunkPage]:
        return map(ChunkPage, holding(self._directory.partition(partition), offsets))

    async def current_ends(self) -> dict[int, int]:
        """Keeps the files open."""
        if self._ends is None:
            self._ends = LogEnds(self._directory)
        return {partition: self._ends.end_offset(partition) for partition in self._ends.partitions()}

    def close(self) -> None:
        if self._ends is not None:
            self._ends.close()
            self._ends = None


class ChunkPage:
    """A chunk as a `StoredPage`, or what of it lies behind a position."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self.offsets = range(chunk.first_offset, chunk.next_offset)

    @property
    def append_times_us(self) -> Sequence[int]:
        return list(repeat(self._chunk.append_time_us, len(self.offsets)))

    @property
    def batch(self) -> pa.RecordBatch:
        return self._chunk.batch

    @property
    def size_bytes(self) -> int:
        return self._chunk.size_bytes

    @property
    def message(self) -> bytes | None:
        return self._chunk.body.to_pybytes() if self._chunk.header.codec == Codec.NONE else None


class ChunkSource:
    """A `ScanSource` of chunks; passes over those whose header or Bloom filter rules out what is wanted."""

    def __init__(self, log: LogDirectory, query: Query, start: Mapping[int, int]) -> None:
        self._query = query
        self._pruning = _NOTHING_PRUNED if query.cel is None else pruning(query.cel, query.rule.cel)
        self._prunes = self._pruning != _NOTHING_PRUNED
        self._readers = {
            partition: PartitionReader(log.partition(partition), start=offset)
            for partition, offset in sorted(start.items())
        }
        self._counted = 0, 0, 0

    def begin(self, until: float) -> None:
        """Nothing: chunks are on this machine's disk."""

    def read(self, partition: int) -> ChunkPage | None:
        chunk = self._readers[partition].read(
            wanted=self._query.values,
            match_unfiltered=self._query.match_unfiltered,
            passes=self._passes if self._prunes else None,
            chunks_max=SCAN_CHUNKS_MAX,
        )
        return None if chunk is None else ChunkPage(chunk)

    def seek(self, partition: int, offset: int) -> None:
        self._readers[partition].seek(offset)

    def end(self, counters: ScanCounters) -> None:
        readers = self._readers.values()
        skipped = sum(reader.chunks_skipped for reader in readers)
        missed = sum(reader.records_missed for reader in readers)
        corrupt = sum(reader.records_corrupt for reader in readers)
        counters.chunks_skipped += skipped - self._counted[0]
        counters.events_missed += missed - self._counted[1]
        counters.events_corrupt += corrupt - self._counted[2]
        self._counted = skipped, missed, corrupt

    def position(self, partition: int) -> int:
        return self._readers[partition].position

    def end_offset(self, partition: int) -> int:
        return self._readers[partition].committed_offset()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _passes(self, header: ChunkHeader, bloom: bytes) -> bool:
        """Whether the filter may be true of an event of the chunk, by its header."""
        return self._pruning.judge(summary_of(header, bloom)) is ChunkMatch.MIGHT_MATCH


def summary_of(header: ChunkHeader, bloom: bytes) -> ChunkSummary:
    """A chunk as a `Pruning` judges it, from its header and the bytes of its Bloom filter."""

    def may_hold(values: frozenset[str]) -> bool:
        return header.bloom_bytes > 0 and might_contain(bloom, header.hash_count, map(_probe, values))

    return ChunkSummary(
        header.first_offset,
        header.next_offset,
        header.time_range_us,
        publish_time_us(header.append_time_us),
        header.unfiltered,
        may_hold,
    )
