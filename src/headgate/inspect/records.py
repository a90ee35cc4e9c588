"""The records of what became of events: the files that the processes write, read beside them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.deadletters.store import DeadLetterReader, StoredDeadLetter
from headgate.delivery.cursors import Cursors, CursorStore
from headgate.delivery.journal import JournalEntry, entries
from headgate.errors import UnavailableError
from headgate.filter.compile.plan import Verdict
from headgate.inspect.find import FoundEvent
from headgate.limits import CLOCK_SLACK_S
from headgate.log.directory import LogDirectory, OnCorrupt, Partition
from headgate.log.reader import PartitionReader
from headgate.log.search import newest_first
from headgate.outbox.shards import dispatcher_of
from headgate.outbox.writer import OUTBOX_SCHEMA, PROGRESS_TARGET
from headgate.storage.dispatcher_directory import DispatcherDirectory, directories_of
from headgate.subscriptions.saved import SavedCursor
from headgate.subscriptions.store import SubscriptionStore

_COLUMN = {name: OUTBOX_SCHEMA.get_field_index(name) for name in OUTBOX_SCHEMA.names}
_CLOCK_SLACK_US = int(CLOCK_SLACK_S * 1_000_000)
_NEAR_US = 60_000_000


@dataclass(frozen=True, slots=True)
class MatchRow:
    """A row of the outbox.

    Attributes:
        position: In the outbox.
        time_us: When it was written, microseconds since 1970 UTC.
        generation: Of the filters that matched it.
        target: Id of the trigger or subscription.
        verdict: The matcher's.
    """

    position: int
    time_us: int
    generation: int
    target: int
    verdict: Verdict


class Records:
    """Files of the data directory. Blocking; any number of calls at the same time.

    Args:
        data: The data directory.
        log: The event log.
        dispatchers: How many there are.

    Attributes:
        log: The event log.
        dispatchers: What each dispatcher has written, by their numbers.
    """

    def __init__(self, data: Path, log: LogDirectory, dispatchers: int = 1) -> None:
        self.log = log
        directories = directories_of(data, dispatchers)
        self.dispatchers = tuple(DispatcherRecords(own, log.on_corrupt) for own in directories)

    def of(self, target: int) -> DispatcherRecords:
        """What the dispatcher of a target has written."""
        return self.dispatchers[dispatcher_of(target, len(self.dispatchers))]

    def is_matched(self, found: FoundEvent) -> bool:
        """Whether the matcher has passed an event: all of its rows are there.

        Raises:
            UnavailableError: A file is busy.
        """
        return all(found.offset < one.watermark(found.partition, one.cursors()) for one in self.dispatchers)

    def rows(self, found: FoundEvent) -> list[MatchRow]:
        """The rows of an event and every target, in the order in which they were written."""
        return sorted(chain.from_iterable(one.rows(found) for one in self.dispatchers), key=lambda row: row.time_us)

    def attempts(self, found: FoundEvent) -> tuple[JournalEntry, ...]:
        """What the journals still know of the event's attempts and ends, the oldest first."""
        known = chain.from_iterable(one.attempts(found) for one in self.dispatchers)
        return tuple(sorted(known, key=lambda entry: entry.time_us))


