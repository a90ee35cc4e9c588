"""Writes accepted rows into the outbox, with how far matching has come; the outbox's chunks, encoded and decoded.

A row with target -1 is progress: "events of this partition below `offset` are complete". A chunk is all or nothing and
ends with the progress of every partition that it has rows of: nothing ever stands above the watermark.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import structlog

from headgate.log.writer import Encoded, PartitionWriter
from headgate.observe.metrics import CHUNK_RECORDS
from headgate.outbox.link_format import Row
from headgate.outbox.takeover import Accepted
from headgate.storage.threads import Threads
from headgate_api import limits
from headgate_api.errors import UnavailableError

OUTBOX_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("target", pa.int32(), nullable=False),
        pa.field("verdict", pa.int8(), nullable=False),
        pa.field("generation", pa.int64(), nullable=False),
    ]
)
_COLUMNS: Final = tuple(zip(OUTBOX_SCHEMA.types, "iqibq", strict=True))
"""Each column's type, and the code of `array` for the same numbers."""
PROGRESS_TARGET: Final = -1

_CHUNKS: Final = CHUNK_RECORDS.labels("outbox")

_log = structlog.get_logger(__name__)

WhenDurable = Callable[[int, Callable[[], None]], None]
"""Calls back on the loop once every row of the outbox below a position is durable; see `Outbox.when_durable`."""


def always_durable(position: int, call: Callable[[], None]) -> None:
    """The `WhenDurable` of an outbox whose rows are durable before they are handed on: Kafka's."""
    call()


async def until_durable(when_durable: WhenDurable, position: int) -> None:
    """Returns once every row of the outbox below a position is durable."""
    durable = asyncio.Event()
    when_durable(position, durable.set)
    await durable.wait()


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one partition and generation, in order of event offset."""

    partition: int
    generation: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class OutboxChunk:
    """Rows that stand together in the outbox.

    By `row_step` positions grow from row to row; 0 where they are rows of one record, which share its offset.
    """

    first_position: int
    row_groups: list[RowGroup]  # in the order of their positions; progress rows follow behind them
    next_position: int
    watermarks: dict[int, int]  # those of its progress rows, per partition
    row_step: int = 1

    @property
    def row_count(self) -> int:
        """How many rows it has; those of progress count where they have positions."""
        if self.row_step:
            return self.next_position - self.first_position
        return sum(len(row_group.rows) for row_group in self.row_groups)


@dataclass(slots=True)
class _Pending:
    row_groups: list[RowGroup] = field(default_factory=list)
    progress: dict[int, tuple[int, int]] = field(default_factory=dict)  # partition -> (watermark, generation)
    rows_count: int = 0


def encode_chunk(row_groups: Sequence[RowGroup], progress: dict[int, tuple[int, int]]) -> Encoded:
    """One outbox chunk: the rows in order, then one progress row per partition; and each row's filter value."""
    partitions: list[int] = []
    offsets: list[int] = []
    targets: list[int] = []
    verdicts: list[int] = []
    generations: list[int] = []
    for row_group in row_groups:
        columns = list(zip(*row_group.rows, strict=True))
        count = len(row_group.rows)
        offsets += columns[0]
        targets += columns[1]
        verdicts += columns[2]
        partitions += [row_group.partition] * count
        generations += [row_group.generation] * count
    for partition, (watermark, generation) in progress.items():
        partitions.append(partition)
        offsets.append(watermark)
        targets.append(PROGRESS_TARGET)
        verdicts.append(0)
        generations.append(generation)
    values = (partitions, offsets, targets, verdicts, generations)
    batch = pa.RecordBatch.from_arrays(list(map(_column, _COLUMNS, values)), schema=OUTBOX_SCHEMA)
    return Encoded(batch, list(map(str, targets)))


def _column(form: tuple[pa.DataType, str], values: list[int]) -> pa.Array:
    """What `pa.array` makes of them, without a look at the kind of each: half of what a chunk with one row costs."""
    kind, code = form
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def decode_chunk(first_position: int, batch: pa.RecordBatch) -> OutboxChunk:
    """The inverse of `encode_chunk`, for what a restart reads."""
    row_groups: list[RowGroup] = []
    watermarks: dict[int, int] = {}
    last: tuple[int, int] | None = None
    columns = [batch.column(index).to_pylist() for index in range(5)]
    for partition, offset, target, verdict, generation in zip(*columns, strict=True):
        if target == PROGRESS_TARGET:
            watermarks[partition] = max(offset, watermarks.get(partition, 0))
            continue
        if last != (partition, generation):
            row_groups.append(RowGroup(partition, generation, []))
            last = (partition, generation)
        row_groups[-1].rows.append((offset, target, verdict))
    return OutboxChunk(first_position, row_groups, first_position + batch.num_rows, watermarks)


