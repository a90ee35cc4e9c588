"""The outbox partition of a dispatcher, as its subscriptions and as questions about an event see it."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.outbox_records import OutboxState
from headgate.backend.kafka.outbox_walk import Checkpoints, OutboxWalker, WalkedMatch
from headgate.filter.compile.plan import Verdict
from headgate.inspect.file_records import DeliveryRecords
from headgate.inspect.find import EventRecords, MatchRow
from headgate.outbox.reader import Backlog, RowPage, every_row
from headgate.outbox.shards import dispatcher_of
from headgate.storage.files import DispatcherDirectory
from headgate_api.errors import UnavailableError
from headgate_api.limits import OUTBOX_AHEAD_ROWS, OUTBOX_AHEAD_TARGETS_MAX, WHY_SECONDS_MAX

# --- partition records ----------------------------------------------------------------------------
# What the owner of an outbox partition knows of an event: rows from the topic, the rest from its files.


class OutboxLookups:
    """The thread, and the consumer used in it, by which a process looks for rows of events, one event at a time."""

    def __init__(self, config: KafkaConfig) -> None:
        self._closing = threading.Event()
        self.walker = OutboxWalker(config, self._closing)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="lookups")

    def close(self) -> None:
        """Ends what is looked for, and gives everything back; blocks."""
        self._closing.set()
        self.thread.shutdown(wait=True, cancel_futures=True)
        self.walker.close()


_FoundRows = tuple[Sequence[MatchRow], bool, bool]
"""Rows of an event, whether it is matched, and whether retention may have removed its rows."""
_TRIMMED: Final[_FoundRows] = ((), True, True)


class PartitionRecords(DeliveryRecords):
    """What is written down of the deliveries of a partition. Blocking; in the thread of `lookups`."""

    def __init__(
        self,
        number: int,
        own: DispatcherDirectory,
        attempts: Path,
        checkpoints: Checkpoints,
        lookups: OutboxLookups,
        partitions: int,
    ) -> None:
        super().__init__(own, attempts)
        self._number = number
        self._checkpoints = checkpoints
        self._walker = lookups.walker
        self._partitions = partitions

    def of_event(self, source: int, offset: int, target: int | None) -> EventRecords:
        """What is known of an event, by source partition and offset; of one target, or of all of them (None).

        Raises UnavailableError also when the rows of a target that lags are too far away.
        """
        cursors = self.cursors()
        found = self._rows(source, offset, target)
        if found is None:
            if any(one.target == target for one in cursors.targets):
                raise UnavailableError(
                    f"the outbox holds more since this event than can be read in {WHY_SECONDS_MAX:.0f} s",
                    hint="ask again when the trigger has caught up",
                )
            found = _TRIMMED
        rows, is_matched, is_trimmed = found
        attempts = [one for one in self.attempts(source, offset) if self._is_own(one.target)]
        return EventRecords(is_matched, is_trimmed, self.of_rows(rows, cursors), attempts)

    def _rows(self, source: int, offset: int, target: int | None) -> _FoundRows | None:
        """The rows of an event; None where they are too far away."""
        place = self._checkpoints.of_event(source, offset)
        if place is None:
            return _TRIMMED
        deadline = time.monotonic() + WHY_SECONDS_MAX
        walk = self._walker.begin(self._number, place)
        if walk.is_cut:
            return _TRIMMED
        rows: list[MatchRow] = []
        while walk.watermark(source) <= offset and walk.position < walk.end:
            if self._walker.closing.is_set() or time.monotonic() > deadline:
                return None
            for match in walk.step():
                record = match.matched.record
                if (record.source, record.offset) == (source, offset):
                    rows += _rows_of(match, target)
        return rows, walk.watermark(source) > offset, False

    def _is_own(self, target: int) -> bool:
        """Whether attempts for a target are this partition's; those of replays to a URL are the first one's."""
        return self._number == (dispatcher_of(target, self._partitions) if target else 0)


def _rows_of(match: WalkedMatch, target: int | None) -> list[MatchRow]:
    generation = match.matched.record.generation
    return [
        MatchRow(match.position, match.time_us, generation, one, Verdict(verdict))
        for one, verdict in match.matched.targets
        if target in (None, one)
    ]


# --- subscription rows ----------------------------------------------------------------------------
# Where rows stand, and what is in force, is read from the checkpoints of the partition. A checkpoint says up to where
# each source partition has been matched (W), and by which run: rows of events at or above W stand behind it, whatever
# clocks say.
#
# A search for rows goes over everybody's records. So more rows are read than are asked for, and kept for the next pull.


class CheckpointRowPlaces:
    """The `RowPlaces` of a partition; `stored_end` is as it was when the partition came."""

    def __init__(self, checkpoints: Checkpoints, stored_end: int) -> None:
        self._checkpoints = checkpoints
        self._stored_end = stored_end

    def before(self, floor: Mapping[int, int], _since_us: int) -> int:
        """The newest checkpoint at which nothing of these events had been matched."""
        place = self._checkpoints.newest(lambda state: bool(floor) and _is_before(state, floor))
        return 0 if place is None else place.position

    def stored_end(self) -> int:
        return self._stored_end


_POSITION: Final = attrgetter("position")


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Rows of a subscription from a position on."""

    start: int
    page: RowPage

    def cut(self, start: int, upto: int, count_max: int) -> RowPage | None:
        """What a read gets of it; None where it begins somewhere else."""
        if not self.start <= start < self.page.reached:
            return None
        rows = self.page.rows
        first, end = (bisect_left(rows, position, key=_POSITION) for position in (start, upto))
        found = rows[first : min(end, first + count_max)]
        is_full = len(found) >= count_max
        return RowPage(found, found[-1].position + 1 if is_full else min(self.page.reached, upto))


class RowsAhead:
    """A `Backlog` that reads ahead of another one. What a row is never changes, so what is kept stays true."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._kept: OrderedDict[int, _Ahead] = OrderedDict()

    async def read(
        self, target: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        kept = self._kept.get(target)
        cut = kept.cut(start, upto, count_max) if kept is not None and wants is every_row else None
        if cut is not None:
            self._kept.move_to_end(target)
            return cut
        if count_max <= 1 or wants is not every_row:
            return await self._backlog.read(target, start, upto, count_max, wants)
        ahead = _Ahead(start, await self._backlog.read(target, start, upto, max(count_max, OUTBOX_AHEAD_ROWS)))
        if ahead.page.rows:
            self._kept[target] = ahead
            self._kept.move_to_end(target)
            while len(self._kept) > OUTBOX_AHEAD_TARGETS_MAX:
                self._kept.popitem(last=False)
        return ahead.cut(start, upto, count_max) or ahead.page


def _is_before(state: OutboxState, floor: Mapping[int, int]) -> bool:
    known = state.takeover.partitions
    return all(source not in known or known[source].watermark <= offset for source, offset in floor.items())


def in_force(checkpoints: Checkpoints) -> dict[int, tuple[int, int]]:
    """Of each source partition that a run owns: W, and the generation by which events from W on are matched."""
    place = checkpoints.newest()
    if place is None:
        return {}
    takeover = place.state.takeover
    generations = {run.run: run.generation for run in takeover.runs}
    return {
        source: (each.watermark, generations[each.contenders[0]])
        for source, each in takeover.partitions.items()
        if each.owned
    }
