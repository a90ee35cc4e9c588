"""SQLite files: how one opens, changes and is read, and what is wrong with one that is newer, damaged or missing."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import structlog

from headgate.storage.commit import (
    SUFFIX,
    TABLE,
    Committer,
    SqliteCommitter,
    damaged_page,
    read_record,
    record_path,
    wal_path,
)
from headgate_api import __version__
from headgate_api.errors import FatalError

_log = structlog.get_logger(__name__)

LOSSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "control.db": "brokers, triggers and subscriptions must be applied again, deliveries of theirs are forgotten",
        "dispatch.db": "all matches that the outbox still has are delivered again",
        "deadletters.db": "the dead letters in it are lost",
        "replays.db": "replays under way are forgotten",
        "subscriptions.db": "subscriptions begin anew",
    }
)
"""The files by name, and what it costs to go on without one."""


TABLES_VERSION: Final = 1
"""Of the tables of every file but control.db."""
BUSY_TIMEOUT_MS: Final = 10_000
"""How long others may hold a database."""
_BUSY_PAUSE_S: Final = 0.01
COPY_BUSY_MS: Final = 30_000
"""How long a copy waits for another process."""


class DatabaseDamagedError(FatalError):
    """A file is no SQLite database any more, or not all of it can be read."""

    code = "database-damaged"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is damaged: {reason}",
            hint=f"stop the server and restore it from a copy, or move it and its -wal, -shm and {SUFFIX} away,"
            f" {_accept(path)}",
        )


class DatabaseChangedError(FatalError):
    """A page of a file is not what was written, though SQLite can read it."""

    code = "database-changed"

    def __init__(self, path: Path, page: int, at_byte: int) -> None:
        super().__init__(
            f"{path} is damaged: page {page} at byte {at_byte} is not what was written",
            hint="did a program that is not Headgate change it? Restore it from a copy; or, to go on with it as it is,"
            f" {_accept(path)}",
        )


class DatabaseRolledBackError(FatalError):
    """What was committed to a file last is gone."""

    code = "database-rolled-back"

    def __init__(self, path: Path, found: int, recorded: int) -> None:
        super().__init__(
            f"{path} has lost {recorded - found} commits: it ends at commit {found}, and {recorded} were made",
            hint="is its -wal damaged, cut or gone, or the file of an earlier moment? Restore it from a copy; or,"
            f" to go on without what these commits have changed, start once with --accept-lost {path.name}",
        )


def _accept(path: Path) -> str:
    """How to go on without what a file has lost, and what that costs."""
    return f"start once with --accept-lost {path.name}: {LOSSES.get(path.name, 'what was in it is lost')}"


class DatabaseNewerError(FatalError):
    """A newer Headgate wrote a file."""

    code = "database-newer"

    def __init__(self, path: Path, found: int, known: int, *, by: str = "") -> None:
        who = f"a newer Headgate ({by})" if by else "a newer Headgate"
        super().__init__(
            f"{path} was written by {who}: its tables have version {found}, this one ({__version__}) knows {known}",
            hint="start the version that wrote it, or a newer one",
        )


class DatabaseOlderError(FatalError):
    """An older Headgate wrote a file, and who reads it may not change it."""

    code = "database-older"

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            f"{path} was written by an older Headgate: its tables have version {found}, this one reads {known}",
            hint="start a server of this version on it, which brings it up to date; or read with the older version",
        )


class DatabaseMissingError(FatalError):
    """A file is gone that belongs to events that are there."""

    code = "database-missing"

    def __init__(self, path: Path, known: str) -> None:
        super().__init__(f"{path} is missing, but {known}", hint=f"restore it from a copy; or {_accept(path)}")


def version_of(connection: sqlite3.Connection, path: Path, known: int) -> int:
    """The version of a file's tables; 0 for a new file. Raises DatabaseNewerError above `known`."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > known:
        raise DatabaseNewerError(path, found, known)
    return int(found)


@contextlib.contextmanager
def decoding(path: Path) -> Iterator[None]:
    """DatabaseDamagedError for rows that the block cannot read: SQLite may find whole what nobody has written."""
    try:
        yield
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise DatabaseDamagedError(path, f"the content of a row cannot be read ({error})") from error


