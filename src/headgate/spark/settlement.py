"""The last word on a match: an Arrow function that merges a pair's rows, and asks cel-cpp of those left open.

The matcher says MATCH, CANDIDATE or ERROR of each conjunction of a filter; several rows may be of one event and filter.
They follow each other, so the rows of one event are merged without a shuffle, in a stream as well as in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from headgate.event.arrow import EVENT_SCHEMA, from_batch_all
from headgate.event.json_text import allow_deep_json
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.plan import Verdict

EVENT_COLUMNS: Final = tuple(name for name in EVENT_SCHEMA.names if name not in {"broker", "time_us", "produced"})
"""What is asked for of an event that is left open, with `append_time_us` behind; NULL where nothing is."""
_VERDICTS: Final = {OutcomeKind.TRUE: Verdict.MATCH, OutcomeKind.ERROR: Verdict.ERROR, OutcomeKind.FALSE: None}
Settle = Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]


@dataclass(frozen=True, slots=True)
class SettledFilter:
    """What is needed to settle a filter's rows.

    Attributes:
        cel: Its canonical text.
        is_single: Whether its plan has one row: an ERROR of it is final.
    """

    cel: str
    is_single: bool


def settlement(filters: Sequence[SettledFilter]) -> Settle:
    """The function of these filters.

    Args:
        filters: By target.

    Returns:
        A function of the batches of one task to one verdict a row, NULL where the row says nothing more of its pair.
        Their columns are `row` (the same in all rows of an event, and in no others), `target`, `verdict`, EVENT_COLUMNS
        and `append_time_us`; these are NULL unless the row is open.
    """

    def settle(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        allow_deep_json()
        event: object = None
        view: EventView | None = None
        said: set[int] = set()
        for row, target, verdict, *columns in batches:
            views = _views(row, columns)
            answer: list[int | None] = []
            is_open = columns[0].is_valid().to_pylist()
            rows = zip(row.to_pylist(), target.to_pylist(), verdict.to_pylist(), is_open, strict=True)
            for of, number, given, left_open in rows:
                if of != event:
                    event, view = of, None
                    said.clear()
                if number in said:
                    answer.append(None)
                    continue
                said.add(number)
                one = filters[number]
                if not left_open or (given == Verdict.ERROR and one.is_single):
                    answer.append(given)
                    continue
                view = view or views.get(of)
                answer.append(_settled(one.cel, view))
            yield pa.array(answer, pa.int8())

    return settle


def _settled(cel: str, view: EventView | None) -> int | None:
    return Verdict.ERROR if view is None else _VERDICTS[program(cel).evaluate_view(view).kind]


def _views(row: pa.Array, columns: Sequence[pa.Array]) -> dict[object, EventView]:
    """The events that are left open in a batch, by row; one that cannot be read is not among them."""
    *attributes, append_time = columns
    first: dict[object, int] = {}
    for index, (of, is_open) in enumerate(zip(row.to_pylist(), columns[0].is_valid().to_pylist(), strict=True)):
        if is_open:
            first.setdefault(of, index)
    taken = pa.array(first.values(), pa.int32())
    events = _events([column.take(taken) for column in attributes], len(first))
    stored = append_time.take(taken).to_pylist()
    return {
        of: EventView(event, stored_us)
        for of, event, stored_us in zip(first, events, stored, strict=True)
        if event is not None
    }


def _events(columns: Sequence[pa.Array], count: int) -> list[Any]:
    """Events of their columns; None for what no ingress has let through."""
    named = dict(zip(EVENT_COLUMNS, columns, strict=True))
    nothing = pa.nulls(count, pa.utf8())
    batch = pa.RecordBatch.from_arrays([named.get(name, nothing) for name in EVENT_SCHEMA.names], EVENT_SCHEMA.names)
    try:
        return [stored.event for stored in from_batch_all(batch)]
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
        if count == 1:
            return [None]
    return [event for index in range(count) for event in _events([one.slice(index, 1) for one in columns], 1)]
