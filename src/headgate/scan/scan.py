"""Which events does a reader want? Chunks passed over by their headers, then by their bytes, then events one by one.

From cheap to dear: the Bloom filter and the times of a chunk's header; constants and ranges of numbers that must stand
in a matching event's bytes, looked for in the whole chunk and then in each row's columns; cel-cpp on what is left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.event.arrow import EVENT_SCHEMA, from_batch_all
from headgate.event.http import canonical
from headgate.event.model import Event
from headgate.filter.evaluate import OutcomeKind, program
from headgate.filter.literals import ESCAPE, Clause, literals
from headgate.filter.numbers import Bound, bounds
from headgate.filter.prune import ChunkSummary, Prospect, Pruning, pruning
from headgate.filter.value import EXTENSION, FilterValueRule
from headgate.limits import PRUNE_VALUES_MAX, SCAN_BODIES_MAX, SCAN_CHUNKS_MAX
from headgate.log.bloom import might_contain, probe
from headgate.log.errors import CorruptChunkError
from headgate.log.format import ChunkHeader, Codec
from headgate.log.reader import Chunk, PartitionReader

_NOT_OF_EVENTS: Final = frozenset({"broker", "produced"})
_TEXTS: Final = [field.name for field in EVENT_SCHEMA if field.type == pa.utf8() and field.name not in _NOT_OF_EVENTS]
_NOTHING_PRUNED: Final = Pruning()
_ENDLESS: Final[Mapping[int, int]] = {}
_NEVER: Final = 1 << 63
_probe: Final = lru_cache(PRUNE_VALUES_MAX)(probe)  # the same few values are looked for in chunk after chunk


@dataclass(frozen=True, slots=True)
class Query:
    """What a reader wants of a broker's events.

    Attributes:
        broker: "namespace/name".
        rule: How the broker's events get their filter values.
        values: Filter values; None: any event.
        match_unfiltered: Beside `values`, events without a filter value too.
        cel: CEL text of a filter that must be true; None for none.
    """

    broker: str
    rule: FilterValueRule
    values: frozenset[str] | None = None
    match_unfiltered: bool = False
    cel: str | None = None


@dataclass(slots=True)
class Counters:
    """What reading took so far.

    Attributes:
        chunks_read: Whose bodies were read.
        chunks_skipped: Passed over by their headers.
        events_scanned: In the chunks read.
        events_matched: Handed out.
        false_positive_chunks: Read by their Bloom filter's word, and no event had a wanted value.
        filter_errors: Events on which the filter is an error; they do not match.
        events_missed: Removed by retention before the reader came to them.
        events_corrupt: In damaged chunks that were passed over.
    """

    chunks_read: int = 0
    chunks_skipped: int = 0
    events_scanned: int = 0
    events_matched: int = 0
    false_positive_chunks: int = 0
    filter_errors: int = 0
    events_missed: int = 0
    events_corrupt: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Events of one chunk that are wanted.

    Attributes:
        partition: Of the log.
        offsets: One an event, ascending.
        append_time_us: When they were stored, microseconds since 1970 UTC.
        batch: Their rows, of `EVENT_SCHEMA`.
    """

    partition: int
    offsets: list[int]
    append_time_us: int
    batch: pa.RecordBatch

    def events(self) -> list[Event]:
        """The events, in the order of `offsets`."""
        return [stored.event for stored in from_batch_all(self.batch)]


