"""Reads one target's rows of the outbox again, past every chunk that has none of them; where rows stand in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import pyarrow.compute as pc

from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.outbox.writer import OUTBOX_SCHEMA, WhenDurable, until_durable
from headgate.storage.threads import Threads
from headgate_api import limits

_THREADS: Final = 2
_SLACK_US: Final = int(limits.SEEK_SLACK_S * 1_000_000)
_TARGET: Final = OUTBOX_SCHEMA.get_field_index("target")


class OutboxRow(NamedTuple):
    """A row of one target: its position in the outbox, and the event's partition and offset in the log."""

    position: int
    partition: int
    offset: int
    verdict: int


@dataclass(frozen=True, slots=True)
class RowPage:
    """A piece of a target's backlog, in order of position; everything of the target below `reached` has been read."""

    rows: list[OutboxRow]
    reached: int


def every_row(position: int) -> bool:
    """Wants the row, whatever its position."""
    return True


class Backlog(Protocol):
    """The rows of the outbox, by target."""

    async def read(
        self, target: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        """Reads a target's next rows, from `start` up to before `upto`; about `count_max` at most.

        Positions that `wants` refuses are left out; its answers must not change while this runs.
        """


def position_at_time(outbox: Partition, time_us: int) -> int:
    """The first row that was written at or after a time, microseconds since 1970 UTC; blocking."""
    with PartitionReader.open_at_time(outbox, time_us) as reader:
        return reader.position


class OutboxReader:
    """The `Backlog` of an outbox that is a partition of the chunk log; reads pages in threads of its own."""

    def __init__(self, outbox: Partition) -> None:
        self._outbox = outbox
        self._threads = Threads("backlog", _THREADS)

    async def read(
        self, target: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        return await self._threads.run(self._read, target, start, upto, count_max, wants)

    def close(self) -> None:
        self._threads.close()

    def _read(self, target: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool]) -> RowPage:
        filter_values = frozenset({str(target)})
        found: list[OutboxRow] = []
        reached = start
        with PartitionReader(self._outbox, start=start) as reader:
            while len(found) < count_max and reached < upto:
                chunk = reader.read(wanted=filter_values)
                if chunk is None:
                    reached = upto
                    break
                rows = pc.indices_nonzero(pc.equal(chunk.batch.column(_TARGET), target))
                columns = [chunk.batch.column(index).take(rows).to_pylist() for index in (0, 1, 3)]
                for row, partition, offset, verdict in zip(rows.to_pylist(), *columns, strict=True):
                    position = chunk.first_offset + row
                    if position < upto and wants(position):
                        found.append(OutboxRow(position, partition, offset, verdict))
                        if len(found) >= count_max:
                            return RowPage(found, position + 1)
                reached = min(chunk.next_offset, upto)
        return RowPage(found, reached)


class DurableBacklog:
    """A `Backlog` of rows that are handed on while they are written: a read waits until what it may find is durable."""

    def __init__(self, rows: Backlog, when_durable: WhenDurable) -> None:
        self._rows = rows
        self._when_durable = when_durable

    async def read(
        self, target: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        await until_durable(self._when_durable, upto)
        return await self._rows.read(target, start, upto, count_max, wants)


class RowPlaces(Protocol):
    """Where rows stand in the outbox, of a chunk log or in Kafka (`backend/kafka/partition_views.py`). Blocking.

    `tests/backend/test_backlog_contract.py` holds both to what is said here.
    """

    def before(self, floor: Mapping[int, int], since_us: int) -> int:
        """A position; every row of an event at or behind these offsets stands there or behind it.

        Those events were stored at or after `since_us`, microseconds since 1970 UTC; 0 where that is not known.
        """
        ...

    def stored_end(self) -> int:
        """The position behind the last row that is durable; a cursor beyond it is of another outbox."""
        ...


class ChunkRowPlaces:
    """`RowPlaces` of an outbox that is a partition of the chunk log."""

    def __init__(self, outbox: Partition) -> None:
        self._outbox = outbox

    def before(self, floor: Mapping[int, int], since_us: int) -> int:
        """By the time when rows were written."""
        return position_at_time(self._outbox, since_us - _SLACK_US) if since_us else 0

    def stored_end(self) -> int:
        with PartitionReader(self._outbox, start=0) as reader:
            return reader.committed_offset()


class OutboxView:
    """The outbox up to the row that was handed over last: below `end` all is durable and known to the dispatcher."""

    def __init__(self, places: RowPlaces, backlog: Backlog, end: Callable[[], int]) -> None:
        self.places = places
        self._backlog = backlog
        self._end = end

    @property
    def end(self) -> int:
        return self._end()

    async def page(self, target: int, start: int, count_max: int, *, upto: int | None = None) -> RowPage:
        """A target's next rows from `start` on, at most about `count_max`; below `upto`, by default the end."""
        return await self._backlog.read(target, start, self._end() if upto is None else upto, count_max)

    async def rows(self, target: int, start: int) -> AsyncIterator[OutboxRow]:
        """All of a target's rows from `start` to the end, as it is now."""
        end = self._end()
        while start < end:
            page = await self.page(target, start, limits.BACKLOG_READ_ROWS, upto=end)
            for row in page.rows:
                yield row
            start = page.reached
