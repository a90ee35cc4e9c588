"""What must retention keep? The first outbox position and the first event of each partition that a restart needs.

Read from the files alone, so that the process that owns the event log can ask too. What `dispatch.db` says is where a
restart would go on, and cursors only move forward: an answer stays true for ever, it only becomes too careful.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from headgate.delivery.cursors import Cursors, CursorStore
from headgate.limits import FLOOR_CHUNKS_MAX
from headgate.log.errors import CorruptChunkError
from headgate.log.reader import Chunk, PartitionReader
from headgate.observe.logs import Recurring
from headgate.subscriptions.cursor import Saved
from headgate.subscriptions.store import FILE as PULL_FILE
from headgate.subscriptions.store import PullStore

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Needed:
    """Where the oldest unfinished work stands.

    Attributes:
        position: Outbox positions below it are needed by nobody.
        offsets: The same for events, by partition of the log; a partition that is not named is needed whole.
    """

    position: int
    offsets: dict[int, int]


NOTHING_KNOWN: Final = Needed(0, {})


@dataclass(slots=True)
class _Look:
    """How far the outbox has been looked through for a partition's next row.

    Attributes:
        end: No row of the partition stands from the needed position up to here; the next one does, when it is found.
        offset: What that row says; None while it is not found.
    """

    end: int
    offset: int | None = None

    def search(self, partition: int, chunk: Chunk) -> None:
        """Go on in a chunk that begins at or before `end`, or behind what retention has taken there."""
        skipped = max(0, self.end - chunk.first_offset)
        column = chunk.batch.column("partition").slice(skipped)
        row = pc.index(column, pa.scalar(partition, pa.int32())).as_py()
        if row < 0:
            self.end = chunk.next_offset
        else:
            self.end = chunk.first_offset + skipped + row
            self.offset = chunk.batch.column("offset")[skipped + row].as_py()


class Needs:
    """What unfinished deliveries, unmatched events and backlogs of subscriptions need. Blocking; one thread at a time.

    What it has read of the outbox it remembers: a backlog is read through once, however often it is asked.

    Args:
        database: `dispatch.db`; need not exist, nor need `subscriptions.db` beside it.
        outbox: The outbox partition.
    """

    def __init__(self, database: Path, outbox: Path) -> None:
        self._database = database
        self._outbox = outbox
        self._handed = self._position = 0
        self._looks: dict[int, _Look] = {}
        self._named: dict[int, int] = {}
        self._damage = Recurring(_log, "the outbox cannot be read on, events behind are kept", CorruptChunkError)

    def position(self) -> int:
        """Outbox positions below it are needed by nobody."""
        read = self._read()
        return 0 if read is None else _oldest(*read)

    def now(self) -> Needed:
        """The same with the events that are needed; reads at most FLOOR_CHUNKS_MAX chunks."""
        read = self._read()
        if read is None:
            return NOTHING_KNOWN
        cursors, pulled = read
        position = _oldest(cursors, pulled)
        offsets = self._offsets_from(position, cursors)
        for saved in pulled:
            for partition, at in saved.history.items():
                if partition in offsets and at < saved.span[partition][1]:
                    offsets[partition] = min(at, offsets[partition])
            for held in saved.held:
                # The row of what is held has been read; only its event is needed.
                if held.partition in offsets:
                    offsets[held.partition] = min(held.offset, offsets[held.partition])
        return Needed(position, offsets)

    def _read(self) -> tuple[Cursors, list[Saved]] | None:
        if not self._database.exists():
            return None
        try:
            cursors = CursorStore.read(self._database)
            return cursors, list(PullStore.read(self._database.with_name(PULL_FILE)).values())
        except sqlite3.OperationalError:  # busy, or made this moment: another time
            return None

    def _offsets_from(self, position: int, cursors: Cursors) -> dict[int, int]:
        """First event of each partition that a row at or above `position` names; its watermark when there is none.

        Rows of a partition stand in the outbox in the order of their events, and its progress behind them, so the
        first one is the oldest. Where the look has not come that far yet, what was said before stays: it is too
        careful, never too much.
        """
        if position < self._position or cursors.position < self._handed:  # somebody went back, or another outbox
            self._looks.clear()
            self._named.clear()
        self._position, self._handed = position, cursors.position
        if position >= cursors.position:
            self._named.update(cursors.watermarks)
            return dict(cursors.watermarks)
        for partition in cursors.watermarks:
            look = self._looks.get(partition)
            if look is None or (look.offset is not None and position > look.end):
                look = self._looks[partition] = _Look(position)
            look.end = max(look.end, position)
        self._look_on(cursors.position)
        for partition, watermark in cursors.watermarks.items():
            look = self._looks[partition]
            if look.offset is not None:
                self._named[partition] = look.offset
            elif look.end >= cursors.position:
                self._named[partition] = watermark
        return {partition: self._named[partition] for partition in cursors.watermarks if partition in self._named}

    def _look_on(self, upto: int) -> None:
        """Look for the rows that are not found yet, in FLOOR_CHUNKS_MAX chunks at most; a damaged one is the end."""
        with self._damage.attempt(), PartitionReader.open(self._outbox, start=0) as reader:
            for _ in range(FLOOR_CHUNKS_MAX):
                missing = {p: look for p, look in self._looks.items() if look.offset is None and look.end < upto}
                if not missing:
                    return
                at = min(look.end for look in missing.values())
                if at != reader.position:
                    reader.seek(at)
                if (chunk := reader.read()) is None:
                    return
                for partition, look in missing.items():
                    if look.end < chunk.next_offset:
                        look.search(partition, chunk)


def _oldest(cursors: Cursors, pulled: list[Saved]) -> int:
    """The first outbox position that has not ended; G when all below it have."""
    oldest = min([cursors.position, *(saved.next for saved in pulled)])
    for target in cursors.targets:
        oldest = min(oldest, *target.pending[:1], *([] if target.lag_from is None else [target.lag_from]))
    return oldest
