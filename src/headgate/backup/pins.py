"""Files that are held open while a backup is taken: what retention removes meanwhile can still be read.

Segments only grow, so an open file and a size are a moment of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headgate.errors import UnavailableError
from headgate.limits import BACKUP_PIECE_BYTES
from headgate.log.errors import CorruptChunkError
from headgate.log.files import Committed
from headgate.log.format import COMMITTED_BYTES, COMMITTED_NAME, FormatError, segment_name
from headgate.log.recovery import list_segments, read_chunk, read_segment_header

_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC


class BackupFailedError(UnavailableError):
    """No backup can be taken now."""

    code = "backup-failed"


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file at a moment.

    Attributes:
        path: Its place in the data directory.
        size_bytes: How much of it is meant.
        descriptor: The open file; -1 where `content` is all of it.
        content: The file, where it is made by us.
    """

    path: str
    size_bytes: int
    descriptor: int = -1
    content: bytes = b""

    def read(self) -> Iterator[bytes]:
        """What is meant, piece by piece.

        Raises:
            BackupFailedError: The file has become shorter.
        """
        if self.descriptor < 0:
            yield self.content
            return
        done = 0
        while done < self.size_bytes:
            piece = os.pread(self.descriptor, min(BACKUP_PIECE_BYTES, self.size_bytes - done), done)
            if not piece:
                raise BackupFailedError(f"{self.path} was cut while it was copied", hint="try again")
            yield piece
            done += len(piece)


@dataclass(slots=True)
class PinnedPartition:
    """A partition of the log, or an outbox: its segments, and where it ends.

    Attributes:
        directory: Where it is.
        place: The same in the data directory.
        stack: Closes its files.
        held: Open segments, by the first offset.
        next_offset: Everything below is durable; as of the last `look`.
    """

    directory: Path
    place: str
    stack: ExitStack
    held: dict[int, int] = field(default_factory=dict)
    next_offset: int = 0
    _first_seen: int = -1

    def look(self) -> None:
        """Open what has come since the last look, and see where the partition ends.

        Raises:
            BackupFailedError: Segments that came have gone meanwhile, or too many files are open.
        """
        is_first = self._first_seen < 0
        first, self.next_offset = self._published()
        if is_first:
            self._first_seen = first
        newest = max(self.held, default=None)
        if newest is not None and first > newest:
            raise BackupFailedError(
                f"retention removes segments of {self.directory} faster than a backup begins",
                hint="a larger --retain-hours or --retain-mb keeps them for a moment longer",
            )
        for begins, path in list_segments(self.directory):
            if begins in self.held or begins < self._first_seen:
                continue  # what was below the first offset is going away
            try:
                self.held[begins] = self._open(path)
            except FileNotFoundError:
                if not is_first or begins >= self._published()[0]:
                    raise BackupFailedError(f"{path} was removed while a backup began", hint="try again") from None

    def _published(self) -> tuple[int, int]:
        """The first offset that is kept, and the next one."""
        committed = Committed(self.directory)
        try:
            return committed.first_offset(), committed.next_offset()
        finally:
            committed.close()

    def _open(self, path: Path) -> int:
        try:
            descriptor = os.open(path, _OPEN)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise BackupFailedError(
                    f"{path} cannot be opened: too many files are open", hint="a backup opens each segment: ulimit -n"
                ) from error
            raise
        self.stack.callback(os.close, descriptor)
        return descriptor

    def files(self) -> Iterator[PinnedFile]:
        """The segments up to where the partition ended at the last look, and the file that says so."""
        begins = [first for first in sorted(self.held) if first <= self.next_offset]
        for first in begins:
            descriptor = self.held[first]
            size = os.fstat(descriptor).st_size
            if first == begins[-1]:
                size = min(size, self._end_of_last(first, descriptor, size))
            yield PinnedFile(f"{self.place}/{segment_name(first)}", size, descriptor)
        if not (self.directory / COMMITTED_NAME).exists():
            return
        words = self.next_offset.to_bytes(8, "little") + min(begins, default=self._first_seen).to_bytes(8, "little")
        yield PinnedFile(f"{self.place}/{COMMITTED_NAME}", COMMITTED_BYTES, content=words.ljust(COMMITTED_BYTES, b"\0"))

    def _end_of_last(self, first: int, descriptor: int, size: int) -> int:
        """The byte behind the last chunk that is durable; all of a segment that is damaged on the way there."""
        path = self.directory / segment_name(first)
        try:
            _, position = read_segment_header(path, descriptor)
            at = first
            while at < self.next_offset:
                header = read_chunk(descriptor, position, with_payload=False)
                if header is None:
                    return position
                position, at = position + header.chunk_bytes, header.next_offset
        except (FormatError, CorruptChunkError):
            return size
        return position


def pin(path: Path, place: str, stack: ExitStack) -> PinnedFile | None:
    """A file that is replaced as a whole, or whose end does not matter; None when there is none."""
    try:
        descriptor = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    stack.callback(os.close, descriptor)
    return PinnedFile(place, os.fstat(descriptor).st_size, descriptor)