class Scan:
    """One reader of a log. Not for several threads at once.

    Args:
        directory: Directory of the partitions.
        query: What is wanted.
        start: First offset by partition.
        end: Offset behind the last one that is looked at, by partition; a partition that is not named has no end.
    """

    def __init__(
        self, directory: Path, query: Query, start: Mapping[int, int], end: Mapping[int, int] = _ENDLESS
    ) -> None:
        self._query = query
        self._program = None if query.cel is None else program(query.cel)
        self._clauses = () if query.cel is None else literals(query.cel)
        self._bounds = () if query.cel is None else bounds(query.cel)
        self._pruning = _NOTHING_PRUNED if query.cel is None else pruning(query.cel, query.rule.cel)
        self._prunes = self._pruning != _NOTHING_PRUNED
        self._readers = {
            partition: PartitionReader.open(directory / str(partition), start=offset)
            for partition, offset in sorted(start.items())
        }
        self._end = {partition: end.get(partition, _NEVER) for partition in self._readers}
        self._turn = 0
        self.counters = Counters()

    @property
    def positions(self) -> dict[int, int]:
        """Where it stands: everything below has been handed out, did not match, or is gone."""
        return {partition: min(reader.position, self._end[partition]) for partition, reader in self._readers.items()}

    def at_end(self) -> bool:
        """Whether everything durable, or everything before the end, has been looked at."""
        return all(
            reader.position >= min(reader.committed_offset(), self._end[partition])
            for partition, reader in self._readers.items()
        )

    def step(self, events_max: int) -> list[Piece]:
        """Goes on for one turn, through every partition at most once.

        Args:
            events_max: Events to hand out at most; at least 1.

        Returns:
            In the order of the log within each partition; empty when nothing matched in this turn or at the end.

        Raises:
            CorruptChunkError: A chunk is damaged; the position stands before it, and what came before was handed out.
        """
        pieces: list[Piece] = []
        left = events_max
        partitions = list(self._readers)
        turn, self._turn = self._turn, (self._turn + 1) % len(partitions)
        for partition in partitions[turn:] + partitions[:turn]:
            try:
                self._read(partition, left, pieces)
            except CorruptChunkError:
                if not pieces:
                    raise
                break  # the next turn says so
            left = events_max - sum(len(piece.offsets) for piece in pieces)
            if left <= 0:
                break
        return pieces

    def close(self) -> None:
        """Closes every file."""
        for reader in self._readers.values():
            reader.close()

    def _read(self, partition: int, events_max: int, pieces: list[Piece]) -> None:
        """Adds a partition's next pieces."""
        reader, counters = self._readers[partition], self.counters
        before = reader.chunks_skipped, reader.records_missed, reader.records_corrupt
        try:
            self._read_on(reader, partition, events_max, pieces)
        finally:
            counters.chunks_skipped += reader.chunks_skipped - before[0]
            counters.events_missed += reader.records_missed - before[1]
            counters.events_corrupt += reader.records_corrupt - before[2]

    def _read_on(self, reader: PartitionReader, partition: int, events_max: int, pieces: list[Piece]) -> None:
        counters, end = self.counters, self._end[partition]
        for _ in range(SCAN_BODIES_MAX):
            if reader.position >= end:
                break
            chunk = reader.read(
                wanted=self._query.values,
                match_unfiltered=self._query.match_unfiltered,
                passes=self._passes if self._prunes else None,
                chunks_max=SCAN_CHUNKS_MAX,
            )
            if chunk is None or chunk.first_offset >= end:
                break
            piece = self._select(partition, chunk, end)
            if piece is None:
                continue
            if len(piece.offsets) > events_max:
                reader.seek(piece.offsets[events_max])
                piece = Piece(
                    partition, piece.offsets[:events_max], piece.append_time_us, piece.batch.slice(0, events_max)
                )
            counters.events_matched += len(piece.offsets)
            events_max -= len(piece.offsets)
            pieces.append(piece)
            if events_max <= 0:
                break

    # --- chunks ---------------------------------------------------------------------------------------

    def _passes(self, header: ChunkHeader, bloom: bytes) -> bool:
        """Whether the filter may be true of an event of the chunk, by its header."""

        def may_hold(values: frozenset[str]) -> bool:
            return header.bloom_bytes > 0 and might_contain(bloom, header.hash_count, map(_probe, values))

        summary = ChunkSummary(
            header.first_offset, header.next_offset, header.time_range_us, header.unfiltered, may_hold
        )
        return self._pruning.prospect(summary) is Prospect.MIGHT_MATCH

    def _select(self, partition: int, chunk: Chunk, end: int) -> Piece | None:
        self.counters.chunks_read += 1
        self.counters.events_scanned += chunk.record_count
        if self._clauses and chunk.header.codec == Codec.NONE and not self._may_occur(chunk):
            return None
        if self._bounds and not self._numbers_may_occur(chunk):
            return None
        batch = chunk.batch if chunk.next_offset <= end else chunk.batch.slice(0, end - chunk.first_offset)
        mask = pc.equal(batch.column("broker"), self._query.broker)
        if self._query.values is not None:
            mask = pc.and_(mask, self._have_value(batch))
            if not mask.true_count:
                self.counters.false_positive_chunks += 1
                return None
        rows: list[int] = pc.indices_nonzero(mask).to_pylist()
        for clause in self._clauses:
            holding = _rows_holding(batch, clause)
            rows = [row for row in rows if row in holding]
        if self._bounds and rows:
            rows = _rows_bounded(batch.column("data"), rows, self._bounds)
        if self._program is not None:
            rows = self._true(batch, rows)
        if not rows:
            return None
        offsets = [chunk.first_offset + row for row in rows]
        return Piece(partition, offsets, chunk.append_time_us, _rows_of(batch, rows))

    def _may_occur(self, chunk: Chunk) -> bool:
        """Whether every clause has one of its texts somewhere in the chunk's bytes, or may have it escaped."""
        body = chunk.body.to_pybytes()
        missing = [clause for clause in self._clauses if not clause.occurs(body)]
        if not missing:
            return True
        if not all(clause.in_data for clause in missing):
            return False
        # Only the data's own bytes say whether something is escaped: a chunk's numbers hold any two bytes.
        data = _texts_of(chunk.batch.column("data"))
        return ESCAPE[:1] in data and ESCAPE in data  # one byte is looked for ten times as fast as two

    def _numbers_may_occur(self, chunk: Chunk) -> bool:
        """Whether every bound has one of its numbers somewhere in the chunk's data, or may have it escaped."""
        data = _texts_of(chunk.batch.column("data"))
        return all(bound.occurs(data) for bound in self._bounds) or (ESCAPE[:1] in data and ESCAPE in data)

    def _true(self, batch: pa.RecordBatch, rows: list[int]) -> list[int]:
        """The rows that satisfy the filter."""
        assert self._program is not None
        true: list[int] = []
        for row, stored in zip(rows, from_batch_all(_rows_of(batch, rows)), strict=True):
            verdict = self._program.evaluate(stored.event).kind
            if verdict is OutcomeKind.TRUE:
                true.append(row)
            elif verdict is OutcomeKind.ERROR:
                self.counters.filter_errors += 1
        return true

    def _have_value(self, batch: pa.RecordBatch) -> pa.Array:
        """Rows whose filter value is wanted: the producer's, else the rule's."""
        query, rule = self._query, self._query.rule
        assert query.values is not None
        given = pc.fill_null(pc.match_substring(batch.column("extensions"), f'"{EXTENSION}"'), False)
        if rule.attribute in _TEXTS and not given.true_count:
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


