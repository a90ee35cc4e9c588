"""How a transaction of an SQLite file becomes durable: the interface, SQLite's own commit, and the record of commits.

SQLite takes the first frame of a write-ahead log with a wrong checksum for the log's end, and a log that is gone for
none. What was committed behind it is then gone without a word. So each commit counts in a row of the database, and the
number is written to `NAME-commits` beside it once the commit is on disk: a database whose row is below it has lost
commits. An older number, which a power cut may leave, is a weaker check and never a false alarm.

Pages of the database itself have no checksums in SQLite. A checkpoint of all changes writes theirs there (the seal). It
holds while the page with the row, which each commit changes, is the sealed one in the file. Several processes may write
a database: one at a time makes a checkpoint, and says so in the record, as what the others know of pages is old then.
docs/adr/0037-a-start-knows-how-far-it-was-committed.md has the reasons.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import struct
import sys
import threading
import zlib
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from headgate_api import limits
from headgate_api.limits import COMMIT_RECORD_SYNC_S, WAL_FRAMES_MAX

TABLE: Final = "commits"
SCHEMA: Final = f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY CHECK (id = 0), number INTEGER NOT NULL)"
COUNT: Final = f"INSERT INTO {TABLE} VALUES (0, 1) ON CONFLICT DO UPDATE SET number = number + 1 RETURNING number"
SUFFIX: Final = "-commits"
_MAGIC: Final = b"HGCOMMIT"
_NUMBER: Final = struct.Struct("<8sQ")
_CHECKSUM: Final = struct.Struct("<I")
_SLOT_BYTES: Final = 512
"""A number in one sector; two take turns, so that a torn one leaves the one before it."""
_SLOTS: Final = 2
_LAST_AT: Final = _SLOTS * _SLOT_BYTES
_LAST_BYTES: Final = 16
"""Whose checkpoint was the last one that was begun: a random number of its `CommitRecord`."""
_SEAL_AT: Final = 4096
_SEAL: Final = struct.Struct("<8sIIIq")
"""Magic, size of a page, pages, the page with the row, when the file had been changed last; a CRC-32 of each page."""
_WAL_HEADER_BYTES: Final = 32
_WAL_SALTS: Final = slice(16, 24)
"""Frames with other ones are left from before the log began anew."""
_FRAME_HEADER_BYTES: Final = 24
_INDEX_FRAMES_AT: Final = 16
"""Where the index of a write-ahead log (`-shm`) has the number of frames that count."""
_PIECE_BYTES: Final = 1 << 20
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Seal:
    """A CRC-32 of each page of a file after a checkpoint of all changes; `row_page`, from 1, has the row of commits."""

    page_bytes: int
    row_page: int
    changed_ns: int
    checksums: array[int]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the file holds: how many commits are on disk, at least, and the seal; None without one that is whole."""

    number: int
    seal: Seal | None


def record_path(path: Path) -> Path:
    """The record of a database."""
    return path.with_name(path.name + SUFFIX)


def wal_path(path: Path) -> Path:
    """The write-ahead log of a database."""
    return path.with_name(f"{path.name}-wal")


def read_record(path: Path) -> Recorded | None:
    """The record of a database; None where there is none that can be read."""
    try:
        content = record_path(path).read_bytes()
    except FileNotFoundError:
        return None
    slots = (content[at : at + _SLOT_BYTES] for at in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES))
    numbers = [number for slot in slots if (number := _number(slot)) is not None]
    return Recorded(max(numbers), _seal(content[_SEAL_AT:])) if numbers else None


def _number(slot: bytes) -> int | None:
    size = _NUMBER.size
    if len(slot) < size + _CHECKSUM.size or _CHECKSUM.unpack_from(slot, size) != (zlib.crc32(slot[:size]),):
        return None
    magic, number = _NUMBER.unpack_from(slot)
    return int(number) if magic == _MAGIC else None


def _seal(content: bytes) -> Seal | None:
    body, checksum = content[: -_CHECKSUM.size], content[-_CHECKSUM.size :]
    if len(body) < _SEAL.size or _CHECKSUM.unpack(checksum) != (zlib.crc32(body),):
        return None
    magic, page_bytes, pages, row_page, changed_ns = _SEAL.unpack_from(body)
    checksums = array("I", body[_SEAL.size :])
    return Seal(page_bytes, row_page, changed_ns, checksums) if (magic, pages) == (_MAGIC, len(checksums)) else None


