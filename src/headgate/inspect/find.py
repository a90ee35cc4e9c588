"""The search for an event by its id: newest first, a bounded piece of the log a call.

Two stores have an `InspectedLog`: the embedded log (`file_records.py`) and Kafka (`store/kafka/scan.py`). One
suite of tests holds both to what is said here (`tests/store/test_inspected_log.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from headgate.event.arrow import StoredEvent
from headgate.event.hops import hops_of, root_of
from headgate_api.event.names import namespace_of
from headgate_api.limits import WHY_BYTES_MAX, WHY_CHUNKS_MAX, WHY_SECONDS_MAX

OtherBroker = tuple[int, int]
"""Partition and offset of an event of the id that another broker has accepted."""


@dataclass(frozen=True, slots=True)
class EventSearch:
    """What is searched for: the newest event of an id and, where it is not empty, a source, stored since `since_us`.

    `before` and `other` are what an earlier call gave as `next` and `other`. Times are microseconds since 1970 UTC.
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
    """An event in the log, stored at `append_time_us`, microseconds since 1970 UTC; on Kafka each is its own chunk."""

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
    """What a call found: the newest event in the piece that was searched; of another broker when all was searched.

    `next` is where to go on searching; empty when there is nothing more. `other` is the newest event of another broker,
    for the next call. `searched_to_us` is the append time of the oldest chunk that was searched; 0 for none.
    """

    found: FoundEvent | None
    next: Mapping[int, int]
    other: OtherBroker | None
    searched_to_us: int


@dataclass(frozen=True, slots=True)
class SearchedPiece:
    """A piece of a partition that was searched; with it, everything of the partition from `first_offset` on.

    Its oldest event was stored at `append_time_us`. The events are those of the id and the source, the newest first;
    some may stand at or behind `EventSearch.before`.
    """

    partition: int
    first_offset: int
    append_time_us: int
    size_bytes: int
    events: Iterable[FoundEvent]


@dataclass(frozen=True, slots=True)
class LogPage:
    """Events of one partition that were read together: a row each, with the columns of `EVENT_SCHEMA`."""

    batch: pa.RecordBatch
    size_bytes: int
    event: Callable[[int], FoundEvent]


class InspectedLog(Protocol):
    """The event log as `why` and `trace` read it. Blocking, for any thread.

    Every method raises UnavailableError where the store does not answer.
    """

    def newest(self, search: EventSearch) -> Iterator[SearchedPiece]:
        """Pieces of all partitions, the newest first, from `search.before` back to `search.since_us`."""
        ...

    def at(self, partition: int, offset: int) -> FoundEvent | None:
        """The event of a place; None when there is none: a client may name any place."""
        ...

    def descendants(self, root: str, time_us: int) -> Iterator[LogPage]:
        """All that descends from an event and was stored at or after a time; of a partition in order.

        Pages may hold anything else, too, and what was stored a little earlier.
        """
        ...


def find_event(log: InspectedLog, broker: str, search: EventSearch) -> SearchResult:
    """The newest event that is searched for.

    Events of the broker, by its identity, are preferred to those of other brokers of its namespace. What is in other
    namespaces is nothing to who asks.
    """
    ends_s = time.monotonic() + WHY_SECONDS_MAX
    pieces = size = searched_us = 0
    reached = dict(search.before)
    other = search.other
    for piece in log.newest(search):
        # One piece at least: who asks again gets on, however slow the disk is.
        if pieces and (pieces >= WHY_CHUNKS_MAX or size >= WHY_BYTES_MAX or time.monotonic() > ends_s):
            return SearchResult(None, reached, other, searched_us)
        partition = piece.partition
        for found in piece.events:
            offset = found.offset
            if offset >= search.before.get(partition, offset + 1):
                continue
            if found.stored.broker == broker:
                return SearchResult(found, reached | {partition: offset}, other, piece.append_time_us)
            if other is None and _is_near(found, broker):
                other = partition, offset
        reached[partition] = piece.first_offset
        pieces, size, searched_us = pieces + 1, size + piece.size_bytes, piece.append_time_us
    return SearchResult(_at(log, other, broker, search) if other is not None else None, {}, other, searched_us)


def _is_near(found: FoundEvent, broker: str) -> bool:
    """Whether an event was accepted in the namespace of a broker."""
    return namespace_of(found.stored.broker) == namespace_of(broker)


def _at(log: InspectedLog, place: OtherBroker, broker: str, search: EventSearch) -> FoundEvent | None:
    """The event of a place, if it still is there, and is one that is searched for: a client may name any place."""
    found = log.at(*place)
    if found is None or found.stored.event.id != search.id or not _is_near(found, broker):
        return None
    return found if search.source in ("", found.stored.event.source) else None
