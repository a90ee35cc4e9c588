"""Places of an outbox partition at which its rows can be decided again: which are kept, and where an event begins."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headgate.backend.kafka.outbox_records import OutboxState
from headgate.backend.kafka.outbox_walk import CheckpointedCursors, Checkpoints, KnownPlace
from headgate.delivery.cursors import CursorChange, TargetCursor
from headgate.outbox.takeover import PartitionState, TakeoverState
from headgate_api import limits


def place(position: int) -> KnownPlace:
    """At a position there are all rows of half as many events of source partition 3."""
    watermark = PartitionState(position // 2, (), (), False)
    return KnownPlace(position, position, OutboxState(1, TakeoverState((), {3: watermark})))


def test_an_event_begins_at_the_newest_place_without_a_row_of_it() -> None:
    places = Checkpoints()
    for position in range(10, 100, 10):
        places.add(place(position))

    def found(source: int, offset: int) -> int | None:
        known = places.of_event(source, offset)
        return None if known is None else known.position

    assert [found(3, offset) for offset in (0, 4, 5, 7, 44, 45, 1_000)] == [0, 0, 10, 10, 80, 90, 90]
    assert found(7, 0) == 90, "nothing is known of the source partition anywhere: its first record is to come"
    places.keep(frozenset({30}), 60)
    assert [found(3, offset) for offset in (5, 14, 15, 29, 30)] == [None, None, 30, 30, 60]


@pytest.mark.parametrize("is_behind", [False, True])
def test_old_places_are_kept_ever_further_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    monkeypatch.setattr(limits, "OUTBOX_CHECKPOINT_RECORDS", 10)
    monkeypatch.setattr(limits, "OUTBOX_CHECKPOINTS_PAST", 8)
    places = Checkpoints()
    with closing(CheckpointedCursors(tmp_path / "dispatch.db", places)) as cursors:
        for position in range(10, 5_010, 10):
            places.add(place(position))
            behind = [TargetCursor(1, 4_000, ())] if is_behind and position >= 4_000 else []
            cursors.flush(CursorChange(position, {}, behind, []))
        if is_behind:
            at = places.before(4_000)
            assert 4_000 - 10 <= at.position <= 4_000, "who lags reads from near its place"
    restored = Checkpoints()
    with closing(CheckpointedCursors(tmp_path / "dispatch.db", restored)):
        kept = [one.position for one in restored._places]
    assert kept[0] == 0
    assert len([one for one in kept if one < (4_000 if is_behind else 5_000)]) <= 8 + 1
    assert kept[-1] == 5_000
    for position in (100, 1_000, 2_500, 3_900):
        known = restored.of_event(3, position // 2)
        assert known is not None
        assert known.position <= position
