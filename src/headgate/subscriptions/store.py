"""subscriptions.db: where the consumers of each subscription stopped, durable before an ack is answered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from headgate.storage.commit import Committer
from headgate.storage.sqlite import StoreFile, decoding, read_only
from headgate.subscriptions.saved import SavedCursor

_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS subscriptions (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT"
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SavedCursor)


class SubscriptionStore(StoreFile):
    """The file. Blocking; one thread at a time.

    Args:
        path: Made when absent.
        committer: Ends its transactions; None for SQLite alone.
    """

    def __init__(self, path: Path, committer: Committer | None = None) -> None:
        # Synced: an answered ack survives a power cut, what was acknowledged is not handed out again.
        super().__init__(path, _SCHEMA, committer=committer)

    @classmethod
    def read(cls, path: Path) -> dict[int, SavedCursor]:
        """What another process last wrote; nothing when there is no file yet.

        Raises:
            sqlite3.OperationalError: The file is busy, or has no table yet.
        """
        if not path.exists():
            return {}
        with read_only(path) as connection:
            return _load(connection)

    def load(self) -> dict[int, SavedCursor]:
        """By target id."""
        with decoding(self._path):
            return _load(self._connection)

    def write(self, changed: Mapping[int, SavedCursor], gone: Iterable[int] = ()) -> None:
        """Write some and forget others, all or nothing.

        Raises:
            sqlite3.OperationalError: The disk does not take it; nothing has changed.
        """
        rows = [(target, _ENCODER.encode(saved)) for target, saved in changed.items()]
        with self._transaction() as connection:
            connection.executemany("REPLACE INTO subscriptions VALUES (?, ?)", rows)
            connection.executemany("DELETE FROM subscriptions WHERE id = ?", [(target,) for target in gone])


def _load(connection: sqlite3.Connection) -> dict[int, SavedCursor]:
    rows = connection.execute("SELECT id, body FROM subscriptions").fetchall()
    return {target: _DECODER.decode(body) for target, body in rows}
