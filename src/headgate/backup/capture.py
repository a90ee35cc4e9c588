"""The moment that a backup holds: databases are copied and files pinned against the flow of events.

What comes later in the flow is taken first, so that what it speaks of is there: cursors before what has ended by them,
these before the outbox, the outbox before the objects, the numbers of producers and the objects before the log. So the
files are what a crash could have left behind: deliveries may be repeated, and nothing is lost.

    segments (held open) -> dispatch.db -> subscriptions.db, deadletters.db, replays.db -> outbox -> control.db
        -> log/producers-N -> log

Only databases are copied within the moment. Segments only grow, so an open file and a size are a moment of it: they are
held open, and copied afterwards, also what retention removes meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headgate.backup.manifest import holds
from headgate.ingress.producers import FILE as PRODUCERS
from headgate.log.errors import CorruptChunkError
from headgate.log.files import Committed
from headgate.log.format import COMMITTED_BYTES, COMMITTED_NAME, FormatError, segment_name
from headgate.log.recovery import list_segments, read_chunk, read_segment_header
from headgate.server.child import raise_file_limit
from headgate.server.datadir import LAYOUT, check_objects, stored_directories
from headgate.storage import sqlite
from headgate.storage.files import PARENT, DispatcherDirectory
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.event import rfc3339
from headgate_api.limits import BACKUP_FILES_MAX, BACKUP_PIECE_BYTES

_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC


class BackupFailedError(UnavailableError):
    """No backup can be taken now."""

    code = "backup-failed"


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file at a moment, by its place in the data directory: the first bytes of an open file, or else `content`."""

    path: str
    size_bytes: int
    descriptor: int = -1
    content: bytes = b""

    def read(self) -> Iterator[bytes]:
        """What is meant, piece by piece. Raises BackupFailedError when the file has become shorter."""
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
    """A partition of the log, or an outbox: its segments, by the first offset, held open until `stack` closes them.

    What is below `next_offset` is durable, as of the last `look`.
    """

    directory: Path
    place: str
    stack: ExitStack
    held: dict[int, int] = field(default_factory=dict)
    next_offset: int = 0
    _first_seen: int = -1

    def look(self) -> None:
        """Open what has come since the last look, and see where the partition ends, or raise BackupFailedError."""
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


@dataclass(frozen=True, slots=True)
class Capture:
    """A moment of a data directory, times in RFC 3339; its files can be read while the block of `captured` lasts."""

    files: tuple[PinnedFile, ...]
    began: str
    taken: str


@contextmanager
def captured(data: Path, staging: Path) -> Iterator[Capture]:
    """Takes the moment of a data directory, of a server that runs or of one that is stopped; it is only read.

    `staging` is an empty directory. Raises InvalidInputError for what is no data directory of a server that keeps its
    events itself, BackupFailedError when it changes too much just now, FatalError when a database is damaged or has
    lost commits, LayoutError when the dispatchers' directories are not as a server leaves them.
    """
    _check(data)
    raise_file_limit(BACKUP_FILES_MAX)
    began = _now()
    with ExitStack() as stack:
        with _kept_stopped(data) as is_stopped:
            pins = _Pins(data, staging, stack, is_stopped)
            files = tuple(_moment(pins))
        pins.check_databases()
        if len(files) > BACKUP_FILES_MAX:
            raise BackupFailedError(
                f"{data} has {len(files)} files, over {BACKUP_FILES_MAX}", hint="make segments larger"
            )
        yield Capture(files, began, _now())


