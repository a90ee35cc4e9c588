"""The retention floor: the first outbox position and the first event of each partition that a restart needs.

Each dispatcher finds its own and reports it in `run/`; the front, which owns the event log, trims by the lowest of the
reports. Cursors move forward, so an old report is only too careful. What a seek goes back to is kept from the next
report on; until then retention may remove what is over its age or size.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from headgate.delivery.cursors import Cursors, CursorStore
from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.reader import Chunk, PartitionReader
from headgate.observe.logs import Recurring
from headgate.storage.files import DispatcherDirectory, replace_whole
from headgate.subscriptions.store import SavedCursor, SubscriptionStore
from headgate_api.limits import FLOOR_CHUNKS_MAX

REPORT: Final = "retention-floor-{}.json"
"""The name of a dispatcher's report in `run/`, by its number."""
_log = structlog.get_logger(__name__)


class RetentionFloor(msgspec.Struct, frozen=True):
    """Where the oldest unfinished work stands: it needs no outbox position below `position`, no event below `offsets`.

    A partition of the log that `offsets` do not name is needed whole.
    """

    position: int
    offsets: dict[int, int]

    @classmethod
    def reported(cls, run_directory: Path, dispatcher: int) -> Self:
        """A dispatcher's last report, else the floor that keeps all; OSError or DecodeError where it cannot be read."""
        return cls._read(run_directory / REPORT.format(dispatcher)) or cls(0, {})

    def report(self, run_directory: Path, dispatcher: int) -> None:
        """Write a dispatcher's report, whole or not at all: on an OSError of the disk the last report stays."""
        replace_whole(run_directory / REPORT.format(dispatcher), msgspec.json.encode(self))

    @classmethod
    def base(cls, own: DispatcherDirectory) -> Self | None:
        """The floor of rows that a re-partitioning has put into one outbox from several, out of the order of events.

        The rows end at `position`; none of them needs an event below `offsets`. None when a dispatcher has no such
        rows; OSError or DecodeError where it cannot be read.
        """
        return cls._read(own.floor)

    def write_base(self, own: DispatcherDirectory) -> None:
        """Write it; not synced."""
        own.floor.write_bytes(msgspec.json.encode(self))

    @classmethod
    def _read(cls, path: Path) -> Self | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None


KEEP_EVERYTHING: Final = RetentionFloor(0, {})


@dataclass(slots=True)
class _RowSearch:
    """The search for a partition's next row: none is below `end`; a found one stands there, and says `offset`."""

    end: int
    offset: int | None = None

    def go_on(self, partition: int, chunk: Chunk) -> None:
        """Go on in a chunk that begins at or before `end`, or behind what retention has taken there."""
        skipped = max(0, self.end - chunk.first_offset)
        column = chunk.batch.column("partition").slice(skipped)
        row = pc.index(column, pa.scalar(partition, pa.int32())).as_py()
        if row < 0:
            self.end = chunk.next_offset
        else:
            self.end = chunk.first_offset + skipped + row
            self.offset = chunk.batch.column("offset")[skipped + row].as_py()


class FloorFinder:
    """Finds what unfinished deliveries, unmatched events and backlogs of subscriptions need.

    Blocking; one thread at a time. It remembers what it has read of the outbox. The databases need not exist.
    """

    def __init__(self, own: DispatcherDirectory, outbox: Partition) -> None:
        self._own = own
        self._outbox = outbox
        self._handed = self._position = 0
        self._searches: dict[int, _RowSearch] = {}
        self._named: dict[int, int] = {}
        self._damage = Recurring(_log, "the outbox cannot be read on, events behind are kept", CorruptChunkError)

    def find(self) -> RetentionFloor:
        """The floor now; reads at most FLOOR_CHUNKS_MAX chunks of the outbox."""
        read = self._read()
        if read is None:
            return KEEP_EVERYTHING
        cursors, pulled = read
        position = min([cursors.oldest_needed, *(saved.next for saved in pulled)])
        offsets = self._offsets_from(position, cursors)
        base = RetentionFloor.base(self._own)
        if base is not None and position < base.position:
            offsets = {p: min(at, base.offsets[p]) for p, at in offsets.items() if p in base.offsets}
        for saved in pulled:
            for partition, at in saved.history.items():
                if partition in offsets and at < saved.span[partition][1]:
                    offsets[partition] = min(at, offsets[partition])
            for held in saved.unacked:
                # The row of what is held has been read; only its event is needed.
                if held.partition in offsets:
                    offsets[held.partition] = min(held.offset, offsets[held.partition])
        return RetentionFloor(position, offsets)

    def _read(self) -> tuple[Cursors, list[SavedCursor]] | None:
        if not self._own.cursors.exists():
            return None
        try:
            cursors = CursorStore.read(self._own.cursors)
            return cursors, list(SubscriptionStore.read(self._own.subscriptions).values())
        except sqlite3.OperationalError:  # busy, or made this moment: another time
            return None

    def _offsets_from(self, position: int, cursors: Cursors) -> dict[int, int]:
        """First event of each partition that a row at or above `position` names; its watermark when there is none.

        The first row of a partition is the oldest, and its progress stands behind. Where the search has not come that
        far yet, the last answer stays: it is too careful.
        """
        if position < self._position or cursors.position < self._handed:  # somebody went back, or another outbox
            self._searches.clear()
            self._named.clear()
        self._position, self._handed = position, cursors.position
        if position >= cursors.position:
            self._named.update(cursors.watermarks)
            return dict(cursors.watermarks)
        for partition in cursors.watermarks:
            search = self._searches.get(partition)
            if search is None or (search.offset is not None and position > search.end):
                search = self._searches[partition] = _RowSearch(position)
            search.end = max(search.end, position)
        self._search_on(cursors.position)
        for partition, watermark in cursors.watermarks.items():
            search = self._searches[partition]
            if search.offset is not None:
                self._named[partition] = search.offset
            elif search.end >= cursors.position:
                self._named[partition] = watermark
        return {partition: self._named[partition] for partition in cursors.watermarks if partition in self._named}

    def _search_on(self, upto: int) -> None:
        """Search for the rows that are not found yet, in FLOOR_CHUNKS_MAX chunks at most; a damaged one is the end."""
        with self._damage.attempt(), PartitionReader(self._outbox, start=0) as reader:
            for _ in range(FLOOR_CHUNKS_MAX):
                missing = {p: one for p, one in self._searches.items() if one.offset is None and one.end < upto}
                if not missing:
                    return
                at = min(search.end for search in missing.values())
                if at != reader.position:
                    reader.seek(at)
                if (chunk := reader.read()) is None:
                    return
                for partition, search in missing.items():
                    if search.end < chunk.next_offset:
                        search.go_on(partition, chunk)
