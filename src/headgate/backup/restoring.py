"""A data directory from a backup: all of it, or nothing.

Files are written and compared in `restoring/` within the new directory, and only then moved to their places. A server
refuses a directory that holds it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from headgate.backup.manifest import Manifest
from headgate.backup.source import examine
from headgate.backup.target import sync_folder
from headgate.errors import InvalidInputError, UnavailableError
from headgate.server.datadir import RESTORING, locked
from headgate.server.stored_formats import check_formats

_OF_OTHERS: Final = frozenset({"lost+found"})
"""What a new file system has of its own."""


class RestoreFailedError(UnavailableError):
    """The place of a restored directory takes nothing."""

    code = "restore-failed"


def restore_backup(name: str, data: Path) -> Manifest:
    """Makes a data directory of a backup.

    Args:
        name: A directory, a tar, or `-` for a tar on standard input.
        data: Does not exist, or is empty.

    Raises:
        InvalidInputError: The directory is not empty, or the backup cannot be read.
        BackupDamagedError: The backup is not what was written; the directory is empty again.
        FormatNewerError: A newer Headgate wrote what is in it.
        RestoreFailedError: The directory cannot be written.
    """
    before = os.umask(0o077)  # events and objects may hold secrets
    try:
        _check_empty(data)
        data.mkdir(parents=True, exist_ok=True)
        with _claimed(data) as inside:

            @contextmanager
            def keep(path: str) -> Iterator[IO[bytes]]:
                place = inside / path
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())

            manifest = examine(name, keep)
            check_formats(inside)
            for folder in (inside, *(one for one in inside.rglob("*") if one.is_dir())):
                sync_folder(folder)
            for one in sorted(inside.iterdir()):
                one.rename(data / one.name)
            sync_folder(data)
            inside.rmdir()
            sync_folder(data)
        return manifest
    except OSError as error:
        raise RestoreFailedError(
            f"{data} cannot be written: {error}", hint="is there room for it, and may this user write there?"
        ) from error
    finally:
        os.umask(before)


def _check_empty(data: Path) -> None:
    if data.exists() and not data.is_dir():
        raise InvalidInputError(f"{data} is no directory", hint="name a new one with --data")
    held = sorted(one.name for one in data.iterdir() if one.name not in _OF_OTHERS) if data.is_dir() else []
    if held:
        raise InvalidInputError(
            f"{data} is not empty: it holds {held[0]}",
            hint="restore into a new directory by --data; to put a backup in its place, move this one away first",
        )


@contextmanager
def _claimed(data: Path) -> Iterator[Path]:
    """Where to write within the directory; it is empty again when the block fails.

    A server refuses the directory from the first instant to the last: `restoring/` comes first, and goes last.

    Raises:
        UnavailableError: A server has it.
    """
    inside = data / RESTORING
    inside.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(data))
        except BaseException:
            inside.rmdir()
            raise
        try:
            yield inside
        except BaseException:
            for one in sorted(data.iterdir(), key=lambda one: one.name == RESTORING):
                if one.name not in _OF_OTHERS:
                    with contextlib.suppress(OSError):
                        shutil.rmtree(one) if one.is_dir() else one.unlink()
            raise