def _now() -> str:
    return rfc3339.text(time.time_ns() // 1000)


def _check(data: Path) -> None:
    check_objects(data)
    if (data / "instance").exists() and not (data / "log").exists():
        raise InvalidInputError(
            f"{data} is of a server on Kafka, where control.db is a cache and everything else is in topics",
            hint="back up the topics with Kafka's own tools; headgate cluster export writes a data directory of them",
        )


@contextmanager
def _kept_stopped(data: Path) -> Iterator[bool]:
    """Whether no server has the directory; then none gets it while the block lasts."""
    with contextlib.ExitStack() as stack:
        is_stopped = True
        with contextlib.suppress(FileNotFoundError):
            lock = stack.enter_context((data / "lock").open())
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                is_stopped = False
        yield is_stopped


def _moment(pins: _Pins) -> Iterator[PinnedFile]:
    data = pins.data
    dispatchers = stored_directories(data)
    known = _identity(data)
    outboxes = [pins.partition(own.outbox) for own in dispatchers]
    log = [
        pins.partition(one)
        for one in sorted((data / "log").glob("[0-9]*"))
        if holds(pins.place(one / COMMITTED_NAME)) and one.is_dir()  # not what a person has moved away beside it
    ]
    for partition in (*log, *outboxes):
        partition.look()  # from here on retention takes nothing from us
    yield from pins.file(data / PARENT / LAYOUT)
    for own in dispatchers:
        yield from _of_dispatcher(own, pins)
    for outbox in outboxes:
        outbox.look()
    yield from pins.database(data / "control.db")
    for path in sorted((data / "log").glob(f"{PRODUCERS}*")):
        if holds(pins.place(path)):  # not one that is being written
            yield from pins.file(path)
    for partition in log:
        partition.look()
    if _identity(data) != known:
        raise BackupFailedError(f"the number of dispatchers of {data} was changed meanwhile", hint="try again")
    for partition in (*outboxes, *log):
        yield from partition.files()


def _of_dispatcher(own: DispatcherDirectory, pins: _Pins) -> Iterator[PinnedFile]:
    yield from pins.database(own.cursors)  # first: what it says has ended must be in the others
    for path in (own.subscriptions, own.dead_letters, own.replays):
        yield from pins.database(path)
    yield from pins.file(own.floor)
    for name in ("newer.bin", "older.bin"):
        path = own.attempts / name
        copy = pins.staged(path)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(path, copy)  # small, and it takes turns with the other one
        yield from pins.file(path, copy)


def _identity(data: Path) -> tuple[int, bool]:
    """Tells the dispatchers' directories from those that take their place."""
    try:
        inode = (data / PARENT).stat().st_ino
    except FileNotFoundError:
        inode = 0
    return inode, (data / f"{PARENT}.new").exists() or (data / f"{PARENT}.old").exists()


@dataclass(eq=False, slots=True)
class _Pins:
    """Pins files of a data directory until `stack` closes them, and copies databases into `staging`.

    Where `is_stopped`, no process writes the databases.
    """

    data: Path
    staging: Path
    stack: ExitStack
    is_stopped: bool
    _copies: list[tuple[Path, Path]] = field(init=False, default_factory=list)

    def place(self, path: Path) -> str:
        return path.relative_to(self.data).as_posix()

    def partition(self, directory: Path) -> PinnedPartition:
        return PinnedPartition(directory, self.place(directory), self.stack)

    def file(self, path: Path, copy: Path | None = None) -> Iterator[PinnedFile]:
        """A file, or its copy, that is replaced as a whole, or whose end does not matter; nothing without one."""
        try:
            descriptor = os.open(copy or path, _OPEN)
        except FileNotFoundError:
            return
        self.stack.callback(os.close, descriptor)
        yield PinnedFile(self.place(path), os.fstat(descriptor).st_size, descriptor)

    def staged(self, path: Path) -> Path:
        copy = self.staging / path.relative_to(self.data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        return copy

    def database(self, path: Path) -> Iterator[PinnedFile]:
        """The copy of a database of one moment; FatalError if it is bad, BackupFailedError if busy."""
        with _told(path):
            sqlite.check_commits(path, is_at_rest=self.is_stopped)
        if sqlite.is_missing(path):
            return
        copy = self.staged(path)
        with _told(path):
            sqlite.copy(path, copy, is_at_rest=self.is_stopped)
        self._copies.append((path, copy))
        yield from self.file(path, copy)

    def check_databases(self) -> None:
        """Reads all copies, not within the moment, as it takes its time; DatabaseDamagedError names the original."""
        for path, copy in self._copies:
            with _told(path), sqlite.read_only(copy, is_at_rest=True) as connection:
                sqlite.check_integrity(connection, path)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors about a database as ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if sqlite.tells_damage(error):
            raise sqlite.DatabaseDamagedError(path, str(error)) from error
        raise BackupFailedError(f"{path} cannot be copied now: {error}", hint="is there room for a copy?") from error
