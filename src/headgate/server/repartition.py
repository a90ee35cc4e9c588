"""Re-partitioning: what M dispatchers have, written anew for another number of them. Nothing runs meanwhile.

Every target moves with all it has: its rows of the outbox, delivered ones too (a seek goes back to them), its cursors,
dead letters, replays and attempts. The order of the rows of one old outbox is kept; a position of it becomes, in a new
one, the number of rows before it. The new dispatchers have passed the lowest offset of a partition that any old one
has: rows of events above it are left out, and the next run matches these events again. Deliveries may be repeated, and
none is lost. Until all rows have ended, which are no longer in the order of their offsets, `RetentionFloor.base` holds
the floor.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from itertools import accumulate
from operator import attrgetter
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headgate.deadletters.store import DeadLetterStore
from headgate.delivery import journal
from headgate.delivery.cursors import CursorChange, Cursors, CursorStore, TargetCursor
from headgate.filter.compile.plan import Verdict
from headgate.inspect.file_records import DispatcherRecords
from headgate.log.directory import LogDirectory, OnCorrupt, Partition
from headgate.log.files import UnsyncedFileOps
from headgate.log.reader import Chunk, PartitionReader
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.store.store import Store
from headgate.outbox.shards import Shard, dispatcher_of, dispatchers_of
from headgate.outbox.writer import OUTBOX_SCHEMA, PROGRESS_TARGET, RowGroup, encode_chunk
from headgate.replay.store import ReplayStore
from headgate.retention.floor import FloorFinder, RetentionFloor
from headgate.storage.files import DispatcherDirectory
from headgate.subscriptions.store import SavedCursor, SubscriptionStore
from headgate_api.limits import FLOOR_LOOKS_MAX
from headgate_api.objects.kinds import Kind, ObjectKey


@dataclass(frozen=True, slots=True)
class _Moved:
    """How many rows stand before a position in each new outbox; `target` is whose row there was written, if any."""

    to: tuple[int, ...]
    target: int | None


@dataclass(slots=True)
class _Old:
    """One old dispatcher: what it has, and where its positions have gone."""

    directory: DispatcherDirectory
    outbox: Partition
    cursors: Cursors
    subscriptions: dict[int, SavedCursor]
    watermarks: dict[int, int]
    first: int
    end: int
    wanted: list[int]
    noted: int = 0  # so many of the wanted are in `moved`
    moved: dict[int, _Moved] = field(default_factory=dict)

    def at(self, position: int, new: int) -> int:
        """Where a new dispatcher goes on for what stood at a position or behind it."""
        return self.moved[position].to[new]

    def row(self, position: int, target: int, new: int) -> int | None:
        """None when it was left out."""
        found = self.moved.get(position)
        return found.to[new] if found is not None and found.target == target else None


def rewrite(
    data: Path, on_corrupt: OnCorrupt, before: Sequence[DispatcherDirectory], after: Sequence[DispatcherDirectory]
) -> None:
    """Write what the dispatchers have for another number of them. The directories of those that will be are empty."""
    partitions = LogDirectory(data / "log", on_corrupt).partitions()
    olds = [_read(own, on_corrupt, partitions) for own in before]
    passed = {p: min(old.watermarks.get(p, 0) for old in olds) for p in partitions}
    floors = [_floor(old, partitions) for old in olds]
    bases = {p: min(passed[p], *(floor.get(p, 0) for floor in floors)) for p in partitions}
    ends = _write_outboxes(olds, after, passed)
    for number, own in enumerate(after):
        _write_cursors(olds, own, number, len(after), passed)
        RetentionFloor(ends[number], bases).write_base(own)
        journal.rewrite([old.directory.attempts for old in olds], own.attempts, Shard(number, len(after)).owns)
    _write_dead_letters(olds, after)
    _write_replays(data, olds, after)


# --- what there is --------------------------------------------------------------------------------------


def _read(own: DispatcherDirectory, on_corrupt: OnCorrupt, partitions: Sequence[int]) -> _Old:
    outbox = Partition(own.outbox, on_corrupt)
    with contextlib.closing(PartitionWriter(outbox, OUTBOX_SCHEMA)) as writer:  # cuts what a crash has left
        first, end = writer.first_offset, writer.next_offset
    with contextlib.closing(CursorStore(own.cursors)) as store:
        cursors = store.load()
    if cursors.position > end:
        cursors = Cursors()  # of another outbox: as at any start
    with contextlib.closing(SubscriptionStore(own.subscriptions)) as pulls:
        subscriptions = {id_: saved for id_, saved in pulls.load().items() if saved.next <= end}
    with contextlib.closing(DeadLetterStore(own.dead_letters)) as letters:
        wanted = letters.positions()
    wanted.add(cursors.position)
    for target in cursors.targets:
        wanted |= {*target.pending, *(() if target.lag_from is None else (target.lag_from,))}
    for saved in subscriptions.values():
        wanted |= {saved.next, *(unacked.position for unacked in saved.unacked)}
    records = DispatcherRecords(own, on_corrupt)
    watermarks = {partition: records.watermark(partition, cursors) for partition in partitions}
    positions = sorted(position for position in wanted if position >= 0)
    return _Old(own, outbox, cursors, subscriptions, watermarks, first, end, positions)


def _floor(old: _Old, partitions: Sequence[int]) -> dict[int, int]:
    """The oldest event of each partition that an old dispatcher needs; what is not named is needed whole."""
    finder = FloorFinder(old.directory, old.outbox)
    found = finder.find().offsets
    for _ in range(FLOOR_LOOKS_MAX):  # each look reads a piece of the outbox
        if found.keys() >= set(partitions):
            break
        found = finder.find().offsets
    return found


# --- rows -----------------------------------------------------------------------------------------------


def _write_outboxes(
    olds: Sequence[_Old], after: Sequence[DispatcherDirectory], passed: dict[int, int]
) -> tuple[int, ...]:
    """Returns where the new outboxes end."""
    now_us, old_policy = [0], olds[0].outbox.on_corrupt
    with contextlib.ExitStack() as stack:
        made = partial(PartitionWriter, clock_us=lambda: now_us[0], files=UnsyncedFileOps())
        writers = [stack.enter_context(made(Partition(own.outbox, old_policy), OUTBOX_SCHEMA)) for own in after]
        _write_trimmed(olds, writers, passed)
        progress = [dict.fromkeys(passed, 0) for _ in olds]
        said = [dict[int, int]() for _ in after]
        for number, chunk in merge(*map(_chunks, range(len(olds)), olds), key=lambda pair: pair[1].append_time_us):
            now_us[0] = chunk.append_time_us
            columns = _Columns.of(chunk.batch)
            progress[number] |= columns.progress(passed)
            lowest = {p: min(one[p] for one in progress) for p in passed}
            _write_chunk(olds[number], chunk, columns, writers, passed, lowest, said)
        for old in olds:
            _move_rest(old, writers, old.end + 1)
        for writer in writers:
            if passed:
                writer.append(encode_chunk([], {p: (offset, 0) for p, offset in passed.items()}))
        return tuple(writer.next_offset for writer in writers)


def _chunks(number: int, old: _Old) -> Iterator[tuple[int, Chunk]]:
    with PartitionReader(old.outbox, start=0) as reader:
        while (chunk := reader.read()) is not None:
            yield number, chunk


@dataclass(frozen=True, slots=True)
class _Columns:
    partition: pa.Array
    offset: pa.Array
    target: pa.Array

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Columns:
        return cls(*(batch.column(name) for name in ("partition", "offset", "target")))

    def progress(self, passed: dict[int, int]) -> dict[int, int]:
        rows = pc.indices_nonzero(pc.equal(self.target, PROGRESS_TARGET))
        said = zip(self.partition.take(rows).to_pylist(), self.offset.take(rows).to_pylist(), strict=True)
        return {p: min(offset, passed[p]) for p, offset in said if p in passed}

    def owners(self, passed: dict[int, int], count: int) -> pa.Array:
        """The new dispatcher of each row; -1 for one that is left out."""
        highest = pc.max(self.partition).as_py()
        limits = pa.array([passed.get(partition, 0) for partition in range(highest + 1)], pa.int64())
        is_row = pc.not_equal(self.target, PROGRESS_TARGET)
        is_kept = pc.and_(is_row, pc.less(self.offset, limits.take(self.partition)))
        return pc.if_else(is_kept, dispatchers_of(self.target, count), -1)


def _write_chunk(
    old: _Old,
    chunk: Chunk,
    columns: _Columns,
    writers: Sequence[PartitionWriter],
    passed: dict[int, int],
    lowest: dict[int, int],
    said: list[dict[int, int]],
) -> None:
    """Write the rows of a chunk, and behind them how far all old dispatchers were then."""
    _move_rest(old, writers, chunk.first_offset)
    owners = columns.owners(passed, len(writers))
    _move(old, chunk, columns, owners, writers)
    for number, writer in enumerate(writers):
        rows = pc.indices_nonzero(pc.equal(owners, number))
        if not len(rows):
            continue
        news = {p: (offset, 0) for p, offset in lowest.items() if offset > said[number].get(p, 0)}
        said[number] |= {p: offset for p, (offset, _) in news.items()}
        batch = chunk.batch.take(rows)
        names = [str(target) for target in columns.target.take(rows).to_pylist()]
        if news:
            behind = encode_chunk([], news)
            batch = pa.concat_batches([batch, behind.batch])
            names += [str(PROGRESS_TARGET)] * len(news)
        writer.append(Encoded(batch, names))


def _move(old: _Old, chunk: Chunk, columns: _Columns, owners: pa.Array, writers: Sequence[PartitionWriter]) -> None:
    """Note where the wanted positions of a chunk go; before its rows are written."""
    first, last = old.noted, bisect_left(old.wanted, chunk.next_offset, old.noted)
    if first == last:
        return
    old.noted = last
    owner_of = owners.to_pylist()
    counts = [[0, *accumulate(owner == number for owner in owner_of)] for number in range(len(writers))]
    for position in old.wanted[first:last]:
        row = position - chunk.first_offset
        to = tuple(writer.next_offset + counts[number][row] for number, writer in enumerate(writers))
        target = columns.target[row].as_py() if owner_of[row] >= 0 else None
        old.moved[position] = _Moved(to, target)


def _move_rest(old: _Old, writers: Sequence[PartitionWriter], below: int) -> None:
    """Note where the wanted positions go that stand in no chunk: what came before has been written."""
    first, old.noted = old.noted, bisect_left(old.wanted, below, old.noted)
    ends = tuple(writer.next_offset for writer in writers)
    for position in old.wanted[first : old.noted]:
        old.moved.setdefault(position, _Moved(ends, None))  # a row that came anew has its place


def _write_trimmed(olds: Sequence[_Old], writers: Sequence[PartitionWriter], passed: dict[int, int]) -> None:
    """Rows that retention has removed while their events are with consumers: they get rows again, before all others."""
    groups: list[list[RowGroup]] = [[] for _ in writers]
    places: dict[tuple[int, int], tuple[_Old, int]] = {}
    for old in olds:
        for target, saved in old.subscriptions.items():
            for unacked in saved.unacked:
                if 0 <= unacked.position < old.first and unacked.offset < passed.get(unacked.partition, 0):
                    number = dispatcher_of(target, len(writers))
                    places[number, len(groups[number])] = old, unacked.position
                    row = (unacked.offset, target, int(Verdict.MATCH))
                    groups[number].append(RowGroup(unacked.partition, 0, [row]))
    for (number, index), (old, position) in places.items():
        to = tuple(index if one == number else 0 for one in range(len(writers)))
        old.moved[position] = _Moved(to, groups[number][index].rows[0][1])
    for writer, group in zip(writers, groups, strict=True):
        if group:
            writer.append(encode_chunk(group, {}))


# --- what stands beside the rows --------------------------------------------------------------------------


def _write_cursors(
    olds: Sequence[_Old], own: DispatcherDirectory, number: int, count: int, passed: dict[int, int]
) -> None:
    handed = min(old.at(old.cursors.position, number) for old in olds)
    behind = [
        cursor
        for old in olds
        for one in old.cursors.targets
        if dispatcher_of(one.target, count) == number and (cursor := _cursor(old, one, number, handed)) is not None
    ]
    with contextlib.closing(CursorStore(own.cursors)) as store:
        store.flush(CursorChange(handed, passed, behind, []))
    pulls = {
        target: _saved(old, target, saved, number)
        for old in olds
        for target, saved in old.subscriptions.items()
        if dispatcher_of(target, count) == number
    }
    with contextlib.closing(SubscriptionStore(own.subscriptions)) as subscriptions:
        subscriptions.write(pulls)


def _cursor(old: _Old, cursor: TargetCursor, number: int, handed: int) -> TargetCursor | None:
    """A target's cursor by its new positions; None when nothing is left of it below `handed`."""
    rows = {position: old.row(position, cursor.target, number) for position in cursor.pending}
    pending = sorted(new for new in rows.values() if new is not None)
    lag_from = None if cursor.lag_from is None else old.at(cursor.lag_from, number)
    if lag_from is not None and lag_from >= handed:
        lag_from = None
    retries = [(rows.get(tried.position), tried) for tried in cursor.retries]
    if not pending and lag_from is None:
        return None
    tried = tuple(one._replace(position=new) for new, one in retries if new is not None)
    return TargetCursor(cursor.target, lag_from, tuple(pending), tried)


