"""Files of state: what each dispatcher keeps, and where; small files that are replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PARENT: Final = "dispatcher"
"""In the data directory: a directory for each dispatcher, by its number."""


@dataclass(frozen=True, slots=True)
class DispatcherDirectory:
    """One dispatcher's directory. It alone writes there."""

    path: Path

    @classmethod
    def of(cls, data: Path, number: int) -> DispatcherDirectory:
        """That of a dispatcher, by its number from 0 on, in a data directory."""
        return cls(data / PARENT / str(number))

    @property
    def outbox(self) -> Path:
        """The matches for its targets: a partition of the chunk log."""
        return self.path / "outbox"

    @property
    def cursors(self) -> Path:
        return self.path / "dispatch.db"

    @property
    def dead_letters(self) -> Path:
        return self.path / "deadletters.db"

    @property
    def replays(self) -> Path:
        return self.path / "replays.db"

    @property
    def subscriptions(self) -> Path:
        return self.path / "subscriptions.db"

    @property
    def reports(self) -> Path:
        """On Kafka, what was found of its targets."""
        return self.path / "reports.db"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def floor(self) -> Path:
        """What its first rows need of the log, after a change of the number of dispatchers."""
        return self.path / "floor.json"


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
