"""One scan of the log: passes over chunks by their headers, then by their bytes, then filters events one by one.

From cheap to dear: the Bloom filter and the times of a chunk's header; constants and ranges of numbers that must stand
in a matching event's bytes, looked for in the whole chunk and then in each row's columns; cel-cpp on what is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.event.arrow import from_batch_all
from headgate.event.http import canonical
from headgate.event.model import Event
from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.cel.view import publish_time_us
from headgate.filter.skipping.filter_value import EXTENSION, FilterValueRule
from headgate.filter.skipping.literals import ESCAPE, literals
from headgate.filter.skipping.numbers import number_ranges
from headgate.filter.skipping.prune import ChunkSummary, Prospect, Pruning, pruning
from headgate.limits import PRUNE_VALUES_MAX, SCAN_BODIES_MAX, SCAN_CHUNKS_MAX, SCAN_DECODED_MAX, SCAN_TURN_BYTES_MAX
from headgate.log.bloom import hash_value, might_contain
from headgate.log.directory import LogDirectory
from headgate.log.errors import CorruptChunkError
from headgate.log.format import ChunkHeader, Codec
from headgate.log.reader import Chunk, PartitionReader
from headgate.scan.rows import TEXTS, rows_bounded, rows_holding, rows_of, sizes_of, texts_of

_ATTRIBUTES: Final = frozenset(TEXTS) - {"extensions"}  # an extension of that name has no column
_NOTHING_PRUNED: Final = Pruning()
_ENDLESS: Final[Mapping[int, int]] = {}
_NEVER: Final = 1 << 63
_probe: Final = lru_cache(PRUNE_VALUES_MAX)(hash_value)  # the same few values are looked for in chunk after chunk


@dataclass(frozen=True, slots=True)
class Query:
    """What a reader wants of a broker's events.

    Attributes:
        broker: The broker's identity.
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
class ScanCounters:
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

    @property
    def size_bytes(self) -> int:
        """Bytes of the events as they are stored."""
        size: int = self.batch.nbytes
        return size

    def events(self) -> list[Event]:
        """The events, in the order of `offsets`."""
        return [stored.event for stored in from_batch_all(self.batch)]


