"""The moment that a backup holds: databases are copied and files pinned against the flow of events.

What comes later in the flow is taken first, so that what it speaks of is there: cursors before what has ended by them
(dead letters, replays, acknowledgements), these before the outbox, the outbox before the objects, the numbers of
producers and the objects before the log. Taken so, the files are what a crash could have left behind: deliveries may
be repeated, and nothing is lost.

    segments (held open) -> dispatch.db -> subscriptions.db, deadletters.db, replays.db -> outbox -> control.db
        -> log/producers-N -> log

Only databases are copied within the moment. Segments grow, and are copied afterwards up to where they ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.backup.manifest import holds
from headgate.backup.pins import BackupFailedError, PinnedFile, PinnedPartition, pin
from headgate.errors import InvalidInputError
from headgate.event import rfc3339
from headgate.ingress.producers import FILE as PRODUCERS
from headgate.limits import BACKUP_FILES_MAX
from headgate.log.format import COMMITTED_NAME
from headgate.server.child import raise_file_limit
from headgate.server.layout import LAYOUT, stored_directories
from headgate.storage import sqlite
from headgate.storage.dispatcher_directory import PARENT, DispatcherDirectory


@dataclass(frozen=True, slots=True)
class Capture:
    """A moment of a data directory.

    Attributes:
        files: Its files; they can be read while the block of `captured` lasts.
        began: RFC 3339.
        taken: RFC 3339.
        is_running: Whether a server ran on it.
    """

    files: tuple[PinnedFile, ...]
    began: str
    taken: str
    is_running: bool


@contextmanager
def captured(data: Path, staging: Path) -> Iterator[Capture]:
    """Takes the moment of a data directory, of a server that runs or of one that is stopped.

    Args:
        data: The directory; it is only read.
        staging: An empty directory for copies of the databases.

    Raises:
        InvalidInputError: It is no data directory of a server that keeps its events itself.
        BackupFailedError: It changes too much just now.
        FatalError: A database is damaged, or has lost commits.
        LayoutError: The dispatchers' directories are not as a server leaves them.
    """
    _check(data)
    raise_file_limit(BACKUP_FILES_MAX)
    began = _now()
    with ExitStack() as stack:
        with _kept_stopped(data) as is_stopped:
            databases = DatabaseCopies(data, staging, stack, is_stopped=is_stopped)
            files = tuple(_moment(data, databases, stack))
        databases.check()
        if len(files) > BACKUP_FILES_MAX:
            raise BackupFailedError(
                f"{data} has {len(files)} files, over {BACKUP_FILES_MAX}", hint="make segments larger"
            )
        yield Capture(files, began, _now(), not is_stopped)


def _now() -> str:
    return rfc3339.text(time.time_ns() // 1000)


def _check(data: Path) -> None:
    if not (data / "control.db").exists():
        raise InvalidInputError(f"{data} is no data directory of a server: there is no control.db", hint="--data")
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


def _moment(data: Path, databases: DatabaseCopies, stack: ExitStack) -> Iterator[PinnedFile]:
    dispatchers = stored_directories(data)
    known = _identity(data)
    outboxes = [PinnedPartition(own.outbox, _place(data, own.outbox), stack) for own in dispatchers]
    log = [
        PinnedPartition(one, _place(data, one), stack)
        for one in sorted((data / "log").glob("[0-9]*"))
        if holds(_place(data, one / COMMITTED_NAME)) and one.is_dir()  # not what a person has moved away beside it
    ]
    for partition in (*log, *outboxes):
        partition.look()  # from here on retention takes nothing from us
    yield from _found(pin(data / PARENT / LAYOUT, f"{PARENT}/{LAYOUT}", stack))
    for own in dispatchers:
        yield from _of_dispatcher(data, own, databases, stack)
    for outbox in outboxes:
        outbox.look()
    yield from databases.copied(data / "control.db")
    for path in sorted((data / "log").glob(f"{PRODUCERS}*")):
        if holds(_place(data, path)):  # not one that is being written
            yield from _found(pin(path, _place(data, path), stack))
    for partition in log:
        partition.look()
    if _identity(data) != known:
        raise BackupFailedError(f"the number of dispatchers of {data} was changed meanwhile", hint="try again")
    for partition in (*outboxes, *log):
        yield from partition.files()


def _of_dispatcher(
    data: Path, own: DispatcherDirectory, databases: DatabaseCopies, stack: ExitStack
) -> Iterator[PinnedFile]:
    yield from databases.copied(own.cursors)  # first: what it says has ended must be in the others
    for path in (own.subscriptions, own.dead_letters, own.replays):
        yield from databases.copied(path)
    yield from _found(pin(own.floor, _place(data, own.floor), stack))
    for name in ("newer.bin", "older.bin"):
        path = own.attempts / name
        copy = databases.staged(path)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(path, copy)  # small, and it takes turns with the other one
        yield from _found(pin(copy, _place(data, path), stack))


def _found(one: PinnedFile | None) -> Iterator[PinnedFile]:
    if one is not None:
        yield one


def _place(data: Path, path: Path) -> str:
    return path.relative_to(data).as_posix()


def _identity(data: Path) -> tuple[int, bool]:
    """Tells the dispatchers' directories from those that take their place."""
    try:
        inode = (data / PARENT).stat().st_ino
    except FileNotFoundError:
        inode = 0
    return inode, (data / f"{PARENT}.new").exists() or (data / f"{PARENT}.old").exists()


class DatabaseCopies:
    """Copies of SQLite files, each of one moment.

    Args:
        data: The data directory.
        staging: Where copies go.
        stack: Closes them.
        is_stopped: No process writes them.
    """

    def __init__(self, data: Path, staging: Path, stack: ExitStack, *, is_stopped: bool) -> None:
        self._data = data
        self._staging = staging
        self._stack = stack
        self._is_stopped = is_stopped
        self._copies: list[tuple[Path, Path]] = []

    def staged(self, path: Path) -> Path:
        """Where the copy of a file goes."""
        copy = self._staging / path.relative_to(self._data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        return copy

    def copied(self, path: Path) -> Iterator[PinnedFile]:
        """The copy of a database; nothing when there is none.

        Raises:
            FatalError: It is damaged, or has lost commits.
            BackupFailedError: It is busy, or there is no room for the copy.
        """
        with _told(path):
            sqlite.check_commits(path, is_at_rest=self._is_stopped)
        if sqlite.is_missing(path):
            return
        copy = self.staged(path)
        with _told(path):
            sqlite.copy(path, copy, is_at_rest=self._is_stopped)
        self._copies.append((path, copy))
        yield from _found(pin(copy, _place(self._data, path), self._stack))

    def check(self) -> None:
        """Reads all copies; not within the moment, because it takes its time.

        Raises:
            DatabaseDamagedError: One is damaged, as what it is a copy of.
        """
        for path, copy in self._copies:
            with _told(path), sqlite.read_only(copy, is_at_rest=True) as connection:
                (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise sqlite.DatabaseDamagedError(path, " ".join(str(found).split()))


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors about a database as ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if sqlite.tells_damage(error):
            raise sqlite.DatabaseDamagedError(path, str(error)) from error
        raise BackupFailedError(f"{path} cannot be copied now: {error}", hint="is there room for a copy?") from error
