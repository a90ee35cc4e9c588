"""The data directory of a server without Kafka that does not run: for who reads all of it, or writes it anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.errors import InvalidInputError
from headgate.server.datadir import locked
from headgate.server.layout import arrange, stored_directories
from headgate.storage.dispatcher_directory import DispatcherDirectory
from headgate.store.embedded_state import EmbeddedState


@contextmanager
def stopped_server(data: Path) -> Iterator[EmbeddedState]:
    """What it has; no server can be started on it while the block lasts.

    Raises:
        InvalidInputError: It is no data directory.
        UnavailableError: A server runs on it.
        LayoutError: A change of the number of dispatchers has not come to its end.
        CorruptChunkError: A chunk of the log is damaged.
    """
    if not (data / "control.db").exists():
        raise InvalidInputError(
            f"{data} is no data directory of a server: there is no control.db", hint="name it with --data"
        )
    with locked(data):
        yield EmbeddedState(data, stored_directories(data))


@contextmanager
def new_directory(data: Path) -> Iterator[DispatcherDirectory]:
    """An empty directory that a server with one dispatcher will have; empty again where the block fails.

    Raises:
        InvalidInputError: It holds something.
        OSError: The disk does not take it.
    """
    if data.exists() and any(data.iterdir()):
        raise InvalidInputError(f"{data} is not empty", hint="name a new directory with --data")
    before = os.umask(0o077)  # events and objects may hold secrets
    try:
        data.mkdir(parents=True, exist_ok=True)
        with locked(data):
            try:
                arrange(data, 1, lambda *_: None)
                yield DispatcherDirectory.of(data, 0)
                os.sync()
            except BaseException:
                for path in data.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                raise
    finally:
        os.umask(before)
