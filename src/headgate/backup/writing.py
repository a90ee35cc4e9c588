"""A whole backup, in a directory, a tar, or a stream: it has its name only when it is whole, its manifest is last."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Protocol

from headgate.backup.capture import BackupFailedError, captured
from headgate.backup.manifest import FORM, MANIFEST, BackupFile, Manifest
from headgate.server.datadir import sync
from headgate.storage.files import private_files
from headgate_api import __version__
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.limits import BACKUP_PIECE_BYTES

STREAM: Final = "-"
"""Standard output, or standard input."""
TAR: Final = ".tar"
_OTHER_SUFFIXES: Final = frozenset({".tgz", ".gz", ".bz2", ".xz", ".zst", ".zip"})
"""Of archives that are not written here."""
_PARTIAL: Final = ".partial"
_MODE: Final = 0o600


class BackupTarget(Protocol):
    """Takes the files of a backup, the manifest last."""

    def add(self, path: str, size_bytes: int, content: BackupContent) -> None:
        """Takes one file. Raises OSError."""


class BackupContent:
    """Pieces of bytes as a file that is read from its beginning to its end, counted and summed."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""
        self.size = 0
        self.digest = hashlib.sha256()

    def read(self, size_bytes: int) -> bytes:
        found = [self._rest]
        have = len(self._rest)
        while have < size_bytes and (piece := next(self._pieces, b"")):
            self.size += len(piece)
            self.digest.update(piece)
            found.append(piece)
            have += len(piece)
        whole = b"".join(found)
        self._rest = whole[size_bytes:]
        return whole[:size_bytes]


class DirectoryTarget:
    """A directory, which exists."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, path: str, size_bytes: int, content: BackupContent) -> None:
        place = self._directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            while piece := content.read(BACKUP_PIECE_BYTES):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())


class TarTarget:
    """A tar archive, written from its beginning to its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._tar = tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT)  # noqa: SIM115 - `close`

    def add(self, path: str, size_bytes: int, content: BackupContent) -> None:
        member = tarfile.TarInfo(path)
        member.size, member.mode, member.mtime = size_bytes, _MODE, int(time.time())
        self._tar.addfile(member, content)  # type: ignore[arg-type] # it only reads

    def close(self) -> None:
        self._tar.close()


@contextmanager
def opened(name: str) -> Iterator[tuple[BackupTarget, Path]]:
    """A target by its name, and an empty directory beside it for copies; it is there when the block has ended well.

    The name is `-` for a tar on standard output, FILE.tar, or a directory, which does not exist or is empty. Raises
    InvalidInputError when it is there already, or another backup writes it or has left something.
    """
    with private_files():
        if name == STREAM:
            with tempfile.TemporaryDirectory(prefix="headgate-backup-") as staging, _tar(sys.stdout.buffer) as target:
                yield target, Path(staging)
            sys.stdout.buffer.flush()
            return
        path = Path(name)
        partial = path.with_name(path.name + _PARTIAL)
        _check(path, partial)
        beside = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.absolute().parent)
        with beside as staging, _in_place(path, partial) as target:
            yield target, Path(staging)


@contextmanager
def _in_place(path: Path, partial: Path) -> Iterator[BackupTarget]:
    """Writes beside a path, and puts it there in the end. Raises InvalidInputError when another backup writes there."""
    with contextlib.ExitStack() as stack:
        try:
            if path.suffix == TAR:
                file = stack.enter_context(partial.open("xb"))
            else:
                partial.mkdir()
        except FileExistsError:
            raise _taken(partial) from None
        try:
            if path.suffix == TAR:
                with _tar(file) as target:
                    yield target
                file.flush()
                os.fsync(file.fileno())
            else:
                yield DirectoryTarget(partial)
                for folder in (partial, *(one for one in partial.rglob("*") if one.is_dir())):
                    sync(folder)
            partial.rename(path)  # an empty directory may be there
            sync(path.absolute().parent)
        except BaseException:
            with contextlib.suppress(OSError):
                shutil.rmtree(partial) if partial.is_dir() else partial.unlink(missing_ok=True)
            raise


@contextmanager
def _tar(stream: IO[bytes]) -> Iterator[TarTarget]:
    target = TarTarget(stream)
    yield target
    target.close()  # not after an error: its end would make the archive look complete


def _check(path: Path, partial: Path) -> None:
    if path.suffix.lower() in _OTHER_SUFFIXES:
        raise InvalidInputError(
            f"{path} would be a directory, for only {TAR} means an archive",
            hint="for a compressed one: headgate backup create - | gzip > FILE",
        )
    is_empty = path.is_dir() and path.suffix != TAR and not any(path.iterdir())
    if path.exists() and not is_empty:
        raise InvalidInputError(f"{path} is there already", hint="give each backup a name of its own")
    if not path.absolute().parent.is_dir():
        raise InvalidInputError(f"{path.absolute().parent} is no directory", hint="make it, or choose another one")
    if partial.exists():
        raise _taken(partial)


def _taken(partial: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{partial} is there: another backup is being written, or one was broken off",
        hint=f"if no other one runs: rm -r {partial}",
    )


class BackupUnwritableError(UnavailableError):
    """The place of a backup takes nothing."""

    code = "backup-unwritable"


def write_backup(data: Path, name: str) -> Manifest:
    """Takes a backup of a data directory, whether or not its server runs; raises as `captured` and `opened` do.

    Also BackupFailedError when this user may not read it, and BackupUnwritableError; nothing is left of the target
    then.
    """
    try:
        with opened(name) as (target, staging), captured(data, staging) as capture:
            files: list[BackupFile] = []
            for one in capture.files:
                content = BackupContent(one.read())
                target.add(one.path, one.size_bytes, content)
                files.append(BackupFile(one.path, content.size, content.digest.hexdigest()))
            files.sort(key=lambda one: one.path)
            manifest = Manifest(FORM, __version__, capture.began, capture.taken, tuple(files)).sealed()
            body = manifest.encoded()
            target.add(MANIFEST, len(body), BackupContent([body]))
            return manifest
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename and Path(error.filename).is_relative_to(data):
            raise BackupFailedError(
                f"the data directory cannot be read: {error}", hint="run it as the server's user"
            ) from error
        raise BackupUnwritableError(
            f"the backup cannot be written: {error}", hint="is there room for it, and may this user write there?"
        ) from error
