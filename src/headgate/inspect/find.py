"""The search for an event by its id, newest first, a bounded piece of the log a call; and what became of it.

Two stores have an `InspectedLog`: the embedded log (`file_records.py`) and Kafka (`backend/kafka/scan.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa

from headgate.delivery.journal import JournalEntry
from headgate.event.arrow import StoredEvent
from headgate.event.hops import hops_of, root_of
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.plan import Verdict
from headgate.outbox.shards import dispatcher_of
from headgate_api.event import rfc3339
from headgate_api.event.names import namespace_of
from headgate_api.limits import WHY_BYTES_MAX, WHY_CHUNKS_MAX, WHY_SECONDS_MAX

if TYPE_CHECKING:
    from headgate.deadletters.own import OpaqueIds  # heavy, and only its type is needed


def time_text(time_us: int) -> str:
    """RFC 3339 in milliseconds."""
    return rfc3339.text(time_us, "milliseconds")


OtherBroker = tuple[int, int]
"""Partition and offset of an event of the id that another broker has accepted."""


@dataclass(frozen=True, slots=True)
class EventSearch:
    """What is searched for: the newest event of an id and, where it is not empty, a source, stored since `since_us`.

    `before` and `other` are what an earlier call gave as `next` and `other`. Below a `ceiling`, CEL, an event of which
    it is not true is not there, nor are those of other brokers.
    """

    id: str
    source: str = ""
    since_us: int = 0
    before: Mapping[int, int] = field(default_factory=dict)
    other: OtherBroker | None = None
    ceiling: str = ""

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

    The events are those of the id and the source, the newest first; some may stand at or behind `EventSearch.before`.
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
    """The event log as `why` and `trace` read it. Blocking, for any thread; UnavailableError where it is away."""

    def newest(self, search: EventSearch) -> Iterator[SearchedPiece]:
        """Pieces of all partitions, the newest first, from `search.before` back to `search.since_us`."""
        ...

    def at(self, partition: int, offset: int) -> FoundEvent | None:
        """The event of a place; None when there is none: a client may name any place."""
        ...

    def descendants(self, root: str, time_us: int) -> Iterator[LogPage]:
        """All that descends from an event and was stored since, each partition in order; others may come, too."""
        ...


def find_event(log: InspectedLog, broker: str, search: EventSearch) -> SearchResult:
    """The newest event that is searched for: of the broker, else of its namespace; nothing is told of others."""
    ends_s = time.monotonic() + WHY_SECONDS_MAX
    pieces = size = searched_us = 0
    reached = dict(search.before)
    other = search.other if not search.ceiling else None
    for piece in log.newest(search):
        # One piece at least: who asks again gets on, however slow the disk is.
        if pieces and (pieces >= WHY_CHUNKS_MAX or size >= WHY_BYTES_MAX or time.monotonic() > ends_s):
            return SearchResult(None, reached, other, searched_us)
        partition = piece.partition
        for found in piece.events:
            offset = found.offset
            if offset >= search.before.get(partition, offset + 1):
                continue
            if search.ceiling and not (found.stored.broker == broker and is_below(found, search.ceiling)):
                continue
            if found.stored.broker == broker:
                # Which other partitions were looked into may say where hidden events of the id are.
                passed = search.before if search.ceiling else reached
                return SearchResult(found, {**passed, partition: offset}, other, piece.append_time_us)
            if other is None and _is_near(found, broker):
                other = partition, offset
        reached[partition] = piece.first_offset
        pieces, size, searched_us = pieces + 1, size + piece.size_bytes, piece.append_time_us
    return SearchResult(_at(log, other, broker, search) if other is not None else None, {}, other, searched_us)


def is_below(found: FoundEvent, ceiling: str) -> bool:
    """Whether an event is below a ceiling, CEL; empty for none."""
    if not ceiling:
        return True
    view = EventView(found.stored.event, found.append_time_us)
    return program(ceiling).evaluate_view(view).kind is OutcomeKind.TRUE


def _is_near(found: FoundEvent, broker: str) -> bool:
    return namespace_of(found.stored.broker) == namespace_of(broker)


def _at(log: InspectedLog, place: OtherBroker, broker: str, search: EventSearch) -> FoundEvent | None:
    """The event of a place, if it still is there, and is one that is searched for: a client may name any place."""
    found = log.at(*place)
    if found is None or found.stored.event.id != search.id or not _is_near(found, broker):
        return None
    return found if search.source in ("", found.stored.event.source) else None


# --- records --------------------------------------------------------------------------------------
# The records of what became of events: what dispatchers have written down.
#
# What a dispatcher knows of one event is one answer, `EventRecords`. On one machine it is read from files
# (`file_records.py`); in a deployment on Kafka the owners of partitions are asked for it
# (`server/processes/kafka/partition_answers.py`), and the rows of the outbox come from the topic
# (`backend/kafka/partition_views.py`).
# One suite of tests runs on both (`tests/backend/test_records_contract.py`).


@dataclass(frozen=True, slots=True)
class MatchRow:
    """A row of the outbox, by its position there; `time_us` is when it was written, microseconds since 1970 UTC."""

    position: int
    time_us: int
    generation: int
    target: int
    verdict: Verdict


class PullState(StrEnum):
    """Where an event stands in a subscription."""

    UNREAD = "unread"
    HANDED_OUT = "handed-out"
    WAITING = "waiting"
    ENDED = "ended"  # acknowledged, refused by the filter, or given up


@dataclass(frozen=True, slots=True)
class PullTrace:
    """What a subscription has done with an event, `deliveries` times (0: no longer known), and who has it, if any."""

    state: PullState
    deliveries: int = 0
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A delivery that has not ended; the next attempt is at `due_us`, since 1970 UTC, 0 where it waits for its turn."""

    failed: int = 0
    due_us: int = 0


class KeptDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter that is kept, or a pending event; see `StoredDeadLetter`."""

    id: int
    state: str
    died_us: int
    reason: str
    code: int
    data: bytes
    attempts: int
    sink: str
    problem: str
    due_us: int
    is_shared: bool


@dataclass(frozen=True, slots=True)
class RowRecord:
    """A row of an event and what its delivery waits for, None when it has ended; `pull` means nothing of a trigger."""

    row: MatchRow
    unfinished: Unfinished | None
    dead_letter: KeptDeadLetter | None
    pull: PullTrace


class EventRecords(msgspec.Struct, frozen=True):
    """What a dispatcher knows of one event: rows in order; attempts and ends that the journal knows, the oldest first.

    `is_matched`: the matcher has passed the event, so all of its rows are there, or were. `is_trimmed`: there may have
    been rows that cannot be read any more.
    """

    is_matched: bool
    is_trimmed: bool
    rows: list[RowRecord]
    attempts: list[JournalEntry]


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """What dispatchers know of one event: records of those that were asked, by number, and how many there are."""

    records: Mapping[int, EventRecords]
    dispatchers: int

    def of(self, target: int) -> EventRecords:
        return self.records[dispatcher_of(target, self.dispatchers)]

    @property
    def is_matched(self) -> bool:
        return all(one.is_matched for one in self.records.values())

    @property
    def rows(self) -> list[RowRecord]:
        """Of every target, in the order in which they were written."""
        found = chain.from_iterable(one.rows for one in self.records.values())
        return sorted(found, key=lambda one: one.row.time_us)

    @property
    def attempts(self) -> list[JournalEntry]:
        """The oldest first."""
        found = chain.from_iterable(one.attempts for one in self.records.values())
        return sorted(found, key=lambda entry: entry.time_us)


def asked_for(target: int | None, dispatchers: int) -> Sequence[int]:
    """The dispatchers that know of a target, of all where it is None."""
    return range(dispatchers) if target is None else (dispatcher_of(target, dispatchers),)


class Records(Protocol):
    """Where events are, and what became of them. Blocking; any number of calls at the same time."""

    @property
    def log(self) -> InspectedLog: ...

    def of_event(self, found: FoundEvent, target: int | None = None) -> KnownEvent:
        """What is known of an event, for one target or all; UnavailableError when a file or a dispatcher is busy."""
        ...


def told_below(records: EventRecords, ids: OpaqueIds) -> EventRecords:
    """Records as a user below a ceiling has them: nothing counts what is others', no answer speaks of other events."""

    def told(one: RowRecord) -> RowRecord:
        letter, row = one.dead_letter, replace(one.row, position=0)
        if letter is not None:
            data = b"" if letter.is_shared else letter.data
            letter = msgspec.structs.replace(letter, id=ids.shown(letter.id), data=data)
        return replace(one, row=row, dead_letter=letter)

    return msgspec.structs.replace(records, rows=list(map(told, records.rows)))


class RecordsBelow:
    """The same of all dispatchers; `ids` may block."""

    def __init__(self, records: Records, ids: Callable[[], OpaqueIds]) -> None:
        self._records = records
        self._ids = ids

    @property
    def log(self) -> InspectedLog:
        return self._records.log

    def of_event(self, found: FoundEvent, target: int | None = None) -> KnownEvent:
        known, ids = self._records.of_event(found, target), self._ids()
        return replace(known, records={number: told_below(one, ids) for number, one in known.records.items()})
