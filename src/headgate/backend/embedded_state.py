"""What a stopped server without Kafka has: its events, what is not delivered yet, dead letters, replays, objects.

Read only. The directory stays as it is, and a server can be started on it again.
"""

from __future__ import annotations

import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.delivery.cursors import Cursors
from headgate.inspect.file_records import DispatcherRecords
from headgate.log.directory import LogDirectory, Partition
from headgate.log.reader import Chunk, PartitionReader
from headgate.outbox.writer import PROGRESS_TARGET
from headgate.replay.store import ReplayState
from headgate.storage.files import DispatcherDirectory
from headgate.storage.sqlite import read_only
from headgate_api.errors import HeadgateError
from headgate_api.objects.kinds import Kind

_COLUMNS: Final = ("partition", "offset", "target", "verdict")


class UndeliveredRows:
    """Deliveries that have not ended, by the place of their event; `pieces` have the columns `_COLUMNS`."""

    def __init__(self, pieces: Sequence[pa.Table]) -> None:
        self._of: dict[int, tuple[array[int], array[int], array[int]]] = {}
        self.count = sum(piece.num_rows for piece in pieces)
        if not self.count:
            return
        whole = pa.concat_tables(pieces)
        for number in pc.unique(whole.column("partition")).to_pylist():
            own = whole.filter(pc.equal(whole.column("partition"), number))
            own = own.sort_by([("offset", "ascending"), ("target", "ascending")])
            offsets, targets, verdicts = (own.column(name).to_pylist() for name in _COLUMNS[1:])
            self._of[number] = array("q", offsets), array("q", targets), array("b", verdicts)

    def of(self, partition: int, offset: int) -> list[tuple[int, int]]:
        """Target and verdict of an event's deliveries, by target; each target once."""
        if partition not in self._of:
            return []
        offsets, targets, verdicts = self._of[partition]
        found = dict[int, int]()
        for row in range(bisect_left(offsets, offset), bisect_right(offsets, offset)):
            found[targets[row]] = max(found.get(targets[row], 0), verdicts[row])
        return list(found.items())


class LeftBehindError(HeadgateError):
    """Something would not go over."""

    code = "left-behind"


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """How many replays, and events that consumers of subscriptions have not acknowledged (unread), cannot go over."""

    unread: int
    replays: int

    def check(self, *, is_accepted: bool) -> None:
        """Raises LeftBehindError where something would be left behind, unless that is accepted."""
        if is_accepted or not (self.unread or self.replays):
            return
        raise LeftBehindError(
            f"not everything goes over: {self.unread} unread events of pull subscriptions, {self.replays} replays",
            hint="let them end first, or say --leave-behind: then they stay where they are",
        )