def _saved(old: _Old, target: int, saved: SavedCursor, number: int) -> SavedCursor:
    """A subscription's cursor by its new positions. Its epoch is another one: ids with old positions are stale."""
    unacked = []
    for one in saved.unacked:
        position = one.position if one.position < 0 else old.row(one.position, target, number)
        if position is not None:
            unacked.append(msgspec.structs.replace(one, position=position))
    unacked.sort(key=attrgetter("position"))
    return msgspec.structs.replace(saved, epoch=saved.epoch + 1, next=old.at(saved.next, number), unacked=unacked)


def _write_dead_letters(olds: Sequence[_Old], after: Sequence[DispatcherDirectory]) -> None:
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(contextlib.closing(DeadLetterStore(old.directory.dead_letters))) for old in olds]
        last_id = max(source.last_id for source in sources)
        for number, own in enumerate(after):
            shard = Shard(number, len(after))
            with contextlib.closing(DeadLetterStore(own.dead_letters, shard)) as store:
                for old, source in zip(olds, sources, strict=True):

                    def place(id_: int, target: int, position: int, old: _Old = old, number: int = number) -> int:
                        if position < 0:
                            return position
                        moved = old.row(position, target, number)
                        return -1 - id_ if moved is None else moved  # its row is gone, or will come anew

                    store.copy(source, shard.owns, place)
                store.begin_above(last_id)


def _write_replays(data: Path, olds: Sequence[_Old], after: Sequence[DispatcherDirectory]) -> None:
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(contextlib.closing(ReplayStore(old.directory.replays))) for old in olds]
        objects = data / "control.db"
        store = stack.enter_context(contextlib.closing(Store.open(objects))) if objects.exists() else None

        def owner(namespace: str, trigger: str) -> int:
            target = store.targets.id_of(ObjectKey(Kind.TRIGGER, namespace, trigger)) if store and trigger else None
            return 0 if target is None else dispatcher_of(target, len(after))

        last_id = max(source.last_id for source in sources)
        for number, own in enumerate(after):
            with contextlib.closing(ReplayStore(own.replays, Shard(number, len(after)))) as replays:
                for source in sources:
                    replays.copy(source, lambda *trigger, number=number: owner(*trigger) == number)
                replays.begin_above(last_id)
