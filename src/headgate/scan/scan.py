"""One scan of a log: passes over pages by what is known of them, then by their bytes, then filters events one by one.

From cheap to dear: what a store tells without reading; constants and ranges of numbers that must stand in a matching
event's bytes, looked for in the whole page and then in each row's columns; cel-cpp on what is left.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.event.arrow import EVENT_SCHEMA, from_batch_all
from headgate.filter.cel.evaluate import OutcomeKind, Program, program
from headgate.filter.skipping.literals import ESCAPE, Clause, NumberRange, literals, number_ranges
from headgate.filter.skipping.prune import EXTENSION
from headgate.log.errors import UnreadableEventsError
from headgate.scan.source import NO_END, Query, ReadableLog, ScanCounters, StoredPage
from headgate_api.errors import UnavailableError
from headgate_api.event.http import canonical
from headgate_api.event.model import Event
from headgate_api.limits import SCAN_BODIES_MAX, SCAN_DECODED_MAX, SCAN_TURN_BYTES_MAX

# --- rows -----------------------------------------------------------------------------------------
# Contents and sizes of a batch's rows, read from the bytes of its columns before anything is decoded.

_NOT_OF_EVENTS: Final = frozenset({"broker", "produced"})
TEXTS: Final = [field.name for field in EVENT_SCHEMA if field.type == pa.utf8() and field.name not in _NOT_OF_EVENTS]
"""Columns of text that are part of an event."""


def rows_of(batch: pa.RecordBatch, rows: list[int]) -> pa.RecordBatch:
    """Some rows, at least one, ascending; copied, unless they are a stretch of half the batch and more.

    A slice keeps the whole batch in memory: of a few rows it would keep far more than what is handed out.
    """
    first, count = rows[0], len(rows)
    is_stretch = rows[-1] - first + 1 == count
    if is_stretch and 2 * count >= batch.num_rows:
        return batch.slice(first, count)
    return batch.take(pa.array(rows, pa.int32()))


def sizes_of(batch: pa.RecordBatch) -> list[int]:
    """Bytes of each row's texts and data."""
    sizes = pc.fill_null(pc.binary_length(batch.column("data")), 0)
    for name in TEXTS:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(batch.column(name)), 0))
    found: list[int] = sizes.to_pylist()
    return found


def rows_holding(batch: pa.RecordBatch, clause: Clause) -> set[int]:
    """Rows in which one of a clause's texts occurs somewhere, or may be written with escapes."""
    rows: set[int] = set()
    for name in TEXTS:
        _add_rows(rows, batch.column(name), clause.texts)
    if clause.in_data:
        _add_rows(rows, batch.column("data"), (*clause.texts, ESCAPE))
    return rows


def rows_bounded(column: pa.Array, rows: list[int], bounds: Sequence[NumberRange]) -> list[int]:
    """Of these rows those whose data has a number in every range, or may have it behind an escaped name."""
    if column.null_count == len(column):
        return []
    ends = memoryview(column.buffers()[1]).cast("i")[column.offset : column.offset + len(column) + 1]
    data = texts_of(column)
    return [
        row
        for row in rows
        if all(bound.occurs_within(data, ends[row], ends[row + 1]) for bound in bounds)
        or data.find(ESCAPE, ends[row], ends[row + 1]) >= 0
    ]


def rows_possible(
    batch: pa.RecordBatch, rows: list[int], clauses: Sequence[Clause], bounds: Sequence[NumberRange]
) -> list[int]:
    """Of these rows those of which a filter may be true, by what must stand in them (`literals`, `number_ranges`)."""
    for clause in clauses:
        holding = rows_holding(batch, clause)
        rows = [row for row in rows if row in holding]
    return rows_bounded(batch.column("data"), rows, bounds) if bounds and rows else rows


def verdicts(cel: Program, batch: pa.RecordBatch, rows: list[int], times_us: Sequence[int]) -> Iterator[OutcomeKind]:
    """Of each row what a filter is; evaluated one by one, as they are read. `times_us` are those of all rows."""
    for first in range(0, len(rows), SCAN_DECODED_MAX):
        some = rows[first : first + SCAN_DECODED_MAX]
        for row, stored in zip(some, from_batch_all(rows_of(batch, some)), strict=True):
            yield cel.evaluate(stored.event, times_us[row]).kind


def rows_taken(page: StoredPage, broker: str, cel: str) -> list[int]:
    """The rows of a page that hold events of a broker of which a filter, CEL, is true."""
    batch = page.batch
    rows: list[int] = pc.indices_nonzero(pc.equal(batch.column("broker"), broker)).to_pylist()
    rows = rows_possible(batch, rows, literals(cel), number_ranges(cel))
    kinds = verdicts(program(cel), batch, rows, page.append_times_us)
    return [row for row, kind in zip(rows, kinds, strict=True) if kind is OutcomeKind.TRUE]