class Outbox:
    """Collects accepted rows, writes them in chunks and hands them on. Lives on one event loop.

    Deliveries do not wait for the disk: `on_chunk` gets every chunk once, in order, while it is written. A crash before
    it is durable takes its watermark with it, so its events are matched and delivered again. What is written down about
    a row, or is read from the outbox, waits for its chunk: see `when_durable`. Progress alone waits up to
    OUTBOX_PROGRESS_S_MAX: losing it costs only a restart that matches those events again.

    No `GroupCommit`: a chunk keeps the positions by which it was handed on, so it is tried until the disk takes it, and
    what waits is merged, progress of a partition into one row. `on_room` is called when rows have left the queue.
    """

    def __init__(
        self,
        writer: PartitionWriter,
        on_chunk: Callable[[OutboxChunk], None],
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer = writer
        self._on_chunk = on_chunk
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._thread = Threads("outbox")
        self._waiting = _Pending()
        self._writing: _Pending | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self.failing = False  # whether the disk refuses rows now
        self.end = writer.next_offset  # the position behind the last row that was handed on
        self.durable = self.end  # every row below it is durable
        self._until_durable: list[Callable[[], None]] = []
        """Called when the chunk that is being written is durable: no position is beyond it."""

    def when_durable(self, position: int, call: Callable[[], None]) -> None:
        """Calls back on the loop once every row below a position (`end` at most) is durable; at once if it is."""
        if position <= self.durable:
            call()
        else:
            self._until_durable.append(call)

    @property
    def rows_pending(self) -> int:
        """Rows not durable yet."""
        return self._waiting.rows_count + (self._writing.rows_count if self._writing else 0)

    def add(self, accepted: Accepted) -> None:
        """Take accepted rows and the watermark that comes with them."""
        waiting = self._waiting
        if accepted.rows:
            waiting.row_groups.append(RowGroup(accepted.partition, accepted.generation, accepted.rows))
            waiting.rows_count += len(accepted.rows)
        waiting.progress[accepted.partition] = (accepted.passed, accepted.generation)
        if self._writing is None:
            if waiting.row_groups:
                self._start()
            elif self._progress_timer is None:
                self._progress_timer = self._loop.call_later(limits.OUTBOX_PROGRESS_S_MAX, self._start)

    async def close(self) -> None:
        """Write what waits (giving up when the disk refuses), then stop the thread. The writer stays open."""
        if self._writing is None and (self._waiting.row_groups or self._waiting.progress):
            self._start()
        if self._writing is not None and not self.failing:
            self._idle = self._loop.create_future()
            await self._idle
        self._cancel_timer()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._thread.close()

    # --- inside ---------------------------------------------------------------------------------------

    def _cancel_timer(self) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None

    def _start(self) -> None:
        self._cancel_timer()
        if self._writing is not None:
            return
        pending = self._writing = self._take()
        first = self.end
        self.end += pending.rows_count + len(pending.progress)
        self._submit(pending)
        watermarks = {partition: watermark for partition, (watermark, _) in pending.progress.items()}
        self._on_chunk(OutboxChunk(first, pending.row_groups, self.end, watermarks))

    def _submit(self, chunk: _Pending) -> None:
        self._thread.begin(partial(self._write, chunk), partial(self._written, chunk))

    def _take(self) -> _Pending:
        """What goes into the next chunk: all that waits, up to OUTBOX_CHUNK_ROWS_MAX rows."""
        waiting = self._waiting
        if waiting.rows_count <= limits.OUTBOX_CHUNK_ROWS_MAX:
            self._waiting = _Pending()
            return waiting
        taken = _Pending()
        while waiting.row_groups and (
            not taken.row_groups or taken.rows_count + len(waiting.row_groups[0].rows) <= limits.OUTBOX_CHUNK_ROWS_MAX
        ):
            row_group = waiting.row_groups.pop(0)
            taken.row_groups.append(row_group)
            taken.rows_count += len(row_group.rows)
            # Complete up to this row_group's last event; the rest of what has passed stands behind later rows.
            taken.progress[row_group.partition] = (row_group.rows[-1][0] + 1, row_group.generation)
        waiting.rows_count -= taken.rows_count
        return taken

    def _write(self, chunk: _Pending) -> int:
        return self._writer.append(encode_chunk(chunk.row_groups, chunk.progress))

    def _written(self, chunk: _Pending, done: Future[int]) -> None:
        error = done.exception()
        if isinstance(error, UnavailableError):
            if not self.failing:
                _log.error("outbox does not take rows, trying again", error=str(error), rows=chunk.rows_count)
            self.failing = True
            if self._idle is not None:
                self._idle.set_result(None)
                return
            self._retry_timer = self._loop.call_later(limits.OUTBOX_RETRY_S, self._submit, chunk)
            return
        assert done.result() == self.durable  # where its rows were said to stand
        _CHUNKS.observe(chunk.rows_count)
        if self.failing:
            self.failing = False
            _log.info("outbox takes rows again")
        self._writing = None
        self.durable = self.end
        calls, self._until_durable = self._until_durable, []
        if self._waiting.row_groups or (self._waiting.progress and self._idle is not None):
            self._start()
        elif self._waiting.progress and self._progress_timer is None:
            self._progress_timer = self._loop.call_later(limits.OUTBOX_PROGRESS_S_MAX, self._start)
        for call in calls:
            call()
        self._on_room()
        if self._writing is None and self._idle is not None:
            self._idle.set_result(None)
