"""What subscriptions read and share: the outbox, the log, and who looks at an event last."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from headgate.delivery.dead_letter import DeadLetterQueue
from headgate.delivery.events import Events
from headgate.delivery.verdicts import FinalCheck
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.outbox.reader import Backlog, OutboxRow, RowPage, position_at_time
from headgate.scan.pages import RuleOf, Scanner
from headgate.scan.source import ReadableLog
from headgate_api import limits

_SLACK_US: Final = int(limits.SEEK_SLACK_S * 1_000_000)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionResources:
    """What all subscriptions share; without `dead_letters` what was handed out too often is dropped.

    `in_force` gives, of each partition that is being matched, where matching stands and by which generation.
    """

    outbox: OutboxView
    log: ReadableLog
    scanner: Scanner
    rule_of: RuleOf
    events: Events
    final_check: FinalCheck
    in_force: Callable[[], dict[int, tuple[int, int]]]
    clock_us: Callable[[], int]
    dead_letters: DeadLetterQueue | None = None
