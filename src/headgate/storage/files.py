"""Files of state: what each dispatcher keeps, and where; small files that are replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PARENT: Final = "dispatcher"
"""In the data directory: a directory for each dispatcher, by its number."""


class DispatcherDirectory:
    """One dispatcher's directory. It alone writes there."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.outbox: Final = path / "outbox"
        """The matches for its targets: a partition of the chunk log."""
        self.cursors: Final = path / "dispatch.db"
        self.dead_letters: Final = path / "deadletters.db"
        self.replays: Final = path / "replays.db"
        self.subscriptions: Final = path / "subscriptions.db"
        """Where the consumers of its subscriptions stand."""
        self.reports: Final = path / "reports.db"
        """On Kafka, what was found of its targets."""
        self.attempts: Final = path / "attempts"
        self.floor: Final = path / "floor.json"
        """What its first rows need of the log, after a change of the number of dispatchers."""

    @classmethod
    def of(cls, data: Path, number: int) -> DispatcherDirectory:
        """That of a dispatcher, by its number from 0 on, in a data directory."""
        return cls(data / PARENT / str(number))


def directories_of(data: Path, dispatchers: int) -> tuple[DispatcherDirectory, ...]:
    """Those of all dispatchers, by their numbers."""
    return tuple(DispatcherDirectory.of(data, number) for number in range(dispatchers))


def replace_whole(path: Path, data: bytes) -> None:
    """Put a new file in the place of one; a reader sees the old or the new one. Not synced: it may be lost with power.

    Only its owner may read it. After an OSError the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)


@contextmanager
def private_files() -> Iterator[None]:
    """What this process makes in the block is for its user only: events and objects may hold secrets."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