def texts_of(column: pa.Array) -> bytes:
    """All values of a text or binary column, end to end; before and behind a slice too."""
    values = column.buffers()[2]
    return b"" if values is None else values.to_pybytes()


def _add_rows(rows: set[int], column: pa.Array, texts: Sequence[bytes]) -> None:
    """Adds the rows whose values hold one of the texts. Arrow's own search is ten times slower."""
    if column.null_count == len(column):
        return
    first, count = column.offset, len(column)
    ends = memoryview(column.buffers()[1]).cast("i")[first : first + count + 1]
    values = texts_of(column)
    for text in texts:
        at = values.find(text, ends[0], ends[count])
        while at >= 0:
            row = bisect_right(ends, at) - 1
            inside = at + len(text) <= ends[row + 1]
            if inside:
                rows.add(row)
            at = values.find(text, ends[row + 1] if inside else at + 1, ends[count])


# --- scan -----------------------------------------------------------------------------------------

_ATTRIBUTES: Final = frozenset(TEXTS) - {"extensions"}  # an extension of that name has no column
_ENDLESS: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class Piece:
    """Events of one page that are wanted."""

    partition: int
    offsets: list[int]  # one an event, ascending
    append_times_us: list[int]  # when each was stored, microseconds since 1970 UTC
    batch: pa.RecordBatch  # their rows, of `EVENT_SCHEMA`

    @property
    def size_bytes(self) -> int:
        size: int = self.batch.nbytes
        return size

    def events(self) -> list[Event]:
        return [stored.event for stored in from_batch_all(self.batch)]


@dataclass(slots=True)
class _Turn:
    """What one turn has handed out, and what it still may, until a time of `time.monotonic()`."""

    events_left: int
    bytes_left: int
    until: float
    pieces: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.events_left -= len(piece.offsets)
        self.bytes_left -= piece.size_bytes

    def is_over(self) -> bool:
        return self.events_left <= 0 or self.bytes_left <= 0 or time.monotonic() >= self.until


