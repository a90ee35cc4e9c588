"""What must retention keep? The first outbox position and the first event of each partition that a restart needs.

Read from the files alone, so that the process that owns the event log can ask too. What `dispatch.db` says is where a
restart would go on, and cursors only move forward: an answer stays true for ever, it only becomes too careful.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from headgate.dispatch.cursors import Cursors, CursorStore
from headgate.dispatch.outbox import decode_chunk
from headgate.dispatch.pullstore import FILE as PULL_FILE
from headgate.dispatch.pullstore import PullStore
from headgate.limits import NEEDED_CHUNKS_MAX
from headgate.log.reader import PartitionReader


@dataclass(frozen=True, slots=True)
class Needed:
    """Where the oldest unfinished work stands.

    Attributes:
        position: Outbox positions below it are needed by nobody.
        offsets: The same for events, by partition of the log; a partition that is not named is needed whole.
    """

    position: int
    offsets: dict[int, int]


NOTHING_KNOWN = Needed(0, {})


def needed(database: Path, outbox: Path) -> Needed:
    """What unfinished deliveries, unmatched events and backlogs of subscriptions need.

    Blocking: reads at most NEEDED_CHUNKS_MAX chunks.

    Args:
        database: `dispatch.db`; need not exist, nor need `subscriptions.db` beside it.
        outbox: The outbox partition.
    """
    if not database.exists():
        return NOTHING_KNOWN
    try:
        cursors = CursorStore.read(database)
        pulled = PullStore.read(database.with_name(PULL_FILE)).values()
    except sqlite3.OperationalError:  # busy, or made this moment: another time
        return NOTHING_KNOWN
    position = min([_oldest(cursors), *(saved.next for saved in pulled)])
    offsets = _offsets_from(outbox, position, cursors)
    for saved in pulled:
        for partition, at in saved.history.items():
            if partition in offsets and at < saved.span[partition][1]:
                offsets[partition] = min(at, offsets[partition])
        for held in saved.held:
            # The row of what is held has been read; only its event is needed.
            if held.partition in offsets:
                offsets[held.partition] = min(held.offset, offsets[held.partition])
    return Needed(position, offsets)


def _oldest(cursors: Cursors) -> int:
    """The first outbox position that has not ended; G when all below it have."""
    oldest = cursors.position
    for target in cursors.targets:
        oldest = min(oldest, *target.pending[:1], *([] if target.lag_from is None else [target.lag_from]))
    return oldest


def _offsets_from(outbox: Path, position: int, cursors: Cursors) -> dict[int, int]:
    """First event of each partition that a row at or above `position` names; its watermark when there is none.

    Rows of a partition stand in the outbox in the order of their events, so the first one is the oldest.
    """
    if position >= cursors.position:
        return dict(cursors.watermarks)
    missing = set(cursors.watermarks)
    found: dict[int, int] = {}
    with PartitionReader.open(outbox, start=position) as reader:
        for _ in range(NEEDED_CHUNKS_MAX):
            if not missing:
                return found
            if reader.position >= cursors.position or (chunk := reader.read()) is None:
                return found | {partition: cursors.watermarks[partition] for partition in missing}
            durable = decode_chunk(chunk.first_offset, chunk.batch)
            for segment in durable.segments:
                if segment.partition in missing:
                    found[segment.partition] = segment.rows[0][0]
                    missing.discard(segment.partition)
            for partition, watermark in durable.watermarks.items():
                if partition in missing:
                    # No row of it in this chunk before the progress: what later rows name lies above.
                    found[partition] = watermark
                    missing.discard(partition)
    return found