def damaged_page(path: Path, seal: Seal) -> int | None:
    """The first page of a database's file that is not what was written, from 1 on; None where the seal is older.

    No process has the file open, which never becomes shorter, but for damage. Pages that its write-ahead log has may be
    others than the sealed ones.
    """
    with path.open("rb") as file:
        found = array("I", _checksums(file.fileno(), seal.page_bytes))
    if len(found) < len(seal.checksums):
        return len(found) + 1
    if found == seal.checksums or found[seal.row_page - 1] != seal.checksums[seal.row_page - 1]:
        return None
    logged = _logged_pages(path, seal.page_bytes)
    for page, checksum in enumerate(seal.checksums, start=1):
        if page not in logged and found[page - 1] != checksum:
            return page
    return None


def _checksums(descriptor: int, page_bytes: int) -> Iterator[int]:
    at = 0
    while piece := os.pread(descriptor, _PIECE_BYTES, at):
        view = memoryview(piece)
        yield from (zlib.crc32(view[start : start + page_bytes]) for start in range(0, len(piece), page_bytes))
        at += len(piece)


def _salts(path: Path) -> bytes:
    """Others after the write-ahead log has begun anew."""
    try:
        with wal_path(path).open("rb") as file:
            return file.read(_WAL_HEADER_BYTES)[_WAL_SALTS]
    except FileNotFoundError:
        return b""


def _logged_pages(path: Path, page_bytes: int) -> set[int]:
    """The pages that a write-ahead log has frames of since it began anew, whether they count or not."""
    try:
        content = memoryview(wal_path(path).read_bytes())
    except FileNotFoundError:
        return set()
    salts, size = content[_WAL_SALTS], _FRAME_HEADER_BYTES + page_bytes
    frames = range(_WAL_HEADER_BYTES, len(content) - _FRAME_HEADER_BYTES + 1, size)
    return {int.from_bytes(content[at : at + 4], "big") for at in frames if content[at + 8 : at + 16] == salts}