class EmbeddedState:
    """A data directory of a server that is stopped; raises CorruptChunkError, and UnavailableError when a file is busy.

    Attributes:
        passed: By partition of the log: every event below has been matched.
        undelivered: What is not delivered, of the events below `passed`.
    """

    def __init__(self, data: Path, dispatchers: Sequence[DispatcherDirectory]) -> None:
        self.log: Final = LogDirectory(data / "log", "stop")
        self.dispatchers: Final = tuple(dispatchers)
        self.control: Final = data / "control.db"
        partitions = self.log.partitions()
        records = {own: DispatcherRecords(own, "stop") for own in self.dispatchers}
        known = [(own, one, one.cursors()) for own, one in records.items()]
        self.passed: Final = {
            number: min((one.watermark(number, cursors) for _, one, cursors in known), default=0)
            for number in partitions
        }
        pulls = subscription_targets(self.control)
        pieces: list[pa.Table] = []
        unread = 0
        for own, one, cursors in known:
            pieces += self._undelivered(own, cursors, pulls)
            unread += self._unread(own, one, pulls)
        self.undelivered: Final = UndeliveredRows(pieces)
        self.left: Final = LeftBehind(unread, sum(running_replays(own.replays) for own in self.dispatchers))
        self.events: Final = sum(self._length(number) for number in partitions)

    def chunks(self, *, matched: bool) -> Iterator[tuple[int, Chunk, range]]:
        """Partition, chunk, and the rows that are meant, of matched events or of the others; in order of storing."""
        chunks = (self._chunks(number, matched=matched) for number in self.log.partitions())
        for _, number, chunk in merge(*chunks, key=lambda one: one[0]):
            cut = min(max(self.passed[number] - chunk.first_offset, 0), chunk.record_count)
            yield number, chunk, range(cut) if matched else range(cut, chunk.record_count)

    def dead_letters(self) -> int:
        return sum(_count(own.dead_letters, "SELECT count(*) FROM letters") for own in self.dispatchers)

    def objects(self) -> dict[str, int]:
        with read_only(self.control) as connection:
            return objects_by_kind(connection)

    def _chunks(self, number: int, *, matched: bool) -> Iterator[tuple[int, int, Chunk]]:
        passed = self.passed[number]
        with PartitionReader(self.log.partition(number), start=0 if matched else passed) as reader:
            while (chunk := reader.read()) is not None and (chunk.first_offset < passed or not matched):
                yield chunk.append_time_us, number, chunk

    def _length(self, number: int) -> int:
        with PartitionReader(self.log.partition(number), start=0) as reader:
            return reader.committed_offset() - reader.first_offset()

    def _undelivered(self, own: DispatcherDirectory, cursors: Cursors, pulls: frozenset[int]) -> Iterator[pa.Table]:
        def waits(target: int, position: int) -> bool:
            return target not in pulls and not cursors.has_ended(target, position)

        with PartitionReader(Partition(own.outbox, "stop"), start=max(0, cursors.oldest_needed)) as reader:
            while (chunk := reader.read()) is not None:
                columns = [chunk.batch.column(name).to_pylist() for name in _COLUMNS]
                rows = [
                    row
                    for position, row in enumerate(zip(*columns, strict=True), chunk.first_offset)
                    if row[2] != PROGRESS_TARGET and row[1] < self.passed.get(row[0], 0) and waits(row[2], position)
                ]
                if rows:
                    yield pa.table(dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))

    def _unread(self, own: DispatcherDirectory, records: DispatcherRecords, pulls: frozenset[int]) -> int:
        """Events of subscriptions that were not read, or not acknowledged."""
        saved = records.subscriptions()
        waiting = sum(len(one.unacked) for one in saved.values())
        next_ = {target: saved[target].next if target in saved else 0 for target in pulls}
        if not next_:
            return waiting
        with PartitionReader(Partition(own.outbox, "stop"), start=max(0, min(next_.values()))) as reader:
            while (chunk := reader.read()) is not None:
                for position, target in enumerate(chunk.batch.column("target").to_pylist(), chunk.first_offset):
                    waiting += target in next_ and position >= next_[target]
        return waiting


def objects_by_kind(connection: sqlite3.Connection) -> dict[str, int]:
    """How many objects a file has of each kind."""
    return dict(connection.execute("SELECT kind, count(*) FROM objects GROUP BY kind ORDER BY kind"))


def subscription_targets(control: Path) -> frozenset[int]:
    """The targets that are subscriptions."""
    with read_only(control) as connection:
        found = connection.execute("SELECT id FROM targets WHERE kind = ?", (Kind.SUBSCRIPTION,))
        return frozenset(target for (target,) in found)


def running_replays(path: Path) -> int:
    """Replays in a file that have not ended."""
    return _count(path, f"SELECT count(*) FROM replays WHERE state = '{ReplayState.RUNNING}'")


def _count(path: Path, query: str) -> int:
    """A number in a file that may be missing."""
    if not path.exists():
        return 0
    with read_only(path) as connection:
        try:
            return int(connection.execute(query).fetchone()[0])
        except sqlite3.OperationalError:  # no table: nothing was ever written
            return 0
