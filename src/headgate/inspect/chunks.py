"""The chunk log as `why` and `trace` read it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import merge

import pyarrow.compute as pc

from headgate.event.arrow import EVENT_SCHEMA, from_batch
from headgate.inspect.find import EventSearch, FoundEvent, LogPage, SearchedPiece
from headgate.log.directory import LogDirectory
from headgate.log.reader import Chunk, PartitionReader
from headgate.log.search import newest_of_all

_ID, _SOURCE = (EVENT_SCHEMA.get_field_index(name) for name in ("id", "source"))


class InspectedChunks:
    """See `InspectedLog`: a piece is a chunk, and so is a page.

    Args:
        log: Directory of the partitions.
    """

    def __init__(self, log: LogDirectory) -> None:
        self._log = log

    def newest(self, search: EventSearch) -> Iterator[SearchedPiece]:
        """See `InspectedLog`."""
        for number, chunk in newest_of_all(self._log, before=search.before, not_before_us=search.since_us):
            found = _newest(number, chunk, search)
            yield SearchedPiece(number, chunk.first_offset, chunk.append_time_us, chunk.size_bytes, found)

    def at(self, partition: int, offset: int) -> FoundEvent | None:
        """See `InspectedLog`."""
        with PartitionReader(self._log.partition(partition), start=offset) as reader:
            chunk = reader.read()
            if chunk is None or chunk.first_offset != offset:
                return None
            return _event(partition, chunk, 0)

    def since(self, time_us: int) -> Iterator[LogPage]:
        """See `InspectedLog`: in the order of storing."""
        chunks = merge(*(self._since(number, time_us) for number in self._log.partitions()), key=lambda one: one[0])
        for _, number, chunk in chunks:
            yield LogPage(chunk.batch, chunk.size_bytes, partial(_event, number, chunk))

    def _since(self, number: int, time_us: int) -> Iterator[tuple[int, int, Chunk]]:
        with PartitionReader.open_at_time(self._log.partition(number), time_us) as reader:
            while (chunk := reader.read()) is not None:
                yield chunk.append_time_us, number, chunk


def _newest(partition: int, chunk: Chunk, search: EventSearch) -> Iterator[FoundEvent]:
    for row in reversed(pc.indices_nonzero(pc.equal(chunk.batch.column(_ID), search.id)).to_pylist()):
        if search.source in ("", chunk.batch.column(_SOURCE)[row].as_py()):
            yield _event(partition, chunk, row)


def _event(partition: int, chunk: Chunk, row: int) -> FoundEvent:
    """The event of a row of a chunk's batch."""
    offset, stored, header = chunk.first_offset + row, from_batch(chunk.batch, row), chunk.header
    return FoundEvent(partition, offset, chunk.append_time_us, stored, header.first_offset, header.record_count)