class Scan:
    """One reader of a log. Not for several threads at once. A partition that `end` does not name has no end."""

    def __init__(
        self, log: ReadableLog, query: Query, start: Mapping[int, int], end: Mapping[int, int] = _ENDLESS
    ) -> None:
        self._query = query
        self._program = None if query.cel is None else program(query.cel)
        self._clauses = () if query.cel is None else literals(query.cel)
        self._bounds = () if query.cel is None else number_ranges(query.cel)
        self._end = {partition: end.get(partition, NO_END) for partition in sorted(start)}
        self._source = log.source(query, start, self._end)
        self._inside: dict[int, int] = {}  # partition -> where inside a page, which has been counted, it goes on
        self._turn = 0
        self.counters = ScanCounters()

    @property
    def positions(self) -> dict[int, int]:
        """Where it stands: everything below has been handed out, did not match, or is gone."""
        return {partition: min(self._source.position(partition), end) for partition, end in self._end.items()}

    def at_end(self) -> bool:
        """Whether everything durable, or everything before the end, has been looked at."""
        source = self._source
        return all(
            source.position(partition) >= min(source.end_offset(partition), end) for partition, end in self._end.items()
        )

    def step(self, events_max: int, until: float = math.inf) -> list[Piece]:
        """Goes on for one turn, through every partition at most once; ends early above SCAN_TURN_BYTES_MAX.

        One event is looked at, however late it is for `until` (of `time.monotonic()`). The pieces are in the order of
        the log within each partition; there are none when nothing matched in this turn, or at the end.
        UnreadableEventsError (a chunk or record is not what was stored) and UnavailableError are raised once what came
        before is handed out; the position stands before the place.
        """
        turn = _Turn(events_max, SCAN_TURN_BYTES_MAX, until)
        partitions = list(self._end)
        first, self._turn = self._turn, (self._turn + 1) % max(1, len(partitions))
        try:
            self._source.begin(until)
            for partition in partitions[first:] + partitions[:first]:
                before = self._source.position(partition)
                self._read(partition, turn)
                if turn.is_over() and self._source.position(partition) != before:
                    break  # not where nothing was to be looked at: every turn goes on somewhere
        except (UnreadableEventsError, UnavailableError):
            if not turn.pieces:
                raise  # else the next turn says so
        finally:
            self._source.end(self.counters)
        return turn.pieces

    def close(self) -> None:
        self._source.close()

    def _read(self, partition: int, turn: _Turn) -> None:
        end = self._end[partition]
        for _ in range(SCAN_BODIES_MAX):
            if self._source.position(partition) >= end:
                break
            page = self._source.read(partition)
            if page is None or page.offsets[0] >= end:
                break
            self._take(partition, page, end, turn)
            if turn.is_over():
                break

    # --- pages ----------------------------------------------------------------------------------------

    def _take(self, partition: int, page: StoredPage, end: int, turn: _Turn) -> None:
        """Adds what is wanted of a page. Where the turn is over before its end, the source goes on inside it."""
        counters, offsets = self.counters, page.offsets
        is_new = self._inside.pop(partition, None) != offsets[0]
        counters.chunks_read += is_new
        counters.events_scanned += len(offsets)
        if not self._may_match(page):
            return
        batch = page.batch if offsets[-1] < end else page.batch.slice(0, bisect_left(offsets, end))
        rows = self._candidates(batch, is_new=is_new)
        taken, looked = self._choose(page, batch, rows, turn)
        if taken:
            counters.events_matched += len(taken)
            times_us = page.append_times_us
            found = [offsets[row] for row in taken], [times_us[row] for row in taken]
            turn.add(Piece(partition, *found, rows_of(batch, taken)))
        if looked < len(rows):
            row = rows[looked]
            counters.events_scanned -= len(offsets) - row
            self._inside[partition] = offsets[row]
            self._source.seek(partition, offsets[row])

    def _may_match(self, page: StoredPage) -> bool:
        if self._clauses and not self._may_occur(page):
            return False
        return not self._bounds or self._numbers_may_occur(page)

    def _candidates(self, batch: pa.RecordBatch, *, is_new: bool) -> list[int]:
        """The rows that may be wanted; the filter itself has not been evaluated."""
        mask = pc.equal(batch.column("broker"), self._query.broker)
        if self._query.values is not None:
            mask = pc.and_(mask, self._have_value(batch))
            if not mask.true_count:
                self.counters.false_positive_chunks += is_new
                return []
        return rows_possible(batch, pc.indices_nonzero(mask).to_pylist(), self._clauses, self._bounds)

    def _choose(self, page: StoredPage, batch: pa.RecordBatch, rows: list[int], turn: _Turn) -> tuple[list[int], int]:
        """The rows that are handed out, and how many were looked at: fewer than all when the turn is over."""
        if batch.nbytes > SCAN_TURN_BYTES_MAX:  # a smaller one is not read twice for the sake of its last bytes
            sizes = sizes_of(batch)
        elif self._program is None:
            return rows[: turn.events_left], min(len(rows), turn.events_left)
        else:
            sizes = []
        taken: list[int] = []
        size = looked = 0
        for row, is_true in zip(rows, self._verdicts(batch, rows, page.append_times_us), strict=True):
            looked += 1
            if is_true:
                taken.append(row)
                size += sizes[row] if sizes else 0
            if len(taken) >= turn.events_left or size >= turn.bytes_left or time.monotonic() >= turn.until:
                break
        return taken, looked

    def _verdicts(self, batch: pa.RecordBatch, rows: list[int], times_us: Sequence[int]) -> Iterator[bool]:
        """Of each row whether it satisfies the filter; evaluated one by one, as they are read."""
        if self._program is None:
            yield from repeat(True, len(rows))
            return
        for verdict in verdicts(self._program, batch, rows, times_us):
            self.counters.filter_errors += verdict is OutcomeKind.ERROR
            yield verdict is OutcomeKind.TRUE

    def _may_occur(self, page: StoredPage) -> bool:
        """Whether every clause has one of its texts somewhere in the page's bytes, or may have it escaped."""
        body = page.message
        if body is None:
            return True
        missing = [clause for clause in self._clauses if not clause.occurs(body)]
        if not missing:
            return True
        if not all(clause.in_data for clause in missing):
            return False
        # Only the data's own bytes say whether something is escaped: a chunk's numbers hold any two bytes.
        data = texts_of(page.batch.column("data"))
        return ESCAPE[:1] in data and ESCAPE in data  # one byte is looked for ten times as fast as two

    def _numbers_may_occur(self, page: StoredPage) -> bool:
        """Whether every bound has one of its numbers somewhere in the page's data, or may have it escaped."""
        data = texts_of(page.batch.column("data"))
        return all(bound.occurs(data) for bound in self._bounds) or (ESCAPE[:1] in data and ESCAPE in data)

    def _have_value(self, batch: pa.RecordBatch) -> pa.Array:
        """Rows whose filter value is wanted: the producer's, else the rule's."""
        query, rule = self._query, self._query.rule
        assert query.values is not None
        given = pc.fill_null(pc.match_substring(batch.column("extensions"), f'"{EXTENSION}"'), False)
        if rule.attribute in _ATTRIBUTES and not given.true_count:
            column = batch.column(rule.attribute)
            mask = pc.is_in(column, value_set=pa.array(sorted(query.values), pa.utf8()))
            if query.match_unfiltered:
                mask = pc.or_(mask, pc.or_kleene(pc.is_null(column), pc.equal(column, "")))
            return mask
        wanted = [self._wants(stored.event) for stored in from_batch_all(batch)]
        return pa.array(wanted, pa.bool_())

    def _wants(self, event: Event) -> bool:
        given = event.extensions.get(EXTENSION)
        value = self._query.rule.of(event) if given is None else canonical(given)
        assert self._query.values is not None
        return value in self._query.values if value else self._query.match_unfiltered
