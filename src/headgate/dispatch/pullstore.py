"""Where did the consumers of subscriptions stop? subscriptions.db: one row each, synced before an ack is answered."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from headgate.dispatch.pull import Saved

FILE: Final = "subscriptions.db"
_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS subscriptions (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT"
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Saved)


class PullStore:
    """The file. Blocking; one thread at a time.

    Args:
        path: Made when absent.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        # An answered ack survives a power cut: what was acknowledged is not handed out again.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(_SCHEMA)

    @classmethod
    def read(cls, path: Path) -> dict[int, Saved]:
        """What another process last wrote; nothing when there is no file yet.

        Raises:
            sqlite3.OperationalError: The file is busy, or has no table yet.
        """
        if not path.exists():
            return {}
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        with contextlib.closing(connection):
            return _load(connection)

    def load(self) -> dict[int, Saved]:
        """By target id."""
        return _load(self._connection)

    def write(self, changed: Mapping[int, Saved], gone: Iterable[int] = ()) -> None:
        """Write some and forget others, all or nothing.

        Raises:
            sqlite3.OperationalError: The disk does not take it; nothing has changed.
        """
        rows = [(target, _ENCODER.encode(saved)) for target, saved in changed.items()]
        run, many = self._connection.execute, self._connection.executemany
        run("BEGIN IMMEDIATE")
        try:
            many("REPLACE INTO subscriptions VALUES (?, ?)", rows)
            many("DELETE FROM subscriptions WHERE id = ?", [(target,) for target in gone])
            run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _load(connection: sqlite3.Connection) -> dict[int, Saved]:
    rows = connection.execute("SELECT id, body FROM subscriptions").fetchall()
    return {target: _DECODER.decode(body) for target, body in rows}
