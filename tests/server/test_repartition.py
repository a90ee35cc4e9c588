"""Another number of dispatchers: nothing that is unfinished is lost, and every target keeps its order."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headgate.deadletters.store import DeadLetterState, DeadLetterStore
from headgate.delivery.cursors import CursorChange, CursorStore, TargetCursor, Tried
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.log.writer import PartitionWriter
from headgate.outbox.shards import Shard, dispatcher_of
from headgate.outbox.writer import OUTBOX_SCHEMA, PROGRESS_TARGET, RowGroup, encode_chunk
from headgate.replay.store import ReplayStore
from headgate.retention.floor import FloorFinder
from headgate.server import datadir, repartition
from headgate.storage.files import DispatcherDirectory, directories_of
from headgate.subscriptions.store import SavedCursor, SubscriptionStore, UnackedEvent
from tests.deadletters.letters import letter, page
from tests.replay.test_sender import asked
from tests.support import times

TRIGGERS = range(1, 10)
SUBSCRIPTIONS = range(10, 14)
PARTITIONS = 2
EVENTS = 60
Event = tuple[int, int]
"""Partition and offset."""


@dataclass
class Content:
    """What all dispatchers of a data directory have, as far as targets see it.

    Attributes:
        rows: Of each target, its rows' events in their order.
        unfinished: Of each trigger, the events that are still to be delivered.
        failures: How often which of them have failed.
        unread: Of each subscription, the events that nobody has read.
        unacked: Those that somebody has.
        dead_letters: By id: the target, the event of the row that it stands at, if any, and its state.
        replays: By id: the dispatcher.
        passed: By dispatcher: the watermarks.
    """

    rows: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    unfinished: dict[int, set[Event]] = field(default_factory=lambda: defaultdict(set))
    failures: dict[tuple[int, Event], int] = field(default_factory=dict)
    unread: dict[int, set[Event]] = field(default_factory=lambda: defaultdict(set))
    unacked: dict[int, set[Event]] = field(default_factory=lambda: defaultdict(set))
    epochs: dict[int, int] = field(default_factory=dict)
    dead_letters: dict[int, tuple[int, Event | None, DeadLetterState]] = field(default_factory=dict)
    replays: dict[int, int] = field(default_factory=dict)
    passed: list[dict[int, int]] = field(default_factory=list)


def make(data: Path, count: int, chance: random.Random, *, handed: bool) -> None:
    """A data directory of so many dispatchers, each somewhere else.

    Args:
        data: Where.
        count: How many dispatchers.
        chance: Decides everything.
        handed: Whether all rows have been handed over, as after an orderly stop.
    """
    datadir.arrange(data, count, lambda *_: None)
    for partition in range(PARTITIONS):
        (data / "log" / str(partition)).mkdir(parents=True, exist_ok=True)
    events = [(chance.randrange(PARTITIONS), number) for number in range(EVENTS)]
    offsets: dict[int, int] = defaultdict(int)
    stream: list[tuple[Event, list[int]]] = []
    for partition, _ in events:
        wanted = sorted(chance.sample([*TRIGGERS, *SUBSCRIPTIONS], chance.randrange(8)))
        stream.append(((partition, offsets[partition]), wanted))
        offsets[partition] += 1
    letters = 0
    for number, own in enumerate(directories_of(data, count)):
        shard = Shard(number, count)
        # Each has passed another part of the stream, and was slow at another time.
        seen = stream[: EVENTS - chance.randrange(15)]
        rows: list[tuple[int, Event]] = []
        clock = [0]
        with PartitionWriter(
            Partition(own.outbox, "stop"), OUTBOX_SCHEMA, clock_us=lambda clock=clock: clock[0]
        ) as writer:
            while seen:
                taken, seen = seen[: (size := chance.randrange(1, 9))], seen[size:]
                clock[0] = 1_000_000 + 1_000 * (EVENTS - len(seen)) + chance.randrange(5_000)
                groups, progress = [], {}
                position = writer.next_offset
                for (partition, offset), wanted in taken:
                    own_targets = [target for target in wanted if shard.owns(target)]
                    if own_targets:
                        groups.append(RowGroup(partition, 1, [(offset, target, 3) for target in own_targets]))
                        for target in own_targets:
                            rows.append((target, (partition, offset)))
                            position += 1
                    progress[partition] = (offset + 1, 1)
                writer.append(encode_chunk(groups, progress))
            end = writer.next_offset
        positions = dict(enumerate(_positions(own)))
        by_target: dict[int, list[int]] = defaultdict(list)
        for at, (target, _, _) in positions.items():
            by_target[target].append(at)
        behind = []
        reached = end if handed else chance.randrange(end + 1)
        for target in (one for one in TRIGGERS if shard.owns(one)):
            below = [at for at in by_target[target] if at < reached]
            lag_from = chance.choice([None, None, chance.randrange(reached + 1)])
            old = [at for at in below if lag_from is None or at < lag_from]
            pending = tuple(sorted(chance.sample(old, chance.randrange(min(len(old), 4) + 1))))
            retries = tuple(Tried(at, chance.randrange(1, 9), 5, 6) for at in pending if chance.random() < 0.5)
            if pending or lag_from is not None:
                behind.append(TargetCursor(target, lag_from, pending, retries))
        progress = [positions[at] for at in range(reached) if positions[at][0] == PROGRESS_TARGET]
        marks = {partition: offset for _, partition, offset in progress}
        with contextlib.closing(CursorStore(own.cursors)) as cursors:
            cursors.flush(CursorChange(reached, marks, behind, []))
        with contextlib.closing(SubscriptionStore(own.subscriptions)) as pulls:
            for target in (one for one in SUBSCRIPTIONS if shard.owns(one)):
                upto = chance.randrange(end + 1)
                old = [at for at in by_target[target] if at < upto]
                held = sorted(chance.sample(old, min(len(old), chance.randrange(4))))
                unacked = [UnackedEvent(at, *positions[at][1:], 0) for at in held]
                pulls.write({target: SavedCursor(epoch=7, next=upto, unacked=unacked)})
        with contextlib.closing(DeadLetterStore(own.dead_letters, shard)) as store:
            died = [at for at, (target, _, _) in positions.items() if target in TRIGGERS and chance.random() < 0.2]
            states = [DeadLetterState.KEPT, DeadLetterState.PENDING]
            found = [letter(at, target=positions[at][0], state=states[at % 2]) for at in died]
            found += [letter(-5 - letters, target=one) for one in TRIGGERS if shard.owns(one)][:1]
            letters += 10
            store.apply(found, [], [])
        with contextlib.closing(ReplayStore(own.replays, shard)) as replays:
            for _ in range(chance.randrange(3) if number == 0 else 0):
                replays.create(asked(url="http://x/"))


def _positions(own: DispatcherDirectory) -> list[tuple[int, int, int]]:
    """Target, partition and offset of every row, progress among them."""
    found: list[tuple[int, int, int]] = []
    with PartitionReader(Partition(own.outbox, "stop"), start=0) as reader:
        while (chunk := reader.read()) is not None:
            columns = [chunk.batch.column(name).to_pylist() for name in ("target", "partition", "offset")]
            found += zip(*columns, strict=True)
    return found


def content(data: Path, count: int) -> Content:
    """What is in a data directory; also that each has only what is its own."""
    found = Content()
    for number, own in enumerate(directories_of(data, count)):
        shard, rows = Shard(number, count), _positions(own)
        with contextlib.closing(CursorStore(own.cursors)) as store:
            cursors = store.load()
        behind = {one.target: one for one in cursors.targets}
        with contextlib.closing(SubscriptionStore(own.subscriptions)) as pulls:
            saved = pulls.load()
        for target in [*behind, *saved]:
            assert shard.owns(target)
        for at, (target, *event) in enumerate(rows):
            if target == PROGRESS_TARGET:
                continue
            assert shard.owns(target)
            place = (event[0], event[1])
            found.rows[target].append(place)
            if target in TRIGGERS:
                cursor = behind.get(target)
                lags = cursor is not None and cursor.lag_from is not None and at >= cursor.lag_from
                if at >= cursors.position or lags or (cursor is not None and at in cursor.pending):
                    found.unfinished[target].add(place)
            elif at >= saved[target].next:
                found.unread[target].add(place)
        for target, cursor in behind.items():
            for tried in cursor.retries:
                assert tried.position in cursor.pending
                row = rows[tried.position]
                assert row[0] == target
                found.failures[target, (row[1], row[2])] = tried.failures
            assert all(rows[at][0] == target for at in cursor.pending)
        for target, one in saved.items():
            found.epochs[target] = one.epoch
            for unacked in one.unacked:
                assert rows[unacked.position] == (target, unacked.partition, unacked.offset)
                assert unacked.position < one.next
                found.unacked[target].add((unacked.partition, unacked.offset))
        with contextlib.closing(DeadLetterStore(own.dead_letters, shard)) as letters:
            for letter in page(letters.reader):
                assert shard.owns(letter.target)
                row = rows[letter.position] if letter.position >= 0 else None
                assert row is None or row[0] == letter.target
                found.dead_letters[letter.id] = letter.target, row and (row[1], row[2]), letter.state
                assert letters.reader.event(letter.id) == letter.event
            assert letters.totals().count + letters.totals().pending == len(page(letters.reader))
        with contextlib.closing(ReplayStore(own.replays, shard)) as replays:
            found.replays |= {replay.id: number for replay in replays.page("default")}
        found.passed.append({p: offset for target, p, offset in rows if target == PROGRESS_TARGET})
    return found


@pytest.mark.parametrize("handed", [True, False])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2), (4, 4)])
@pytest.mark.parametrize("seed", range(times(1, 8)))
def test_every_target_moves_with_all_that_it_has(
    tmp_path: Path, before: int, after: int, seed: int, handed: bool
) -> None:
    make(tmp_path, before, random.Random(f"{seed} {before} {after}"), handed=handed)
    old = content(tmp_path, before)
    passed = {p: min(one.get(p, 0) for one in old.passed) for p in range(PARTITIONS)}

    def below(events: set[Event]) -> set[Event]:
        """What the next run does not match anew."""
        return {event for event in events if event[1] < passed[event[0]]}

    change(tmp_path, before, after)
    new = content(tmp_path, after)
    assert all(one == passed for one in new.passed)
    for target in [*TRIGGERS, *SUBSCRIPTIONS]:
        assert new.rows[target] == [event for event in old.rows[target] if event[1] < passed[event[0]]]
        assert new.unfinished[target] >= below(old.unfinished[target]), "lost"
        if handed:
            assert new.unfinished[target] == below(old.unfinished[target]), "repeated"
        assert new.unread[target] == below(old.unread[target])
        assert new.unacked[target] == below(old.unacked[target])
    for (target, event), failures in old.failures.items():
        if event[1] < passed[event[0]]:
            assert new.failures[target, event] == failures
    assert set(new.epochs.values()) <= {7 + (2 if before == after else 1)}
    assert new.epochs.keys() == old.epochs.keys()
    assert new.dead_letters.keys() == old.dead_letters.keys()
    for id_, (target, event, state) in old.dead_letters.items():
        assert new.dead_letters[id_][::2] == (target, state)
        if event is not None and event[1] < passed[event[0]]:
            assert new.dead_letters[id_][1] == event
    assert new.replays == dict.fromkeys(old.replays, 0)
    floors_hold(tmp_path, after, new)
    progress_holds(tmp_path, after)
    ids_are_new(tmp_path, after, new)


def change(data: Path, before: int, after: int) -> None:
    """To another number; to the same one by way of another."""
    if before == after:
        datadir.arrange(data, after + 1, lambda *given: repartition.rewrite(data, "stop", *given))
    datadir.arrange(data, after, lambda *given: repartition.rewrite(data, "stop", *given))


def floors_hold(data: Path, count: int, found: Content) -> None:
    """No event is given up that somebody needs."""
    for number, own in enumerate(directories_of(data, count)):
        floor = FloorFinder(own, Partition(own.outbox, "stop")).find()
        for target in [*TRIGGERS, *SUBSCRIPTIONS]:
            if dispatcher_of(target, count) == number:
                needed = found.unfinished[target] | found.unread[target] | found.unacked[target]
                assert all(offset >= floor.offsets.get(partition, 0) for partition, offset in needed)
        for partition, offset in found.passed[number].items():
            assert floor.offsets.get(partition, 0) <= offset


def progress_holds(data: Path, count: int) -> None:
    """Behind a row of progress stands no row of an event below it; times do not go back."""
    for own in directories_of(data, count):
        reached = dict.fromkeys(range(PARTITIONS), 0)
        for target, partition, offset in _positions(own):
            assert offset >= reached[partition]
            if target == PROGRESS_TARGET:
                reached[partition] = offset
        with PartitionReader(Partition(own.outbox, "stop"), start=0) as reader:
            times = []
            while (chunk := reader.read()) is not None:
                times.append(chunk.append_time_us)
        assert times == sorted(times)
        assert all(time_us < 2_000_000 for time_us in times), "the times of then"


def ids_are_new(data: Path, count: int, found: Content) -> None:
    """New dead letters and replays have ids that nothing had before, in no dispatcher."""
    given: set[int] = set()
    for number, own in enumerate(directories_of(data, count)):
        with contextlib.closing(DeadLetterStore(own.dead_letters, Shard(number, count))) as store:
            store.apply([letter(10_000 + n) for n in range(3)], [], [])
            ids = {one.id for one in store.reader.summaries("TRUE", (), after=0, limit=10_000)}
        fresh = ids - found.dead_letters.keys()
        assert len(fresh) == 3
        assert min(fresh) > max(found.dead_letters, default=0)
        assert not given & fresh
        given |= fresh


def test_rows_that_retention_has_removed_stay_with_their_consumers(tmp_path: Path) -> None:
    datadir.arrange(tmp_path, 1, lambda *_: None)
    (tmp_path / "log" / "0").mkdir(parents=True)
    (own,) = directories_of(tmp_path, 1)
    with PartitionWriter(Partition(own.outbox, "stop"), OUTBOX_SCHEMA, segment_bytes_max=1) as writer:
        for offset in range(10):
            rows = [(offset, target, 3) for target in (10, 11)]
            writer.append(encode_chunk([RowGroup(0, 1, rows)], {0: (offset + 1, 1)}))
        writer.publish_first_offset(15)
    for path in sorted(own.outbox.glob("*.seg"))[:5]:
        path.unlink()
    with contextlib.closing(SubscriptionStore(own.subscriptions)) as pulls:
        held = {10: UnackedEvent(3, 0, 1, 0), 11: UnackedEvent(7, 0, 2, 0, deliveries=4)}
        pulls.write({target: SavedCursor(next=18, unacked=[one]) for target, one in held.items()})
    with contextlib.closing(CursorStore(own.cursors)) as cursors:
        cursors.flush(CursorChange(30, {0: 10}, [], []))
    change(tmp_path, 1, 2)
    found = content(tmp_path, 2)
    assert found.unacked == {10: {(0, 1)}, 11: {(0, 2)}}
    assert {target: events for target, events in found.unread.items() if events} == {
        10: {(0, offset) for offset in range(6, 10)},
        11: {(0, offset) for offset in range(6, 10)},
    }


KILLED = """
import sys
from pathlib import Path
from headgate.server import datadir, repartition
data, after, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
steps = iter(range(step))
def hook(event, _):
    if event.startswith(("os.", "open", "shutil.", "sqlite3.")) and next(steps, None) is None:
        import os
        os._exit(9)
