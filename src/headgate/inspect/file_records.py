"""The files of one machine that say what became of events: the chunk log, and what dispatchers write down."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import takewhile
from operator import le
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.deadletters.store import DeadLetterReader
from headgate.delivery.cursors import Cursors, CursorStore
from headgate.delivery.journal import JournalEntry, entries
from headgate.event.arrow import EVENT_SCHEMA, from_batch
from headgate.filter.compile.plan import Verdict
from headgate.inspect.find import (
    EventRecords,
    EventSearch,
    FoundEvent,
    InspectedLog,
    KeptDeadLetter,
    KnownEvent,
    LogPage,
    MatchRow,
    PullState,
    PullTrace,
    RowRecord,
    SearchedPiece,
    Unfinished,
    asked_for,
)
from headgate.inspect.log_follower import LogFollower
from headgate.log.directory import LogDirectory, OnCorrupt, Partition
from headgate.log.reader import Chunk, PartitionReader, holding, newest_first
from headgate.outbox.writer import OUTBOX_SCHEMA, PROGRESS_TARGET
from headgate.storage.files import DispatcherDirectory, directories_of
from headgate.subscriptions.store import SavedCursor, SubscriptionStore
from headgate_api.errors import UnavailableError
from headgate_api.limits import CLOCK_SLACK_S

_ID, _SOURCE = (EVENT_SCHEMA.get_field_index(name) for name in ("id", "source"))


class InspectedChunks:
    """See `InspectedLog`: a piece is a chunk, and so is a page. A follower's index names chunks that it has read."""

    def __init__(self, log: LogDirectory, follower: LogFollower | None = None) -> None:
        self._log = log
        self._follower = follower

    def newest(self, search: EventSearch) -> Iterator[SearchedPiece]:
        pieces = (self._newest(number, search) for number in self._log.partitions())
        return iter(merge(*pieces, key=lambda piece: (-piece.append_time_us, piece.partition)))

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
        with PartitionReader(self._log.partition(partition), start=offset) as reader:
            chunk = reader.read()
            if chunk is None or chunk.first_offset != offset:
                return None
            return _event(partition, chunk, 0)

    def descendants(self, root: str, time_us: int) -> Iterator[LogPage]:
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


def _piece(number: int, chunk: Chunk, search: EventSearch) -> SearchedPiece:
    return SearchedPiece(
        number, chunk.first_offset, chunk.append_time_us, chunk.size_bytes, _found(number, chunk, search)
    )


def _found(partition: int, chunk: Chunk, search: EventSearch) -> Iterator[FoundEvent]:
    for row in reversed(pc.indices_nonzero(pc.equal(chunk.batch.column(_ID), search.id)).to_pylist()):
        if search.source in ("", chunk.batch.column(_SOURCE)[row].as_py()):
            yield _event(partition, chunk, row)


def _event(partition: int, chunk: Chunk, row: int) -> FoundEvent:
    offset, stored, header = chunk.first_offset + row, from_batch(chunk.batch, row), chunk.header
    return FoundEvent(partition, offset, chunk.append_time_us, stored, header.first_offset, header.record_count)


_COLUMN = {name: OUTBOX_SCHEMA.get_field_index(name) for name in OUTBOX_SCHEMA.names}
_CLOCK_SLACK_US = int(CLOCK_SLACK_S * 1_000_000)
_SINCE_US = (1_000_000, 60_000_000, _CLOCK_SLACK_US)
"""How long before an event its rows may seem to have been written: the clock may have been set back since."""


class FileRecords:
    """See `Records`: files of the data directory; `dispatchers` has what each one has written, by its number."""

    log: InspectedLog

    def __init__(
        self, data: Path, log: LogDirectory, dispatchers: int = 1, follower: LogFollower | None = None
    ) -> None:
        self.log = InspectedChunks(log, follower)
        directories = directories_of(data, dispatchers)
        self.dispatchers = tuple(DispatcherRecords(own, log.on_corrupt) for own in directories)

    def of_event(self, found: FoundEvent, target: int | None = None) -> KnownEvent:
        count = len(self.dispatchers)
        known = {one: self.dispatchers[one].of_event(found, target) for one in asked_for(target, count)}
        return KnownEvent(known, count)


class DeliveryRecords:
    """What a dispatcher has written of its deliveries; its journal is in `attempts`. Blocking; for any thread.

    Every method raises UnavailableError while a file is busy.
    """

    def __init__(self, own: DispatcherDirectory, attempts: Path) -> None:
        self._own = own
        self._attempts = attempts

    def cursors(self) -> Cursors:
        path = self._own.cursors
        with _reading("the dispatcher's cursors"):
            return CursorStore.read(path) if path.exists() else Cursors()

    def subscriptions(self) -> Mapping[int, SavedCursor]:
        with _reading("the subscriptions' cursors"):
            return SubscriptionStore.read(self._own.subscriptions)

    def dead_letter(self, target: int, position: int) -> KeptDeadLetter | None:
        path = self._own.dead_letters
        if not path.exists():
            return None
        with _reading("the dead letters"), DeadLetterReader.open(path) as stored:
            found = next(stored.summaries("target = ? AND position = ?", (target, position), after=0, limit=1), None)
        if found is None:
            return None
        return KeptDeadLetter(**{name: getattr(found, name) for name in KeptDeadLetter.__struct_fields__})

    def attempts(self, partition: int, offset: int) -> list[JournalEntry]:
        return list(entries(self._attempts, partition, offset))

    def of_rows(self, rows: Sequence[MatchRow], cursors: Cursors) -> list[RowRecord]:
        """What is known of the deliveries of rows of one event; cursors were read before the rows were looked for."""
        if not rows:
            return []
        saved = self.subscriptions()
        return [
            RowRecord(
                row,
                _unfinished(row, cursors),
                self.dead_letter(row.target, row.position),
                _pull(row.position, saved.get(row.target)),
            )
            for row in rows
        ]


