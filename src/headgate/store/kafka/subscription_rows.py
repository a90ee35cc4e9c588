"""The outbox partition of a dispatcher on Kafka, as its subscriptions see it: where rows stand, and what is in force.

Both are read from the checkpoints of the partition. A checkpoint says up to where each source partition has been
matched (W), and by which run: rows of events at or above W stand behind it, whatever clocks say.

A search for rows goes over everybody's records. So more rows are read than are asked for, and kept for the next pull.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from headgate.limits import OUTBOX_AHEAD_ROWS, OUTBOX_AHEAD_TARGETS_MAX
from headgate.outbox.reader import Backlog, RowPage, every_row
from headgate.store.kafka.checkpoints import Checkpoints
from headgate.store.kafka.outbox_state import OutboxState


class CheckpointRowPlaces:
    """See `headgate.subscriptions.sources.RowPlaces`.

    Args:
        checkpoints: Of the outbox partition.
        stored_end: Behind its last record, as it was when the partition came.
    """

    def __init__(self, checkpoints: Checkpoints, stored_end: int) -> None:
        self._checkpoints = checkpoints
        self._stored_end = stored_end

    def before(self, floor: Mapping[int, int], _since_us: int) -> int:
        """See `RowPlaces`: the newest checkpoint at which nothing of these events had been matched."""
        place = self._checkpoints.newest(lambda state: bool(floor) and _is_before(state, floor))
        return 0 if place is None else place.position

    def stored_end(self) -> int:
        """See `RowPlaces`."""
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
    """See `headgate.outbox.reader.Backlog`; reads ahead. What a row is never changes, so what is kept stays true.

    Args:
        backlog: Reads the outbox.
    """

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._kept: OrderedDict[int, _Ahead] = OrderedDict()

    async def read(
        self, target: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        """See `Backlog`; one row alone is not worth more."""
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