def rewrite(*given):
    repartition.rewrite(data, "stop", *given)
import headgate.deadletters.store, headgate.objects.store.store
sys.addaudithook(hook)
datadir.arrange(data, after, rewrite)
"""


@pytest.mark.slow
def test_a_change_that_is_killed_at_any_instant_loses_nothing(tmp_path: Path) -> None:
    """`os._exit` before one file operation after the other is as SIGKILL for the files."""
    chance, step, kills = random.Random(4711), 0, 0
    while True:
        data = tmp_path / str(step)
        data.mkdir()
        make(data, 2, random.Random(1), handed=True)
        program = [sys.executable, "-c", KILLED, str(data), "3", str(step)]
        status = subprocess.run(program, check=False, capture_output=True).returncode
        if not (data / "dispatcher").exists() or len(list((data / "dispatcher").glob("[0-9]"))) == 2:
            old = tmp_path / "expected"
            if not old.exists():
                old.mkdir()
                make(old, 2, random.Random(1), handed=True)
                change(old, 2, 3)
        change(data, 2, 3)
        expected = content(tmp_path / "expected", 3)
        found = content(data, 3)
        assert found == expected, step
        assert sorted(path.name for path in data.iterdir()) == ["dispatcher", "log"]
        if status == 0:
            break
        assert status == 9
        kills += 1
        step += chance.randrange(1, times(200, 60))
    assert kills >= times(3, 5)
