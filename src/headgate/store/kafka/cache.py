"""The cache control.db as the other processes of a server read it: they wait until it is there, and never write it.

One process of each server follows the topic `objects` (`store/kafka/objects.py`). Everybody else reads what it writes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headgate.control.database import NotLeaderError
from headgate.control.store import Store
from headgate.errors import UnavailableError
from headgate.storage.keyring import Keyring
from headgate.storage.sqlite import read_only

_LOOK_S: Final = 0.05
"""Between two looks for a cache that is being made."""


class ReaderCommitter:
    """The `Committer` of a process that only reads: it refuses every write."""

    is_synced = True

    def attach(self, connection: sqlite3.Connection) -> None:
        """See `Committer.attach`."""

    def begin(self, connection: sqlite3.Connection) -> None:
        """See `Committer.begin`.

        Raises:
            NotLeaderError: Always.
        """
        raise NotLeaderError(
            "this process only reads objects, so it cannot write them", hint="the leading control process writes"
        )

    def commit(self, connection: sqlite3.Connection) -> None:
        """See `Committer.commit`; never called."""
        raise AssertionError("no transaction was begun")

    def detach(self, connection: sqlite3.Connection) -> None:
        """See `Committer.detach`."""
        connection.close()


def open_cache(path: Path, is_stopped: Callable[[], bool], keys: Keyring | None = None) -> Store:
    """Opens the cache for reading, once the process that follows the topic has made it; blocking.

    Args:
        path: control.db of this server.
        is_stopped: Whether to wait no longer.
        keys: Of Secrets; None: none can be read.

    Raises:
        UnavailableError: The wait was ended.
    """
    while not _is_there(path):
        if is_stopped():
            raise UnavailableError("the process ends before it has read any objects")
        time.sleep(_LOOK_S)
    return Store.open(path, committer=ReaderCommitter(), keys=keys)


def leader_of(path: Path) -> str:
    """The URL of the control process that took the lead last; empty when none did, or the cache cannot be read now."""
    try:
        with read_only(path) as connection:
            found = connection.execute("SELECT name FROM topic_leader").fetchone()
    except sqlite3.OperationalError:
        return ""
    return str(found[0]) if found else ""


def _is_there(path: Path) -> bool:
    """Whether the topic has been read into it once."""
    try:
        with read_only(path) as connection:
            return connection.execute("SELECT 1 FROM topic_position").fetchone() is not None
    except sqlite3.OperationalError:  # there is no file, or it has no tables yet
        return False
