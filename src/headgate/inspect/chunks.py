"""The chunk log as `why` and `trace` read it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import merge
from itertools import takewhile
from operator import le

import pyarrow.compute as pc

from headgate.event.arrow import EVENT_SCHEMA, from_batch
from headgate.inspect.find import EventSearch, FoundEvent, LogPage, SearchedPiece
from headgate.inspect.log_follower import LogFollower
from headgate.log.directory import LogDirectory, Partition
from headgate.log.reader import Chunk, PartitionReader
from headgate.log.search import holding, newest_first

_ID, _SOURCE = (EVENT_SCHEMA.get_field_index(name) for name in ("id", "source"))


class InspectedChunks:
    """See `InspectedLog`: a piece is a chunk, and so is a page.

    Where a follower has read the log, its index names the chunks; the others are read one after the other.

    Args:
        log: Directory of the partitions.
        follower: Follows it; None for nobody.
    """

    def __init__(self, log: LogDirectory, follower: LogFollower | None = None) -> None:
        self._log = log
        self._follower = follower

    def newest(self, search: EventSearch) -> Iterator[SearchedPiece]:
        """See `InspectedLog`."""
        pieces = merge(*(self._newest(number, search) for number in self._log.partitions()), key=_newest_key)
        return iter(pieces)

    def _newest(self, number: int, search: EventSearch) -> Iterator[SearchedPiece]:
        """The chunks of a partition that may hold the event, the newest first."""
        partition, before = self._log.partition(number), search.before.get(number)
        low, high = (0, 0) if self._follower is None else self._follower.covered(number)
        if low >= high:
            for chunk in newest_first(partition, before=before, not_before_us=search.since_us):
                yield _piece(number, chunk, search)
            return
        assert self._follower is not None
        index = self._follower.index
        if before is None or before > high:
            for chunk in newest_first(partition, before=before, not_before_us=search.since_us):
                if chunk.next_offset <= high:
                    break
                yield _piece(number, chunk, search)
        end = high if before is None else min(before, high)
        named = index.with_id(number, search.id, low, end)
        low = min(max(low, index.low(number)), end)  # some of them may have been given up just now
        for chunk in holding(partition, takewhile(partial(le, low), named)):
            if chunk.append_time_us < search.since_us:
                return
            yield _piece(number, chunk, search)
        oldest = _oldest(partition, low, end)
        if oldest is not None:
            yield SearchedPiece(number, low, max(oldest.append_time_us, search.since_us), 0, iter(()))
            if oldest.append_time_us < search.since_us:
                return
        for chunk in newest_first(partition, before=low, not_before_us=search.since_us):
            yield _piece(number, chunk, search)

    def at(self, partition: int, offset: int) -> FoundEvent | None:
        """See `InspectedLog`."""
        with PartitionReader(self._log.partition(partition), start=offset) as reader:
            chunk = reader.read()
            if chunk is None or chunk.first_offset != offset:
                return None
            return _event(partition, chunk, 0)

    def descendants(self, root: str, time_us: int) -> Iterator[LogPage]:
        """See `InspectedLog`: in the order of storing."""
        found = (self._since(number, root, time_us) for number in self._log.partitions())
        for _, number, chunk in merge(*found, key=lambda one: one[0]):
            yield LogPage(chunk.batch, chunk.size_bytes, partial(_event, number, chunk))

    def _since(self, number: int, root: str, time_us: int) -> Iterator[tuple[int, int, Chunk]]:
        low, high = (0, 0) if self._follower is None else self._follower.covered(number)
        partition = self._log.partition(number)
        with PartitionReader.open_at_time(partition, time_us) as reader:
            begin = reader.position
            if self._follower is not None and low <= begin < high:
                named = self._follower.index.with_root(number, root, begin, high)
                if self._follower.index.low(number) <= begin:  # else some of them were given up just now
                    for chunk in holding(partition, named):
                        yield chunk.append_time_us, number, chunk
                    reader.seek(high)
            while (chunk_read := reader.read()) is not None:
                yield chunk_read.append_time_us, number, chunk_read


def _oldest(partition: Partition, low: int, high: int) -> Chunk | None:
    """The oldest chunk with records from `low` on and below `high` that retention has left."""
    if low >= high:
        return None
    with PartitionReader(partition, start=low) as reader:
        chunk = reader.read()
    return chunk if chunk is not None and chunk.first_offset < high else None


def _newest_key(piece: SearchedPiece) -> tuple[int, int]:
    return -piece.append_time_us, piece.partition


def _piece(number: int, chunk: Chunk, search: EventSearch) -> SearchedPiece:
    return SearchedPiece(
        number, chunk.first_offset, chunk.append_time_us, chunk.size_bytes, _found(number, chunk, search)
    )


def _found(partition: int, chunk: Chunk, search: EventSearch) -> Iterator[FoundEvent]:
    for row in reversed(pc.indices_nonzero(pc.equal(chunk.batch.column(_ID), search.id)).to_pylist()):
        if search.source in ("", chunk.batch.column(_SOURCE)[row].as_py()):
            yield _event(partition, chunk, row)


def _event(partition: int, chunk: Chunk, row: int) -> FoundEvent:
    """The event of a row of a chunk's batch."""
    offset, stored, header = chunk.first_offset + row, from_batch(chunk.batch, row), chunk.header
    return FoundEvent(partition, offset, chunk.append_time_us, stored, header.first_offset, header.record_count)