@dataclass(slots=True)
class _Turn:
    """What one turn has handed out, and what it still may.

    Attributes:
        events_left: Events that may still be handed out; 0: it is over.
        bytes_left: Event bytes that may still be; below 1: it is over.
        until: When it is over, as `time.monotonic()` says.
        pieces: Handed out.
    """

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
    """One reader of a log. Not for several threads at once.

    Args:
        log: What is read.
        query: What is wanted.
        start: First offset by partition.
        end: Offset behind the last one that is looked at, by partition; a partition that is not named has no end.
    """

    def __init__(
        self, log: LogDirectory, query: Query, start: Mapping[int, int], end: Mapping[int, int] = _ENDLESS
    ) -> None:
        self._query = query
        self._program = None if query.cel is None else program(query.cel)
        self._clauses = () if query.cel is None else literals(query.cel)
        self._bounds = () if query.cel is None else number_ranges(query.cel)
        self._pruning = _NOTHING_PRUNED if query.cel is None else pruning(query.cel, query.rule.cel)
        self._prunes = self._pruning != _NOTHING_PRUNED
        self._readers = {
            partition: PartitionReader(log.partition(partition), start=offset)
            for partition, offset in sorted(start.items())
        }
        self._end = {partition: end.get(partition, _NEVER) for partition in self._readers}
        self._inside: dict[int, int] = {}  # partition -> where inside a chunk, which has been counted, it goes on
        self._turn = 0
        self.counters = ScanCounters()

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

    def step(self, events_max: int, until: float = math.inf) -> list[Piece]:
        """Goes on for one turn, through every partition at most once; ends early above SCAN_TURN_BYTES_MAX.

        Args:
            events_max: Events to hand out at most; at least 1.
            until: When to end, as `time.monotonic()` says; one event is looked at, however late it is.

        Returns:
            In the order of the log within each partition; empty when nothing matched in this turn or at the end.

        Raises:
            CorruptChunkError: A chunk is damaged; the position stands before it, and what came before was handed out.
        """
        turn = _Turn(events_max, SCAN_TURN_BYTES_MAX, until)
        partitions = list(self._readers)
        first, self._turn = self._turn, (self._turn + 1) % max(1, len(partitions))
        for partition in partitions[first:] + partitions[:first]:
            before = self._readers[partition].position
            try:
                self._read(partition, turn)
            except CorruptChunkError:
                if not turn.pieces:
                    raise
                break  # the next turn says so
            if turn.is_over() and self._readers[partition].position != before:
                break  # not where nothing was to be looked at: every turn goes on somewhere
        return turn.pieces

    def close(self) -> None:
        """Closes every file."""
        for reader in self._readers.values():
            reader.close()

    def _read(self, partition: int, turn: _Turn) -> None:
        """Adds a partition's next pieces."""
        reader, counters = self._readers[partition], self.counters
        before = reader.chunks_skipped, reader.records_missed, reader.records_corrupt
        try:
            self._read_on(reader, partition, turn)
        finally:
            counters.chunks_skipped += reader.chunks_skipped - before[0]
            counters.events_missed += reader.records_missed - before[1]
            counters.events_corrupt += reader.records_corrupt - before[2]

    def _read_on(self, reader: PartitionReader, partition: int, turn: _Turn) -> None:
        end = self._end[partition]
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
            self._take(partition, chunk, end, turn)
            if turn.is_over():
                break

    # --- chunks ---------------------------------------------------------------------------------------

    def _passes(self, header: ChunkHeader, bloom: bytes) -> bool:
        """Whether the filter may be true of an event of the chunk, by its header."""

        def may_hold(values: frozenset[str]) -> bool:
            return header.bloom_bytes > 0 and might_contain(bloom, header.hash_count, map(_probe, values))

        summary = ChunkSummary(
            header.first_offset,
            header.next_offset,
            header.time_range_us,
            publish_time_us(header.append_time_us),
            header.unfiltered,
            may_hold,
        )
        return self._pruning.prospect(summary) is Prospect.MIGHT_MATCH

    def _take(self, partition: int, chunk: Chunk, end: int, turn: _Turn) -> None:
        """Adds what is wanted of a chunk. Where the turn is over before its end, the reader goes on inside it."""
        counters = self.counters
        is_new = self._inside.pop(partition, None) != chunk.first_offset
        counters.chunks_read += is_new
        counters.events_scanned += chunk.record_count
        if not self._may_match(chunk):
            return
        batch = chunk.batch if chunk.next_offset <= end else chunk.batch.slice(0, end - chunk.first_offset)
        rows = self._candidates(batch, is_new=is_new)
        taken, looked = self._choose(chunk, batch, rows, turn)
        if taken:
            counters.events_matched += len(taken)
            offsets = [chunk.first_offset + row for row in taken]
            turn.add(Piece(partition, offsets, chunk.append_time_us, rows_of(batch, taken)))
        if looked < len(rows):
            at = chunk.first_offset + rows[looked]
            counters.events_scanned -= chunk.next_offset - at
            self._inside[partition] = at
            self._readers[partition].seek(at)

    def _may_match(self, chunk: Chunk) -> bool:
        """Whether the filter may be true of an event of the chunk, by its bytes."""
        if self._clauses and chunk.header.codec == Codec.NONE and not self._may_occur(chunk):
            return False
        return not self._bounds or self._numbers_may_occur(chunk)

    def _candidates(self, batch: pa.RecordBatch, *, is_new: bool) -> list[int]:
        """The rows that may be wanted; the filter itself has not been evaluated."""
        mask = pc.equal(batch.column("broker"), self._query.broker)
        if self._query.values is not None:
            mask = pc.and_(mask, self._have_value(batch))
            if not mask.true_count:
                self.counters.false_positive_chunks += is_new
                return []
        rows: list[int] = pc.indices_nonzero(mask).to_pylist()
        for clause in self._clauses:
            holding = rows_holding(batch, clause)
            rows = [row for row in rows if row in holding]
        return rows_bounded(batch.column("data"), rows, self._bounds) if self._bounds and rows else rows

    def _choose(self, chunk: Chunk, batch: pa.RecordBatch, rows: list[int], turn: _Turn) -> tuple[list[int], int]:
        """The rows that are handed out, and how many were looked at: fewer than all when the turn is over."""
        if batch.nbytes > SCAN_TURN_BYTES_MAX:  # a smaller one is not read twice for the sake of its last bytes
            sizes = sizes_of(batch)
        elif self._program is None:
            return rows[: turn.events_left], min(len(rows), turn.events_left)
        else:
            sizes = []
        taken: list[int] = []
        size = looked = 0
        for row, is_true in zip(rows, self._verdicts(batch, rows, chunk.append_time_us), strict=True):
            looked += 1
            if is_true:
                taken.append(row)
                size += sizes[row] if sizes else 0
            if len(taken) >= turn.events_left or size >= turn.bytes_left or time.monotonic() >= turn.until:
                break
        return taken, looked

    def _verdicts(self, batch: pa.RecordBatch, rows: list[int], stored_us: int) -> Iterator[bool]:
        """Of each row whether it satisfies the filter; evaluated one by one, as they are read."""
        if self._program is None:
            yield from repeat(True, len(rows))
            return
        for first in range(0, len(rows), SCAN_DECODED_MAX):
            for stored in from_batch_all(rows_of(batch, rows[first : first + SCAN_DECODED_MAX])):
                verdict = self._program.evaluate(stored.event, stored_us).kind
                self.counters.filter_errors += verdict is OutcomeKind.ERROR
                yield verdict is OutcomeKind.TRUE

    def _may_occur(self, chunk: Chunk) -> bool:
        """Whether every clause has one of its texts somewhere in the chunk's bytes, or may have it escaped."""
        body = chunk.body.to_pybytes()
        missing = [clause for clause in self._clauses if not clause.occurs(body)]
        if not missing:
            return True
        if not all(clause.in_data for clause in missing):
            return False
        # Only the data's own bytes say whether something is escaped: a chunk's numbers hold any two bytes.
        data = texts_of(chunk.batch.column("data"))
        return ESCAPE[:1] in data and ESCAPE in data  # one byte is looked for ten times as fast as two

    def _numbers_may_occur(self, chunk: Chunk) -> bool:
        """Whether every bound has one of its numbers somewhere in the chunk's data, or may have it escaped."""
        data = texts_of(chunk.batch.column("data"))
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
