"""A data directory from a backup: all of it, or nothing. Every file is compared with the manifest as it is read.

It is done in `restoring/` within the new directory, and only then put in place: a server refuses a directory with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Final, Self

from headgate.backup.manifest import MANIFEST, BackupDamagedError, BackupFile, Manifest, check_path
from headgate.backup.writing import STREAM
from headgate.server.datadir import RESTORING, locked, sync
from headgate.server.stored_formats import check_formats
from headgate.storage.files import private_files
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.limits import BACKUP_FILES_MAX, BACKUP_MANIFEST_BYTES_MAX, BACKUP_PIECE_BYTES

_PACKERS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}
"""Programs that compress, by how what they write begins."""


Keep = Callable[[str], AbstractContextManager[IO[bytes]]]
"""Opens a place for the file of a backup with this path."""


_Member = tuple[str, IO[bytes]]
"""A file of a backup: its path in it, and its content, readable until the next one is asked for."""


def examine(name: str, keep: Keep | None = None) -> Manifest:
    """Reads a whole backup, and returns its manifest: every file is there, and is what was written.

    The name is a directory, a tar, or `-` for a tar on standard input. Copies go where `keep` says; they are worth
    nothing when this raises BackupDamagedError, which names a file that is missing or another one than the manifest
    says, BackupNewerError, or InvalidInputError for what cannot be read.
    """
    manifest: Manifest | None = None
    found: dict[str, BackupFile] = {}
    try:
        for path, content in _members(name):
            if path == MANIFEST:
                manifest = Manifest.decode(content.read(BACKUP_MANIFEST_BYTES_MAX + 1), MANIFEST)
                continue
            check_path(path)
            if path in found:
                raise BackupDamagedError(f"{path} is there twice")
            if len(found) >= BACKUP_FILES_MAX:
                raise BackupDamagedError(f"{name} holds more than {BACKUP_FILES_MAX} files")
            found[path] = _copied(path, content, keep)
    except tarfile.TarError as error:
        raise BackupDamagedError(f"{_said(name)} is no whole tar: {error}") from error
    except EOFError as error:
        raise BackupDamagedError(f"{_said(name)} is cut off") from error
    if manifest is None:
        raise BackupDamagedError(f"{_said(name)} has no {MANIFEST}: it was broken off, or is no backup")
    _compare(manifest, found)
    return manifest


def _compare(manifest: Manifest, found: dict[str, BackupFile]) -> None:
    for one in manifest.files:
        there = found.pop(one.path, None)
        if there is None:
            raise BackupDamagedError(f"{one.path} is missing in the backup")
        size, had = there.size_bytes, one.size_bytes
        if size != had:
            raise BackupDamagedError(f"{one.path} is damaged: it has {size} bytes, and had {had}")
        if there.sha256 != one.sha256:
            raise BackupDamagedError(f"{one.path} is damaged: its checksum is another one")
    if found:
        raise BackupDamagedError(f"{min(found)} is not in the manifest of the backup")


def _copied(path: str, content: IO[bytes], keep: Keep | None) -> BackupFile:
    digest, size = hashlib.sha256(), 0
    place: AbstractContextManager[IO[bytes] | None] = nullcontext() if keep is None else keep(path)
    with place as file:
        while piece := content.read(BACKUP_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            if file is not None:
                file.write(piece)
    return BackupFile(path, size, digest.hexdigest())


def _members(name: str) -> Iterator[_Member]:
    if name != STREAM and Path(name).is_dir():
        yield from _of_directory(Path(name))
        return
    try:
        stream = sys.stdin.buffer if name == STREAM else Path(name).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InvalidInputError(f"the backup {name} cannot be read: {error.strerror}") from error
    with stream:
        yield from _of_tar(stream)


def _of_directory(directory: Path) -> Iterator[_Member]:
    try:
        for path in _paths(directory):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise BackupDamagedError(f"{path} is no plain file")
            if path.is_file():
                with path.open("rb") as file:
                    yield path.relative_to(directory).as_posix(), file
    except OSError as error:
        raise InvalidInputError(f"the backup {directory} cannot be read: {error}") from error


def _paths(directory: Path) -> list[Path]:
    """All that lies below a directory, in order. Raises OSError."""

    def told(error: OSError) -> None:
        raise error

    return sorted(
        Path(folder, name) for folder, folders, files in os.walk(directory, onerror=told) for name in folders + files
    )


class _PlainMember(tarfile.TarInfo):
    """A member of a tar as `TarTarget` writes it: one header, and the bytes of a file behind it.

    Neither a long name is obeyed, which would be read into memory whole, nor holes, which may be as large as they like.
    """

    # Not in `frombuf`: in some Pythons, as in that of Debian 12, tarfile comes to a header by another way.
    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        """BackupDamagedError for no plain file, InvalidInputError for a compressed archive, TarError for no header."""
        stream: Any = tar.fileobj
        header: bytes = stream.read(tarfile.BLOCKSIZE)
        if packer := next((name for magic, name in _PACKERS.items() if header.startswith(magic)), ""):
            raise InvalidInputError(
                f"the backup is compressed by {packer}",
                hint=f"give it as a stream: {packer} -dc BACKUP | headgate backup verify -, or headgate restore -",
            )
        member = cls.frombuf(header, tarfile.ENCODING, "surrogateescape")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise BackupDamagedError(f"{member.name[:200]!r} is no plain file")
        member.offset_data = stream.tell()
        member.offset = member.offset_data - tarfile.BLOCKSIZE
        tar.offset = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return member


def _of_tar(stream: IO[bytes]) -> Iterator[_Member]:
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_PlainMember) as tar:
        for member in tar:
            if (content := tar.extractfile(member)) is not None:
                yield member.name, content


def _said(name: str) -> str:
    return "the backup on standard input" if name == STREAM else name


_OF_OTHERS: Final = frozenset({"lost+found"})
"""What a new file system has of its own."""


class RestoreFailedError(UnavailableError):
    """The place of a restored directory takes nothing."""

    code = "restore-failed"


def restore_backup(name: str, data: Path) -> Manifest:
    """Makes a data directory, which does not exist or is empty, of a backup; its name is as for `examine`.

    After a BackupDamagedError the directory is empty again. Raises FormatNewerError when a newer Headgate wrote what is
    in it, RestoreFailedError when the directory cannot be written.
    """
    try:
        with private_files():
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
                    sync(folder)
                for one in sorted(inside.iterdir()):
                    one.rename(data / one.name)
                sync(data)
                inside.rmdir()
                sync(data)
            return manifest
    except OSError as error:
        raise RestoreFailedError(
            f"{data} cannot be written: {error}", hint="is there room for it, and may this user write there?"
        ) from error


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

    `restoring/` comes first, and goes last: so a server always refuses the directory.
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
