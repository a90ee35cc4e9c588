"""The versions of what a data directory holds: read without a change, and refused where a newer Headgate wrote it."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.log.errors import NewerLogError
from headgate.log.format import SEGMENT_FIXED_BYTES, SEGMENT_VERSION, segment_version
from headgate.log.recovery import list_segments
from headgate.objects.store.schema import MIGRATIONS
from headgate.storage import sqlite
from headgate.storage.files import replace_whole
from headgate_api import __version__

VERSION: Final = "version"
"""In a data directory: the version of the Headgate that used it last."""
_CONTROL: Final = "control.db"
_SQLITE: Final = b"SQLite format 3\0"
_USER_VERSION: Final = slice(60, 64)
"""Where a file of SQLite has its `user_version`, big-endian."""
_VERSION_CHARS_MAX: Final = 64
_COPIES_OF_CONTROL: Final = 3
"""Of control.db, while it is written anew: the file, its log of changes, and room for plans that have grown."""


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """The version of one file, or of the files of one partition; `found` is 0 for a file that nobody has written."""

    part: str
    found: int
    known: int

    @property
    def is_newer(self) -> bool:
        return self.found > self.known

    @property
    def is_older(self) -> bool:
        return 0 < self.found < self.known


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """What the first start of this version would do with a data directory; `written_by` is empty where not known.

    Of the `plans`, compiled filters, `stale_plans` are compiled anew; `needed_bytes` is the free disk that it takes.
    """

    written_by: str
    formats: tuple[StoredFormat, ...]
    plans: int
    stale_plans: int
    needed_bytes: int
    free_bytes: int

    @property
    def is_possible(self) -> bool:
        return not any(one.is_newer for one in self.formats) and self.needed_bytes <= self.free_bytes


def formats(data: Path) -> Iterator[StoredFormat]:
    """The versions of all parts of a data directory, also of a server that runs; what is unreadable is left out."""
    for path in (data / _CONTROL, *sorted(data.glob("dispatcher/*/*.db"))):
        known = len(MIGRATIONS) if path.name == _CONTROL else sqlite.TABLES_VERSION
        if (version := _database_version(path)) is not None:
            yield StoredFormat(path.relative_to(data).as_posix(), version, known)
    for folder in (*sorted(data.glob("log/[0-9]*")), *sorted(data.glob("dispatcher/*/outbox"))):
        for _, path in list_segments(folder)[-1:]:
            if (version := segment_version(_head(path, SEGMENT_FIXED_BYTES))) is not None:
                yield StoredFormat(folder.relative_to(data).as_posix(), version, SEGMENT_VERSION)


def check_formats(data: Path) -> None:
    """Refuses what a newer Headgate wrote."""
    for one in formats(data):
        if one.is_newer and one.part.endswith(".db"):
            raise sqlite.DatabaseNewerError(data / one.part, one.found, one.known, by=last_version(data))
        if one.is_newer:
            raise NewerLogError(data / one.part, f"its segments have version {one.found}, this one knows {one.known}")


def plan_upgrade(data: Path) -> UpgradePlan:
    """What the first start of this version would do; changes nothing, and a server may run on it.

    sqlite3.DatabaseError: control.db cannot be read; OSError: no room for a copy of it.
    """
    found = tuple(formats(data))
    control = next((one for one in found if one.part == _CONTROL), None)
    plans = stale = 0
    if control is not None and 0 < control.found <= control.known:
        plans, stale = _plans(data / _CONTROL)
    changes = bool(stale) or any(one.is_older for one in found)
    size = (data / _CONTROL).stat().st_size if changes else 0
    return UpgradePlan(last_version(data), found, plans, stale, _COPIES_OF_CONTROL * size, shutil.disk_usage(data).free)


def last_version(data: Path) -> str:
    """The version of the Headgate that used a data directory last; empty when that is not known."""
    try:
        text = (data / VERSION).read_text(encoding="ascii")[:_VERSION_CHARS_MAX].strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if text.isprintable() else ""


def tell_version(data: Path) -> None:
    """Writes down that this version uses a data directory; OSError when the disk does not take it."""
    if last_version(data) != __version__:
        replace_whole(data / VERSION, f"{__version__}\n".encode("ascii"))


def is_in_use(data: Path) -> bool:
    """Whether a server has the data directory."""
    try:
        with (data / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _database_version(path: Path) -> int | None:
    header = _head(path, _USER_VERSION.stop)
    return int.from_bytes(header[_USER_VERSION], "big") if header.startswith(_SQLITE) else None


def _head(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def _plans(control: Path) -> tuple[int, int]:
    """How many filters are compiled, and how many of them by another compiler; read from a copy."""
    # Here: the supervisor looks at versions alone, and would keep the compiler in memory for as long as it runs.
    from headgate.objects.store.plans import DUE, filter_compiler

    with tempfile.TemporaryDirectory(prefix="headgate-upgrade-") as folder:
        copy = Path(folder) / _CONTROL
        sqlite.copy(control, copy, is_at_rest=not is_in_use(control.parent))
        with sqlite.read_only(copy, is_at_rest=True) as connection:
            (count,) = connection.execute("SELECT count(*) FROM targets").fetchone()
            columns = {row[1] for row in connection.execute("PRAGMA table_info(targets)")}
            if "cost" not in columns:  # of a version that did not know it: all are compiled anew
                return count, count
            query = f"SELECT count(*) FROM targets WHERE {DUE}"
            (stale,) = connection.execute(query, (filter_compiler().version,)).fetchone()
    return count, stale
