"""The records of what became of events: what dispatchers have written down.

What a dispatcher knows of one event is one answer, `EventRecords`. On one machine it is read from files
(`file_records.py`); in a deployment on Kafka the owners of partitions are asked for it
(`server/kafka/partition_answers.py`), and the rows of the outbox come from the topic
(`store/kafka/partition_views.py`).
One suite of tests runs on both (`tests/store/test_records_contract.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Protocol

import msgspec

from headgate.delivery.journal import JournalEntry
from headgate.filter.compile.plan import Verdict
from headgate.inspect.find import FoundEvent, InspectedLog
from headgate.outbox.shards import dispatcher_of


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
    """A dead letter that is kept; see `StoredDeadLetter`."""

    id: int
    state: str
    died_us: int
    reason: str
    code: int
    data: bytes
    attempts: int
    sink: str
    problem: str


@dataclass(frozen=True, slots=True)
class RowRecord:
    """A row of an event, and what is known of its delivery: what it waits for, None when it has ended.

    `pull` is as a subscription's cursor says; of a trigger it means nothing.
    """

    row: MatchRow
    unfinished: Unfinished | None
    dead_letter: KeptDeadLetter | None
    pull: PullTrace


class EventRecords(msgspec.Struct, frozen=True):
    """What a dispatcher knows of one event: rows in order; attempts and ends that the journal knows, the oldest first.

    `is_matched` says that the matcher has passed the event: all of its rows are there, or were. `is_trimmed` says that
    rows of the event may have been there that cannot be read any more.
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
        """Whether all of its rows are there, or were."""
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
