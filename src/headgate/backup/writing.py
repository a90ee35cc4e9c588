"""A whole backup: the moment of a data directory, written to a target with checksums, the manifest last."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate import __version__
from headgate.backup.capture import captured
from headgate.backup.manifest import FORM, MANIFEST, BackupFile, Manifest
from headgate.backup.pins import BackupFailedError
from headgate.backup.target import opened
from headgate.errors import UnavailableError


class BackupUnwritableError(UnavailableError):
    """The place of a backup takes nothing."""

    code = "backup-unwritable"


@dataclass(slots=True)
class _Counted:
    """Bytes on their way, counted and summed."""

    pieces: Iterable[bytes]
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            self.size += len(piece)
            self.digest.update(piece)
            yield piece


def write_backup(data: Path, name: str) -> Manifest:
    """Takes a backup of a data directory, whether or not its server runs.

    Args:
        data: The data directory; it is only read.
        name: `-` for a tar on standard output, FILE.tar, or a directory, which does not exist or is empty.

    Raises:
        InvalidInputError: There is no such data directory, or the target is there already.
        BackupFailedError: The data directory changes too much just now, or this user may not read it.
        BackupUnwritableError: The target cannot be written; nothing is left of it.
        FatalError: A database is damaged, or has lost commits.
        LayoutError: The dispatchers' directories are not as a server leaves them.
    """
    try:
        with opened(name) as (target, staging), captured(data, staging) as capture:
            files: list[BackupFile] = []
            for one in capture.files:
                counted = _Counted(one.read())
                target.add(one.path, one.size_bytes, counted)
                files.append(BackupFile(one.path, counted.size, counted.digest.hexdigest()))
            files.sort(key=lambda one: one.path)
            manifest = Manifest(FORM, __version__, capture.began, capture.taken, tuple(files)).sealed()
            body = manifest.encoded()
            target.add(MANIFEST, len(body), [body])
            return manifest
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename and Path(error.filename).is_relative_to(data):
            raise BackupFailedError(
                f"the data directory cannot be read: {error}", hint="run it as the server's user"
            ) from error
        raise BackupUnwritableError(
            f"the backup cannot be written: {error}", hint="is there room for it, and may this user write there?"
        ) from error
