"""Contents and sizes of a batch's rows, read from the bytes of its columns before anything is decoded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.event.arrow import EVENT_SCHEMA
from headgate.filter.skipping.literals import ESCAPE, Clause, NumberRange

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
