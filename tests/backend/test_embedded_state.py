"""What of a stopped server's deliveries has not ended, and what a move cannot take."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headgate.backend.embedded_state import EmbeddedState, LeftBehindError
from headgate.delivery.cursors import CursorChange, CursorStore, TargetCursor, Tried
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.plan import Verdict
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.api.admission import Admission
from headgate.objects.store.store import Store
from headgate.outbox.writer import OUTBOX_SCHEMA, RowGroup, encode_chunk
from headgate.storage.files import DispatcherDirectory
from headgate_api.objects.kinds import Kind
from tests.backend.contract import BROKER, event
from tests.objects.support import trigger
from tests.objects.test_subscriptions import subscription

EVENTS = 10
GOOD, LAGGING, FAILING = 101, 102, 103


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two dispatchers: the second one has come to event 6 only, and knows of no target that is behind."""
    with closing(Store.open(tmp_path / "control.db")) as store:
        Admission(store).create(Kind.TRIGGER, trigger("t"))
    log = LogDirectory(tmp_path / "log", "stop")
    with closing(PartitionWriter(log.partition(0), EVENT_SCHEMA)) as writer:
        for number in range(EVENTS):
            writer.append(Encoded(to_batch([StoredEvent(BROKER, event(number))]), ["t"]))
    for number, (targets, passed) in enumerate((((GOOD, LAGGING), 8), ((FAILING,), 6))):
        own = DispatcherDirectory.of(tmp_path, number)
        own.path.mkdir(parents=True)
        with closing(PartitionWriter(Partition(own.outbox, "stop"), OUTBOX_SCHEMA)) as outbox:
            for offset in range(passed):  # with one target 2 positions an event, with two 3
                rows = [(offset, target, int(Verdict.MATCH)) for target in targets]
                outbox.append(encode_chunk([RowGroup(0, 1, rows)], {0: (offset + 1, 1)}))
    return tmp_path


def write(data: Path, number: int, position: int, *behind: TargetCursor) -> None:
    with closing(CursorStore(DispatcherDirectory.of(data, number).cursors)) as cursors:
        cursors.flush(CursorChange(position, {}, list(behind), []))


def read(data: Path) -> EmbeddedState:
    return EmbeddedState(data, [DispatcherDirectory.of(data, number) for number in range(2)])


def waiting(state: EmbeddedState) -> dict[int, list[int]]:
    """Offsets by target."""
    found: dict[int, list[int]] = {}
    for offset in range(EVENTS):
        for target, verdict in state.undelivered.of(0, offset):
            assert verdict == Verdict.MATCH
            found.setdefault(target, []).append(offset)
    return found


def test_rows_that_wait_in_each_place(data: Path) -> None:
    # Event N of the first dispatcher: position 3N of GOOD, 3N + 1 of LAGGING. Everything below 15 is handed out.
    write(data, 0, 15, TargetCursor(LAGGING, 7, (1,)))
    write(data, 1, 6, TargetCursor(FAILING, None, (2,), (Tried(2, 1, 0, 0),)))
    state = read(data)
    assert (state.events, state.passed) == (EVENTS, {0: 6})
    assert waiting(state) == {GOOD: [5], LAGGING: [0, 2, 3, 4, 5], FAILING: [1, 3, 4, 5]}
    assert state.undelivered.count == 10
    matched = [(rows.start + chunk.first_offset) for _, chunk, rows in state.chunks(matched=True)]
    others = [(rows.start + chunk.first_offset) for _, chunk, rows in state.chunks(matched=False)]
    assert (matched, others) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
    state.left.check(is_accepted=False)


def test_without_cursors_everything_waits(data: Path) -> None:
    state = read(data)
    assert waiting(state) == {target: list(range(6)) for target in (GOOD, LAGGING, FAILING)}


def test_unread_events_of_subscriptions_are_counted_and_not_taken(data: Path) -> None:
    with closing(Store.open(data / "control.db")) as store:
        Admission(store).create(Kind.SUBSCRIPTION, subscription("s"))
        target = next(one for one, key in store.targets.keys().items() if key.kind is Kind.SUBSCRIPTION)
    with closing(PartitionWriter(Partition(DispatcherDirectory.of(data, 1).outbox, "stop"), OUTBOX_SCHEMA)) as outbox:
        outbox.append(encode_chunk([RowGroup(0, 1, [(1, target, 3), (2, target, 3)])], {}))
    state = read(data)
    assert target not in waiting(state)
    assert state.left.unread == 2
    with pytest.raises(LeftBehindError, match="2 unread events"):
        state.left.check(is_accepted=False)
    state.left.check(is_accepted=True)
