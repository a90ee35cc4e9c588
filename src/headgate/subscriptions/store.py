"""subscriptions.db: where the consumers of each subscription stopped, durable before an ack is answered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from headgate.storage.commit import Committer
from headgate.storage.sqlite import StoreFile, decoding, read_only

# --- saved ----------------------------------------------------------------------------------------

HISTORY: Final = -(1 << 62)
"""Positions of the events of histories are counted from here on, below those of all rows."""
_PARTITION_BITS: Final = 48


def history_position(partition: int, offset: int) -> int:
    """The position of an event that has no outbox row: in the order of partition and offset."""
    return HISTORY + (partition << _PARTITION_BITS) + offset


class UnackedEvent(msgspec.Struct, array_like=True, gc=False):
    """An event that was read and has not ended; `position` is that of its outbox row, times are Unix microseconds.

    Attributes:
        due_us: When it may be handed out (again).
        consumer: Who has it; empty for none.
        turn: The number of its last handing out.
    """

    position: int
    partition: int
    offset: int
    stored_us: int
    deliveries: int = 0
    due_us: int = 0
    consumer: str = ""
    turn: int = 0


class SubscriptionCounters(msgspec.Struct, gc=False):
    """In events, since the subscription was made.

    Attributes:
        processed: Rows of the outbox that were looked at.
        accepted: Of them, those for consumers.
        rejected: Of them, those that the filter does not want, by cel-cpp.
        errors: Of them, those for which the filter is an error.
        lost: Of them, those that retention had removed from the log.
        acknowledged: Accepted and acknowledged.
        redelivered: How often an event was handed out that had been handed out before.
        expired: Given up: not taken for too long, or handed out too often.
    """

    processed: int = 0
    accepted: int = 0
    rejected: int = 0
    errors: int = 0
    lost: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    expired: int = 0


class SavedCursor(msgspec.Struct, forbid_unknown_fields=True):
    """What a restart must know.

    Attributes:
        epoch: Grows with every seek.
        next: Outbox position of the next row.
        unacked: In order of position.
        floor: Offsets below these, by partition, are before the last seek's start.
        filter_id: Of the filter whose history has begun, or that has none.
        span: Of the history: first offset, and offset behind the last one, by partition.
        history: Where it goes on, by partition; `history_us` is when it began.
    """

    epoch: int = 1
    next: int = 0
    unacked: list[UnackedEvent] = []
    counters: SubscriptionCounters = msgspec.field(default_factory=SubscriptionCounters)
    floor: dict[int, int] = {}
    consumer: str | None = None
    lease_us: int = 0
    filter_id: str = ""
    span: dict[int, tuple[int, int]] = {}
    history: dict[int, int] = {}
    history_us: int = 0


# --- store ----------------------------------------------------------------------------------------

_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS subscriptions (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT"
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SavedCursor)


class SubscriptionStore(StoreFile):
    """The file. Blocking; one thread at a time. Made when absent."""

    def __init__(self, path: Path, committer: Committer | None = None) -> None:
        # Synced: an answered ack survives a power cut, what was acknowledged is not handed out again.
        super().__init__(path, _SCHEMA, committer=committer)

    @classmethod
    def read(cls, path: Path) -> dict[int, SavedCursor]:
        """What another process last wrote; nothing without a file. OperationalError: busy, or without a table yet."""
        if not path.exists():
            return {}
        with read_only(path) as connection:
            return _load(connection)

    def load(self) -> dict[int, SavedCursor]:
        """By target id."""
        with decoding(self._path):
            return _load(self._connection)

    def write(self, changed: Mapping[int, SavedCursor], gone: Iterable[int] = ()) -> None:
        """Write some and forget others, all or nothing; OperationalError when the disk does not take it."""
        rows = [(target, _ENCODER.encode(saved)) for target, saved in changed.items()]
        with self._transaction() as connection:
            connection.executemany("REPLACE INTO subscriptions VALUES (?, ?)", rows)
            connection.executemany("DELETE FROM subscriptions WHERE id = ?", [(target,) for target in gone])


def _load(connection: sqlite3.Connection) -> dict[int, SavedCursor]:
    rows = connection.execute("SELECT id, body FROM subscriptions").fetchall()
    return {target: _DECODER.decode(body) for target, body in rows}