class DispatcherRecords:
    """Files of one dispatcher. Blocking; any number of calls at the same time.

    Args:
        own: Its directory.
        on_corrupt: What is done at damaged chunks.
    """

    def __init__(self, own: DispatcherDirectory, on_corrupt: OnCorrupt) -> None:
        self._own = own
        self._outbox = Partition(own.outbox, on_corrupt)

    def cursors(self) -> Cursors:
        """Which deliveries have ended.

        Raises:
            UnavailableError: The file is busy.
        """
        path = self._own.cursors
        with _reading("the dispatcher's cursors"):
            return CursorStore.read(path) if path.exists() else Cursors()

    def subscriptions(self) -> Mapping[int, SavedCursor]:
        """The cursors of subscriptions by target id.

        Raises:
            UnavailableError: The file is busy.
        """
        with _reading("the subscriptions' cursors"):
            return SubscriptionStore.read(self._own.subscriptions)

    def watermark(self, partition: int, cursors: Cursors) -> int:
        """Every event of the partition below it has been matched: the newest progress row, else what cursors know."""
        for chunk in newest_first(self._outbox, wanted=[str(PROGRESS_TARGET)]):
            offset = _progress(chunk.batch, partition)
            if offset is not None:
                return offset
            if chunk.first_offset < cursors.position:
                break
        return cursors.watermarks.get(partition, 0)

    def row(self, found: FoundEvent, target: int) -> MatchRow | None:
        """The row of an event and a target: chunks without rows of the target are passed over."""
        earliest_us = found.append_time_us - _CLOCK_SLACK_US
        for chunk in newest_first(self._outbox, not_before_us=earliest_us, wanted=[str(target)]):
            for row in _rows(chunk.batch, found, target):
                return _match(chunk.batch, row, chunk.first_offset, chunk.append_time_us)
        return None

    def rows(self, found: FoundEvent) -> list[MatchRow]:
        """The rows of an event and every target, in order: up to where the outbox says that it has been matched."""
        if not self._outbox.directory.is_dir():
            return []
        # Rows are written soon after their event. Only where the clock was set back since, they may look older.
        near, are_all = self._rows_since(found, found.append_time_us - _NEAR_US)
        return near if are_all else self._rows_since(found, found.append_time_us - _CLOCK_SLACK_US)[0]

    def _rows_since(self, found: FoundEvent, time_us: int) -> tuple[list[MatchRow], bool]:
        """The rows of an event in chunks since a time, and whether there are surely none in earlier chunks."""
        matches: list[MatchRow] = []
        with PartitionReader.open_at_time(self._outbox, time_us) as reader:
            are_all = reader.position <= reader.first_offset()
            while (chunk := reader.read()) is not None:
                batch = chunk.batch
                matches += [
                    _match(batch, row, chunk.first_offset, chunk.append_time_us) for row in _rows(batch, found, None)
                ]
                matched_to = _progress(batch, found.partition)
                if matched_to is not None and matched_to > found.offset:
                    break
                are_all |= matched_to is not None  # the event was not matched yet
        return matches, are_all

    def oldest_row_us(self) -> int:
        """When the oldest row was written that the outbox still has; 0 when nothing was trimmed."""
        with PartitionReader(self._outbox, start=0) as reader:
            if not reader.first_offset():
                return 0
            chunk = reader.read()
            return chunk.append_time_us if chunk is not None else 0

    def dead_letter(self, target: int, position: int) -> StoredDeadLetter | None:
        """The dead letter of a row, while it is kept.

        Raises:
            UnavailableError: The file is busy.
        """
        path = self._own.dead_letters
        if not path.exists():
            return None
        with _reading("the dead letters"), DeadLetterReader.open(path) as stored:
            found = stored.page("target = ? AND position = ?", (target, position), after=0, limit=1)
        return found[0] if found else None

    def attempts(self, found: FoundEvent) -> tuple[JournalEntry, ...]:
        """What the journal still knows of the event's attempts and ends, the oldest first."""
        return tuple(entries(self._own.attempts, found.partition, found.offset))


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Reads a file that another process writes."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UnavailableError(f"{what} cannot be read now: {error}") from error


def _rows(batch: pa.RecordBatch, found: FoundEvent, target: int | None) -> list[int]:
    of_event = pc.and_(
        pc.equal(batch.column(_COLUMN["offset"]), found.offset),
        pc.equal(batch.column(_COLUMN["partition"]), found.partition),
    )
    targets = batch.column(_COLUMN["target"])
    wanted = pc.not_equal(targets, PROGRESS_TARGET) if target is None else pc.equal(targets, target)
    rows: list[int] = pc.indices_nonzero(pc.and_(of_event, wanted)).to_pylist()
    return rows


def _match(batch: pa.RecordBatch, row: int, first_position: int, time_us: int) -> MatchRow:
    def value(name: str) -> Any:  # noqa: ANN401 - a column's
        return batch.column(_COLUMN[name])[row].as_py()

    return MatchRow(first_position + row, time_us, value("generation"), value("target"), Verdict(value("verdict")))


def _progress(batch: pa.RecordBatch, partition: int) -> int | None:
    """Up to where the partition has been matched, as the last progress row of a chunk says."""
    progress = pc.and_(
        pc.equal(batch.column(_COLUMN["target"]), PROGRESS_TARGET),
        pc.equal(batch.column(_COLUMN["partition"]), partition),
    )
    rows = pc.indices_nonzero(progress).to_pylist()
    return int(batch.column(_COLUMN["offset"])[rows[-1]].as_py()) if rows else None
