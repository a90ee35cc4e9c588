"""subscriptions.db: where the consumers of each subscription stopped, durable before an ack is answered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from headgate.storage.commit import Committer
from headgate.storage.sqlite import StoreFile, decoding, read_only

HISTORY: Final = -(1 << 62)
"""Positions of the events of histories are counted from here on, below those of all rows."""
_PARTITION_BITS: Final = 48


def history_position(partition: int, offset: int) -> int:
    """The position of an event that has no outbox row: in the order of partition and offset."""
    return HISTORY + (partition << _PARTITION_BITS) + offset


class UnackedEvent(msgspec.Struct, array_like=True, gc=False):
    """An event that was read and has not ended; `position` is that of its outbox row, times are Unix microseconds."""

    position: int
    partition: int
    offset: int
    stored_us: int
    deliveries: int = 0
    due_us: int = 0  # when it may be handed out (again)
    consumer: str = ""  # who has it; empty for none
    turn: int = 0  # the number of its last handing out
    key: int = 0  # its partition key, as a hash, where consumers share by key; 0 for none


class SubscriptionCounters(msgspec.Struct, gc=False):
    """In events, since the subscription was made."""

    processed: int = 0  # rows of the outbox that were looked at
    accepted: int = 0  # of them, those for consumers
    rejected: int = 0  # of them, those that the filter does not want, by cel-cpp
    errors: int = 0  # of them, those for which the filter is an error
    lost: int = 0  # of them, those that retention had removed from the log
    acknowledged: int = 0  # accepted and acknowledged
    redelivered: int = 0  # how often an event was handed out that had been handed out before
    expired: int = 0  # given up: not taken for too long, or handed out too often


class SavedCursor(msgspec.Struct, forbid_unknown_fields=True):
    """What a restart must know."""

    epoch: int = 1  # grows with every seek
    next: int = 0  # outbox position of the next row
    unacked: list[UnackedEvent] = []  # in order of position
    counters: SubscriptionCounters = msgspec.field(default_factory=SubscriptionCounters)
    floor: dict[int, int] = {}  # offsets below these, by partition, are before the last seek's start
    consumer: str | None = None  # who has the consumer's lease, or had it last; None once that one has left
    lease_us: int = 0  # until when
    filter_id: str = ""  # of the filter whose history has begun, or that has none
    span: dict[int, tuple[int, int]] = {}  # of the history: first offset, and that behind the last one, by partition
    history: dict[int, int] = {}  # where it goes on, by partition
    history_us: int = 0  # when it began


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