def _rows_of(batch: pa.RecordBatch, rows: list[int]) -> pa.RecordBatch:
    return batch if len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int32()))


def _rows_holding(batch: pa.RecordBatch, clause: Clause) -> set[int]:
    """Rows in which one of a clause's texts occurs somewhere, or may be written with escapes."""
    rows: set[int] = set()
    for name in _TEXTS:
        _add_rows(rows, batch.column(name), clause.texts)
    if clause.in_data:
        _add_rows(rows, batch.column("data"), (*clause.texts, ESCAPE))
    return rows


def _rows_bounded(column: pa.Array, rows: list[int], bounds: Sequence[Bound]) -> list[int]:
    """Of these rows those whose data has a number in every range, or may have it behind an escaped name."""
    if column.null_count == len(column):
        return []
    ends = memoryview(column.buffers()[1]).cast("i")[column.offset : column.offset + len(column) + 1]
    data = _texts_of(column)
    return [
        row
        for row in rows
        if all(bound.occurs_within(data, ends[row], ends[row + 1]) for bound in bounds)
        or data.find(ESCAPE, ends[row], ends[row + 1]) >= 0
    ]


def _texts_of(column: pa.Array) -> bytes:
    """All values of a text or binary column, end to end; before and behind a slice too."""
    values = column.buffers()[2]
    return b"" if values is None else values.to_pybytes()


def _add_rows(rows: set[int], column: pa.Array, texts: Sequence[bytes]) -> None:
    """Adds the rows whose values hold one of the texts. Arrow's own search is ten times slower."""
    if column.null_count == len(column):
        return
    first, count = column.offset, len(column)
    ends = memoryview(column.buffers()[1]).cast("i")[first : first + count + 1]
    values = _texts_of(column)
    for text in texts:
        at = values.find(text, ends[0], ends[count])
        while at >= 0:
            row = bisect_right(ends, at) - 1
            inside = at + len(text) <= ends[row + 1]
            if inside:
                rows.add(row)
            at = values.find(text, ends[row + 1] if inside else at + 1, ends[count])