class CommitRecord:
    """The record, for who writes the database. Calls come one after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Those of SQLite's files are closed behind the connection: with them go the locks that SQLite has.
        self._record = self._database = self._index = -1
        self._checksums = array("I")
        """Of the pages of the file as of the last seal; empty where that is not known."""
        self._id = os.urandom(_LAST_BYTES)
        self._frames = 0
        self._checkpoint_at = WAL_FRAMES_MAX
        self._timer: threading.Timer | None = None
        self._syncing = threading.Lock()

    def committed(self, number: int) -> None:
        """A commit is on disk. Raises OSError when the record cannot be written; its number stays behind."""
        body = _NUMBER.pack(_MAGIC, number)
        os.pwrite(self._opened(), body + _CHECKSUM.pack(zlib.crc32(body)), number % _SLOTS * _SLOT_BYTES)
        if self._timer is None:
            self._timer = threading.Timer(COMMIT_RECORD_SYNC_S, self._sync)
            self._timer.daemon = True
            self._timer.start()

    def _opened(self) -> int:
        if self._record < 0:
            self._record = os.open(record_path(self._path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._record

    def _sync(self) -> None:
        self._timer = None  # before the sync: what is written from here on has another one
        with self._syncing, contextlib.suppress(OSError):  # an older number is a weaker check
            if self._record >= 0:
                os.fdatasync(self._record)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the write-ahead log has become large."""
        if self._index < 0:
            self._index = os.open(self._path.with_name(f"{self._path.name}-shm"), os.O_RDONLY | os.O_CLOEXEC)
        frames = int.from_bytes(os.pread(self._index, 4, _INDEX_FRAMES_AT), sys.byteorder)
        if frames < self._frames:  # it began anew
            self._checkpoint_at = WAL_FRAMES_MAX
        self._frames = frames
        return frames >= self._checkpoint_at

    def checkpoint(self, connection: sqlite3.Connection) -> None:
        """Brings the write-ahead log into the database's file, as far as no reader needs it, and seals the pages.

        The connection is the one that writes, outside of a transaction. After an OSError, of the record, there is no
        seal; sqlite3.OperationalError is that of the file.
        """
        self._checkpoint_at = self._frames + WAL_FRAMES_MAX  # also after an error: not with each commit
        if self._database < 0:
            self._database = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._opened(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process is at it, which waits for nobody either
        try:  # nobody else changes the file until its pages are sealed
            self._bring_in(connection)
        finally:
            fcntl.flock(self._record, fcntl.LOCK_UN)

    def _bring_in(self, connection: sqlite3.Connection) -> None:
        if os.pread(self._record, _LAST_BYTES, _LAST_AT) != self._id:
            self._checksums = self._sealed()
            os.pwrite(self._record, self._id, _LAST_AT)
        salts = _salts(self._path)
        busy, frames, done = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()  # waits for nobody
        row = connection.execute(f"SELECT number FROM {TABLE}").fetchone()
        if row is None or busy or frames != done:
            return  # a reader is at an older moment: the seal before this one holds as far as it did
        self.committed(row[0])
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        (row_page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (TABLE,)).fetchone()
        logged = _logged_pages(self._path, page_bytes)
        if _salts(self._path) != salts:  # another process has begun the log anew: which pages it had is not known
            self._checksums = array("I")
        self._seal(page_bytes, row_page, logged)

    def _sealed(self) -> array[int]:
        """The checksums of the last seal where nobody has changed the file since, else none."""
        found, now = read_record(self._path), os.fstat(self._database)
        seal = found.seal if found is not None else None
        if seal is None or (now.st_mtime_ns, now.st_size) != (seal.changed_ns, seal.page_bytes * len(seal.checksums)):
            return array("I")
        return seal.checksums

    def _seal(self, page_bytes: int, row_page: int, changed: Collection[int]) -> None:
        now = os.fstat(self._database)
        pages, known = now.st_size // page_bytes, self._checksums
        if known:
            del known[pages:]
            known.extend([0] * (pages - len(known)))
            for page in changed:
                if page <= pages:
                    content = os.pread(self._database, page_bytes, (page - 1) * page_bytes)
                    known[page - 1] = zlib.crc32(content)
        else:
            known = self._checksums = array("I", _checksums(self._database, page_bytes))
        body = _SEAL.pack(_MAGIC, page_bytes, pages, row_page, now.st_mtime_ns) + known.tobytes()
        content = body + _CHECKSUM.pack(zlib.crc32(body))
        os.pwrite(self._record, content, _SEAL_AT)
        os.ftruncate(self._record, _SEAL_AT + len(content))

    def close(self) -> None:
        """Lets the files go, behind the database's connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._sync()
        with self._syncing:
            for descriptor in (self._record, self._database, self._index):
                if descriptor >= 0:
                    os.close(descriptor)
            self._record = self._database = self._index = -1


class Committer(Protocol):
    """Begins and ends the transactions of the one connection that writes; called under the database's write lock.

    `SqliteCommitter` is the embedded one. In a deployment on Kafka, `backend/kafka/objects.py` has one for objects,
    whose store is held to the same promises with both (`tests/backend/objects_contract.py`), and
    `backend/kafka/changelog.py` one for what a dispatcher keeps.
    """

    @property
    def is_synced(self) -> bool:
        """Whether every transaction that ended is durable."""

    def attach(self, connection: sqlite3.Connection) -> None:
        """Takes the connection that writes; called once, outside of a transaction."""

    def begin(self, connection: sqlite3.Connection) -> None:
        """Opens a transaction that sees every earlier one.

        Raises UnavailableError when this process may not write now; no transaction is open then.
        """

    def commit(self, connection: sqlite3.Connection) -> None:
        """Makes everything that the open transaction changed durable, as a whole, and ends the transaction.

        After an error the caller rolls back what is still open: this process then reads nothing of it. The message of
        an UnavailableError says when it is not known whether the changes are stored.
        """

    def detach(self, connection: sqlite3.Connection) -> None:
        """Closes the connection that writes; no transaction is open."""


class SqliteCommitter:
    """SQLite alone: durable when its file is synced. It counts commits, so that a start sees if some are gone.

    Whoever makes this has looked by `sqlite.check_commits` whether commits are gone. With a `clock`, monotonic seconds,
    one commit every CURSOR_SYNC_S is on disk when it returns; None: each is.
    """

    def __init__(self, path: Path, clock: Callable[[], float] | None = None) -> None:
        self._path = path
        self._clock = clock
        self._record = CommitRecord(path)
        self._due_s = 0.0
        self._syncs = True
        self._has_written = False
        self.is_synced = True

    def attach(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut, not only a crash
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # a checkpoint has its seal
        connection.execute(SCHEMA)

    def begin(self, connection: sqlite3.Connection) -> None:
        syncs = self._clock is None or self._clock() >= self._due_s
        if syncs is not self._syncs:
            connection.execute(f"PRAGMA synchronous = {'FULL' if syncs else 'NORMAL'}")
            self._syncs = syncs
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        (number,) = connection.execute(COUNT).fetchone()
        connection.execute("COMMIT")
        self._has_written, self.is_synced = True, self._syncs
        try:
            if self._syncs:
                self._due_s = self._clock() + limits.CURSOR_SYNC_S if self._clock is not None else 0.0
                self._record.committed(number)
            if self._record.wants_checkpoint:
                self._record.checkpoint(connection)
        except (OSError, sqlite3.OperationalError) as error:  # it is committed
            _log.warning("the record of commits cannot be written", file=str(self._path), error=str(error))

    def detach(self, connection: sqlite3.Connection) -> None:
        try:
            if self._has_written:
                self._record.checkpoint(connection)
        except (OSError, sqlite3.OperationalError) as error:  # the next start does it
            _log.warning("the write-ahead log stays", file=str(self._path), error=str(error))
        finally:
            connection.close()
            self._record.close()
