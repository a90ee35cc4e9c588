"""The outbox partition of a dispatcher on Kafka, as its subscriptions see it: where rows stand, and what is in force.

Both are read from the checkpoints of the partition. A checkpoint says up to where each source partition has been
matched (W), and by which run: rows of events at or above W stand behind it, whatever clocks say.
"""

from __future__ import annotations

from collections.abc import Mapping

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