def tells_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that a file is not what it wrote."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of it says more of the same
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """SQLite's errors of a damaged file as one that names it. Raises DatabaseDamagedError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if tells_damage(error):
            raise DatabaseDamagedError(path, str(error)) from error
        raise


def examine(data: Path) -> None:
    """Reads all of the files, to find out which one an error of SQLite was about; blocks for seconds.

    Raises DatabaseDamagedError of the first damaged one.
    """
    for path in databases(data):
        if not path.is_file():
            continue
        try:
            with read_only(path) as connection:
                check_integrity(connection, path)
        except sqlite3.OperationalError:
            continue  # busy, or no room for what SQLite keeps beside it
        except sqlite3.DatabaseError as error:
            raise DatabaseDamagedError(path, str(error)) from error


def check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Reads all of a file; DatabaseDamagedError when something in it is wrong, sqlite3.DatabaseError if it cannot."""
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise DatabaseDamagedError(path, " ".join(str(found).split()))


def is_missing(path: Path) -> bool:
    """Whether a file is not there, or has never been written."""
    try:
        return path.stat().st_size == 0
    except FileNotFoundError:
        return True


def databases(data: Path) -> list[Path]:
    """The places of all files in a data directory, whether they are there or not."""
    control, *others = LOSSES
    return [data / control, *(folder / name for folder in sorted(data.glob("dispatcher/[0-9]*")) for name in others)]


def check_commits(path: Path, *, is_at_rest: bool = False) -> None:
    """Looks whether a file has everything that was committed; changes nothing.

    `is_at_rest` says that no process has it open, this one neither: its pages are compared as well, at some 800 MB/s.
    Raises DatabaseMissingError, DatabaseRolledBackError, DatabaseChangedError (a page is not what was written), or
    sqlite3.DatabaseError when the file cannot be read.
    """
    record = read_record(path)  # first: commits of a process that has the file open are then above it
    if record is None:
        if is_at_rest and (found := _commits(path, is_at_rest=is_missing(wal_path(path)))):
            message = "a database has no record of its commits: unless it was restored, it may have lost some"
            _log.warning(message, file=str(record_path(path)), commits=found)
        return
    if is_missing(path) and record.number:
        raise DatabaseMissingError(path, f"{record.number} commits were made to it")
    wal, shared = wal_path(path), path.with_name(f"{path.name}-shm")
    has_log, had_shared = not is_missing(wal), shared.exists()
    found = _commits(path, is_at_rest=is_at_rest and not has_log)
    if is_at_rest and not had_shared:
        shared.unlink(missing_ok=True)  # SQLite made it to read the log
    if found < record.number:
        raise DatabaseRolledBackError(path, found, record.number)
    seal = record.seal
    if not is_at_rest or seal is None:
        return
    if (page := damaged_page(path, seal)) is not None:
        raise DatabaseChangedError(path, page, (page - 1) * seal.page_bytes)


def _commits(path: Path, *, is_at_rest: bool) -> int:
    """The commits that a file counts itself; 0 before the first one."""
    if is_missing(path):
        return 0
    with read_only(path, is_at_rest=is_at_rest) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (TABLE,)).fetchone():
            return 0
        found = connection.execute(f"SELECT number FROM {TABLE}").fetchone()
    return int(found[0]) if found else 0


def settle(path: Path) -> None:
    """Brings the write-ahead log that a killed process has left into its file, and makes a record where there is none.

    No process has the file open. Raises sqlite3.DatabaseError when it cannot be written.
    """
    if is_missing(path) or (is_missing(wal_path(path)) and read_record(path) is not None):
        return
    connection = sqlite3.connect(path, isolation_level=None)
    committer = SqliteCommitter(path)
    try:
        committer.attach(connection)
        committer.begin(connection)
        committer.commit(connection)
    finally:
        committer.detach(connection)


def accept_loss(path: Path) -> None:
    """What a file has now counts as all that was committed; no process has it open. May raise DatabaseDamagedError."""
    record_path(path).unlink(missing_ok=True)
    if is_missing(path):
        return
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            check_integrity(connection, path)
    except sqlite3.DatabaseError as error:
        raise DatabaseDamagedError(path, str(error)) from error