class DispatcherRecords(DeliveryRecords):
    """Files of one dispatcher. Blocking; any number of calls at the same time."""

    def __init__(self, own: DispatcherDirectory, on_corrupt: OnCorrupt) -> None:
        super().__init__(own, own.attempts)
        self._outbox = Partition(own.outbox, on_corrupt)

    def of_event(self, found: FoundEvent, target: int | None) -> EventRecords:
        cursors = self.cursors()
        # Before its rows are looked for: what is below the watermark now has its rows.
        is_matched = found.offset < self.watermark(found.partition, cursors)
        rows = [one for one in self.rows(found) if target is None or one.target == target]
        is_trimmed = 0 < found.append_time_us < self.oldest_row_us()
        attempts = self.attempts(found.partition, found.offset)
        return EventRecords(is_matched, is_trimmed, self.of_rows(rows, cursors), attempts)

    def watermark(self, partition: int, cursors: Cursors) -> int:
        """Every event of the partition below it has been matched: the newest progress row, else what cursors know."""
        for chunk in newest_first(self._outbox, wanted=[str(PROGRESS_TARGET)]):
            offset = _progress(chunk.batch, partition)
            if offset is not None:
                return offset
            if chunk.first_offset < cursors.position:
                break
        return cursors.watermarks.get(partition, 0)

    def rows(self, found: FoundEvent) -> list[MatchRow]:
        """The rows of an event and every target, in order: up to where the outbox says that it has been matched."""
        if not self._outbox.directory.is_dir():
            return []
        rows: list[MatchRow] = []
        for since_us in _SINCE_US:
            rows, are_all = self._rows_since(found, found.append_time_us - since_us)
            if are_all:
                break
        return rows

    def _rows_since(self, found: FoundEvent, time_us: int) -> tuple[list[MatchRow], bool]:
        """The rows of an event in chunks since a time, and whether there are surely none in earlier chunks."""
        matches: list[MatchRow] = []
        offset = pa.scalar(found.offset, pa.int64())  # made once: there may be thousands of chunks
        with PartitionReader.open_at_time(self._outbox, time_us) as reader:
            are_all = reader.position <= reader.first_offset()
            while (chunk := reader.read()) is not None:
                batch = chunk.batch
                rows = _rows(batch, found.partition, offset)
                matches += [_match(batch, row, chunk.first_offset, chunk.append_time_us) for row in rows]
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


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Reads a file that another process writes."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UnavailableError(f"{what} cannot be read now: {error}") from error


def _rows(batch: pa.RecordBatch, partition: int, offset: pa.Scalar) -> list[int]:
    at_offset = pc.equal(batch.column(_COLUMN["offset"]), offset)
    if not at_offset.true_count:  # of nearly every chunk that is walked over
        return []
    of_event = pc.and_(at_offset, pc.equal(batch.column(_COLUMN["partition"]), partition))
    is_match = pc.not_equal(batch.column(_COLUMN["target"]), PROGRESS_TARGET)
    rows: list[int] = pc.indices_nonzero(pc.and_(of_event, is_match)).to_pylist()
    return rows


def _match(batch: pa.RecordBatch, row: int, first_position: int, time_us: int) -> MatchRow:
    def value(name: str) -> Any:  # noqa: ANN401 - a column's
        return batch.column(_COLUMN[name])[row].as_py()

    return MatchRow(first_position + row, time_us, value("generation"), value("target"), Verdict(value("verdict")))


def _progress(batch: pa.RecordBatch, partition: int) -> int | None:
    """Up to where the partition has been matched, as the last progress row of a chunk says."""
    targets = batch.column(_COLUMN["target"])
    row = batch.num_rows - 1
    while row >= 0 and targets[row].as_py() == PROGRESS_TARGET:  # they stand behind all other rows
        if batch.column(_COLUMN["partition"])[row].as_py() == partition:
            return int(batch.column(_COLUMN["offset"])[row].as_py())
        row -= 1
    return None


def _unfinished(row: MatchRow, cursors: Cursors) -> Unfinished | None:
    """What is known of a delivery that has not ended; None when it has."""
    if cursors.has_ended(row.target, row.position):
        return None
    cursor = cursors.behind.get(row.target)
    for retried in cursor.retries if cursor is not None else ():
        if retried.position == row.position:
            return Unfinished(retried.failures, retried.due_us)
    return Unfinished()


def _pull(position: int, saved: SavedCursor | None) -> PullTrace:
    if saved is None:
        return PullTrace(PullState.UNREAD)
    for unacked in saved.unacked:
        if unacked.position == position:
            state = PullState.HANDED_OUT if unacked.consumer else PullState.WAITING
            return PullTrace(state, unacked.deliveries, unacked.consumer)
    return PullTrace(PullState.UNREAD if position >= saved.next else PullState.ENDED)
