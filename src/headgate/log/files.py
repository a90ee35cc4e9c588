"""The writer's system calls behind one object, so that tests can make them fail, and the file `committed`."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgate.log.format import COMMITTED_BYTES, COMMITTED_NAME

Bytes = Any
"""bytes, bytearray, memoryview or pyarrow.Buffer (Python 3.11 cannot name the buffer protocol)."""

_READ_PIECE_BYTES = 1 << 30


class FileOps:
    """The real thing; every method raises OSError as the system call does."""

    def open(self, path: Path, flags: int) -> int:
        """Open for the writer; new files are for this user only."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def pwritev(self, fd: int, parts: Sequence[Bytes], position: int) -> int:
        """Write the parts one behind the other; may write less than all."""
        return os.pwritev(fd, parts, position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def close(self, fd: int) -> None:
        os.close(fd)


class UnsyncedFileOps(FileOps):
    """System calls of a writer whose files are synced as a whole when all of them are there."""

    def fdatasync(self, fd: int) -> None:
        """Later."""

    def fsync(self, fd: int) -> None:
        """Later."""


def write_all(files: FileOps, fd: int, parts: Sequence[Bytes], position: int) -> int:
    """Write all parts, however little one call takes; returns the bytes written."""
    size = sum(memoryview(part).nbytes for part in parts)
    done = files.pwritev(fd, parts, position)
    if done < size:
        rest = memoryview(b"".join(parts))
        while done < size:
            done += files.pwritev(fd, [rest[done:]], position + done)
    return size


def read_at(fd: int, size_bytes: int, position: int) -> bytes:
    """Read up to `size_bytes`; less only at the end of the file."""
    pieces: list[bytes] = []
    done = 0
    while done < size_bytes and (data := os.pread(fd, min(size_bytes - done, _READ_PIECE_BYTES), position + done)):
        pieces.append(data)
        done += len(data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def sync_directory(files: FileOps, directory: Path) -> None:
    """Make created and removed names durable."""
    fd = files.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        files.fsync(fd)
    finally:
        files.close(fd)


def replace_file(files: FileOps, path: Path, data: bytes) -> None:
    """Put a new file in the place of one, durably: a reader sees the old or the new one, whole."""
    aside = path.with_suffix(".new")
    fd = files.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(files, fd, [data], 0)
        files.fsync(fd)
    finally:
        files.close(fd)
    aside.replace(path)
    sync_directory(files, path.parent)


class Committed:
    """The mapped file `committed`: next offset and first offset, each one aligned 8-byte word.

    A reader may open it before the writer has made it: both offsets are then 0 until the file is there.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / COMMITTED_NAME
        self._map: mmap.mmap | None = None
        self._words: memoryview | None = None

    @classmethod
    def create(cls, directory: Path, files: FileOps, next_offset: int, first_offset: int) -> Committed:
        """Make or rewrite the file in place (readers keep their mapping) and map it for writing."""
        self = cls(directory)
        fd = files.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            # Written, not only extended: a store into a hole of a full disk would be a SIGBUS later.
            words = next_offset.to_bytes(8, "little") + first_offset.to_bytes(8, "little")
            write_all(files, fd, [words.ljust(COMMITTED_BYTES, b"\0")], 0)
            files.fsync(fd)
            self._set(mmap.mmap(fd, COMMITTED_BYTES))
        finally:
            files.close(fd)
        return self

    def _set(self, mapping: mmap.mmap) -> None:
        self._map = mapping
        self._words = memoryview(mapping).cast("q")

    def _attach(self) -> memoryview | None:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if os.fstat(fd).st_size < COMMITTED_BYTES:
                return None
            self._set(mmap.mmap(fd, COMMITTED_BYTES, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
        return self._words

    def next_offset(self) -> int:
        """Every record below it is durable."""
        words = self._words or self._attach()
        return words[0] if words else 0

    def first_offset(self) -> int:
        """No record below it is kept."""
        words = self._words or self._attach()
        return words[1] if words else 0

    def publish(self, next_offset: int) -> None:
        """One aligned 8-byte store: a reader sees the old or the new offset, nothing between."""
        assert self._words is not None
        self._words[0] = next_offset

    def publish_first(self, first_offset: int) -> None:
        """Say that records below are going away; durable before they do, or they would look lost after a power cut."""
        assert self._words is not None
        assert self._map is not None
        self._words[1] = first_offset
        self._map.flush()

    def close(self) -> None:
        """Unmap; afterwards both offsets are read from the file again."""
        if self._words is not None and self._map is not None:
            self._words.release()
            self._map.close()
            self._words = self._map = None