def copy(path: Path, to: Path, *, is_at_rest: bool) -> None:
    """Copies a file at one moment, also one that another process writes; the copy is one file, not synced.

    The file and its directory stay as they are; `to` does not exist. `is_at_rest` says that no process has the file
    open. Raises sqlite3.DatabaseError when it is damaged or busy, that or OSError when there is no room.
    """
    with contextlib.ExitStack() as stack:
        source, wal = path, wal_path(path)
        has_changes = is_at_rest and not is_missing(wal)
        if has_changes:  # of a process that was killed: to read them SQLite would write beside the file
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=to.parent))
            source = Path(folder) / path.name
            shutil.copyfile(path, source)
            shutil.copyfile(wal, source.with_name(wal.name))
        opened = stack.enter_context(read_only(source, is_at_rest=is_at_rest and not has_changes))
        opened.execute(f"PRAGMA busy_timeout = {COPY_BUSY_MS}")
        target = stack.enter_context(contextlib.closing(sqlite3.connect(to)))
        target.execute("PRAGMA synchronous = OFF")
        opened.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")


def write_ahead(connection: sqlite3.Connection) -> None:
    """Gives a database a write-ahead log.

    Of two connections that do it at the same time SQLite refuses one, whatever its busy_timeout: that one tries again,
    for BUSY_TIMEOUT_MS.
    """
    ends = time.monotonic() + BUSY_TIMEOUT_MS / 1_000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
        time.sleep(_BUSY_PAUSE_S)


class StoreFile:
    """A file that one process writes: WAL, a transaction a change. Blocking; one thread at a time.

    The file is made when absent, and by the statements of `schema` what is not there. One with a higher version of the
    tables is refused, and one that has lost commits. With a `clock`, monotonic seconds, one commit every CURSOR_SYNC_S
    is on disk when it returns: after a power cut those since may be gone; None: each is. The committer ends
    transactions; None: SQLite alone does.
    """

    def __init__(
        self,
        path: Path,
        schema: str,
        *,
        version: int = TABLES_VERSION,
        clock: Callable[[], float] | None = None,
        committer: Committer | None = None,
    ) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if committer is None:
            check_commits(path)  # before anything is written: that would take the place of what can still be saved
        self._committer = committer or SqliteCommitter(path, clock)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            found = version_of(self._connection, path, version)
            write_ahead(self._connection)
            (before,) = self._connection.execute("PRAGMA schema_version").fetchone()
            self._connection.executescript(schema)
            if found != version:
                self._connection.execute(f"PRAGMA user_version = {version}")
            self._committer.attach(self._connection)
            (after,) = self._connection.execute("PRAGMA schema_version").fetchone()
            if committer is None and (before, found) != (after, version):
                with self._transaction():
                    pass  # these changes count as a commit
        except BaseException:
            self._connection.close()
            raise

    @property
    def is_synced(self) -> bool:
        """Whether every transaction that ended is durable."""
        return self._committer.is_synced

    def close(self) -> None:
        self._committer.detach(self._connection)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything in the block, or nothing."""
        self._committer.begin(self._connection)
        try:
            yield self._connection
            self._committer.commit(self._connection)
        finally:
            if self._connection.in_transaction:  # an error of the disk may have ended it
                self._connection.execute("ROLLBACK")


class NumberedStore(StoreFile):
    """A file whose `table` gives each row an id that no other one has had: it has AUTOINCREMENT."""

    table: str

    @property
    def last_id(self) -> int:
        """The highest id that was ever given."""
        found = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (self.table,)).fetchone()
        return int(found[0]) if found else 0

    def begin_above(self, last_id: int) -> None:
        """Ids are above this one from now on."""
        last_id = max(self.last_id, last_id)
        with self._transaction() as connection:
            connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (self.table,))
            connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (self.table, last_id))


@contextlib.contextmanager
def read_only(path: Path, *, is_at_rest: bool = False) -> Iterator[sqlite3.Connection]:
    """A file that another process writes; `is_at_rest`: none has it open, and SQLite makes no files beside it."""
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_at_rest else ''}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    with contextlib.closing(connection):
        yield connection
