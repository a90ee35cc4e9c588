"""The search for an event by its id: newest first, a bounded piece of the log a call."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow.compute as pc

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, from_batch
from headgate.event.hops import hops_of, root_of
from headgate.limits import WHY_BYTES_MAX, WHY_CHUNKS_MAX, WHY_SECONDS_MAX
from headgate.log.directory import LogDirectory
from headgate.log.reader import Chunk, PartitionReader
from headgate.log.search import newest_of_all

_ID, _SOURCE = (EVENT_SCHEMA.get_field_index(name) for name in ("id", "source"))

OtherBroker = tuple[int, int]
"""Partition and offset of an event of the id that another broker has accepted."""


@dataclass(frozen=True, slots=True)
class EventSearch:
    """What is searched for.

    Attributes:
        id: The event's id.
        source: The event's source; empty finds the newest event of the id.
        since_us: Nothing older, microseconds since 1970 UTC.
        before: Where an earlier call ended: its `next`.
        other: Its `other`.
    """

    id: str
    source: str = ""
    since_us: int = 0
    before: Mapping[int, int] = field(default_factory=dict)
    other: OtherBroker | None = None

    def kept(self, retention_us: int | None) -> EventSearch:
        """The same of what a broker still shows, that keeps its events for so long; None: as long as the log."""
        if retention_us is None:
            return self
        return replace(self, since_us=max(self.since_us, time.time_ns() // 1_000 - retention_us))


@dataclass(frozen=True, slots=True)
class FoundEvent:
    """An event in the log.

    Attributes:
        partition: Of the log.
        offset: The event's.
        append_time_us: When its chunk was written, microseconds since 1970 UTC.
        stored: The event and its broker.
        chunk_first_offset: Of its chunk.
        chunk_record_count: Of its chunk.
    """

    partition: int
    offset: int
    append_time_us: int
    stored: StoredEvent
    chunk_first_offset: int
    chunk_record_count: int

    @property
    def hops(self) -> int:
        """How many brokers it has been through since its root; 0 for a root."""
        event = self.stored.event
        return hops_of(event) if root_of(event) else 0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a call found.

    Attributes:
        found: The newest event in the piece that was searched; of another broker only when all was searched.
        next: Where to go on searching; empty when there is nothing more.
        other: The newest event of another broker, to be given to the next call.
        searched_to_us: Append time of the oldest chunk that was searched; 0 when there was none.
    """

    found: FoundEvent | None
    next: Mapping[int, int]
    other: OtherBroker | None
    searched_to_us: int


def find_event(log: LogDirectory, broker: str, search: EventSearch) -> SearchResult:
    """The newest event that is searched for.

    Args:
        log: Directory of the partitions.
        broker: Its identity; its events are preferred to those of other brokers.
        search: What is searched for, and where an earlier call ended.
    """
    ends_s = time.monotonic() + WHY_SECONDS_MAX
    chunks = size = searched_us = 0
    reached = dict(search.before)
    other = search.other
    for partition, chunk in newest_of_all(log, before=search.before, not_before_us=search.since_us):
        # One chunk at least: who asks again gets on, however slow the disk is.
        if chunks and (chunks >= WHY_CHUNKS_MAX or size >= WHY_BYTES_MAX or time.monotonic() > ends_s):
            return SearchResult(None, reached, other, searched_us)
        for row in reversed(pc.indices_nonzero(pc.equal(chunk.batch.column(_ID), search.id)).to_pylist()):
            if search.source and chunk.batch.column(_SOURCE)[row].as_py() != search.source:
                continue
            offset = chunk.first_offset + row
            if offset >= search.before.get(partition, offset + 1):
                continue
            found = event_in(partition, chunk, row)
            if found.stored.broker == broker:
                return SearchResult(found, reached | {partition: offset}, other, chunk.append_time_us)
            other = other or (partition, offset)
        reached[partition] = chunk.first_offset
        chunks, size, searched_us = chunks + 1, size + chunk.size_bytes, chunk.append_time_us
    return SearchResult(_at(log, other, search) if other is not None else None, {}, other, searched_us)


def event_at(log: LogDirectory, partition: int, offset: int) -> FoundEvent | None:
    """The event of a place; None when there is none: a client may name any place."""
    with PartitionReader(log.partition(partition), start=offset) as reader:
        chunk = reader.read()
        if chunk is None or chunk.first_offset != offset:
            return None
        return event_in(partition, chunk, 0)


def event_in(partition: int, chunk: Chunk, row: int) -> FoundEvent:
    """The event of a row of a chunk's batch."""
    offset, stored, header = chunk.first_offset + row, from_batch(chunk.batch, row), chunk.header
    return FoundEvent(partition, offset, chunk.append_time_us, stored, header.first_offset, header.record_count)


def _at(log: LogDirectory, place: OtherBroker, search: EventSearch) -> FoundEvent | None:
    """The event of a place, if it still is there, and is one that is searched for."""
    found = event_at(log, *place)
    if found is None or found.stored.event.id != search.id:
        return None
    return found if search.source in ("", found.stored.event.source) else None
