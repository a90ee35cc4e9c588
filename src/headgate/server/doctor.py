"""What `headgate doctor` looks at: the machine under a server, each thing with a verdict and what to do."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from headgate.match.requirements import check_java, connector_jar
from headgate.server import listening
from headgate.server.stored_formats import check_formats, is_in_use, last_version
from headgate.settings import Settings
from headgate.storage import sqlite
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.limits import ATTEMPTS_MAX, CONNECTIONS_MAX

MEMORY_BYTES_MIN: Final = 2 << 30
"""A server without work takes 1.5 GB."""
FREE_BYTES_MIN: Final = 5 << 30
"""Room for an hour of 1,000 events/s of 1 kB, twice: as events and as matches."""
SYNC_MS_SLOW: Final = 20.0
"""Every 202 waits for one: beyond this, producers notice."""
FORGETTING_FILESYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
"""They keep files in memory: nothing stays over a loss of power."""
_SYNCS: Final = 100
_SYNC_BYTES: Final = 4096
_FILES_WANTED: Final = 2 * max(CONNECTIONS_MAX, ATTEMPTS_MAX)
_CLOCK_UNSYNCHRONISED: Final = 5  # TIME_ERROR of adjtimex(2)
_TIMEX_BYTES: Final = 512  # more than `struct timex` takes
_GIB: Final = 1 << 30


class CheckVerdict(StrEnum):
    """What a finding means for a server."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """What was found of one thing: with a FAILURE a server does not start, or does not keep its promises."""

    check: str
    verdict: CheckVerdict
    message: str
    hint: str = ""


def _seen(check: str, message: str, warning: str = "") -> MachineCheck:
    return MachineCheck(check, CheckVerdict.WARNING if warning else CheckVerdict.OK, message, warning)


def _failure(check: str, message: str, hint: str) -> MachineCheck:
    return MachineCheck(check, CheckVerdict.FAILURE, message, hint)


def findings(settings: Settings) -> Iterator[MachineCheck]:
    """Looks at everything, one after the other; changes nothing but a file of its own in the data directory."""
    yield _seen("python", sys.version.split()[0])
    yield _unless_error("java", lambda: f"Java {check_java()}")
    yield _unless_error("connector", lambda: str(connector_jar().name))
    yield _memory()
    yield _files()
    place = _existing(settings.data)
    yield _room(place)
    yield _disk(place)
    data = _unless_error("data", lambda: _data(settings.data))
    runs = is_in_use(settings.data)
    yield data
    if data.verdict is CheckVerdict.OK:
        yield _unless_error("databases", lambda: _databases(settings.data, runs))
    with contextlib.ExitStack() as held:  # all at the same time: one address given twice is taken, too
        for one in listening.addresses_of(settings):
            yield _port(one.option, one.host, one.port, runs, held)
    yield _clock()


def _unless_error(check: str, look: Callable[[], str]) -> MachineCheck:
    try:
        return _seen(check, look())
    except HeadgateError as error:
        return _failure(check, str(error), error.hint)
    except OSError as error:
        return _failure(check, f"cannot be read: {error}", "run headgate doctor as the server's user")


def _data(data: Path) -> str:
    path = data.absolute()
    there = next(one for one in (path, *path.parents) if os.path.lexists(one))
    if not there.is_dir():
        raise InvalidInputError(f"{there} is no directory", hint="choose another one with --data")
    check_formats(data)
    if not (data / "control.db").exists():
        return f"{data} is new"
    return f"{data} was last used by Headgate {last_version(data) or '(not known)'}"


def _databases(data: Path, runs: bool) -> str:
    there = 0
    for path in sqlite.databases(data):
        try:
            with sqlite.damage_named(path):
                sqlite.check_commits(path, is_at_rest=not runs)
        except sqlite3.OperationalError as error:
            raise OSError(f"{path}: {error}") from error
        there += not sqlite.is_missing(path)
    return f"{there} have everything that was committed to them"


def _memory() -> MachineCheck:
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    hint = f"a server takes 1.5 GB without work: give it {MEMORY_BYTES_MIN // _GIB} GiB"
    return _seen("memory", f"{has / _GIB:.1f} GiB", hint if has < MEMORY_BYTES_MIN else "")


def _files() -> MachineCheck:
    """A process raises its own limit up to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= _FILES_WANTED:
        return _seen("open files", "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}")
    hint = f"for {CONNECTIONS_MAX:,} connections: ulimit -Hn {_FILES_WANTED}, or LimitNOFILE={_FILES_WANTED} of systemd"
    return _seen("open files", f"{hard:,} at most", hint)


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next((one for one in (path, *path.parents) if os.path.isdir(one)), Path("/"))  # noqa: PTH112 - no error


def _room(place: Path) -> MachineCheck:
    free = shutil.disk_usage(place).free
    hint = f"give it {FREE_BYTES_MIN // _GIB} GiB or more, or choose another disk with --data"
    return _seen("disk space", f"{free / _GIB:.1f} GiB free at {place}", hint if free < FREE_BYTES_MIN else "")


def _disk(place: Path) -> MachineCheck:
    try:
        median_ms = _sync_ms(place)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "make room there, or" if full else "give this user a directory it may write, or"
        hint = f"{hint} choose another one with --data"
        return _failure("fdatasync", f"cannot write in {place}: {error.strerror or error}", hint)
    hint = ""
    if median_ms > SYNC_MS_SLOW:
        hint = "every 202 waits for one: choose a faster disk with --data"
    elif (kind := filesystem_of(place)) in FORGETTING_FILESYSTEMS:
        hint = f"{place} is on a {kind}, which loses all events with the power: choose a disk with --data"
    return _seen("fdatasync", f"{median_ms:.2f} ms", hint)


def filesystem_of(place: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of the file system that holds a directory, "" for unknown; `mounts` is in the format of fstab(5)."""
    try:
        fields = [line.split(" ") for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    points = [(Path(_unescaped(point)), kind) for _, point, kind, *_ in fields]
    above = [(point, kind) for point, kind in points if place.resolve().is_relative_to(point)]
    return max(enumerate(above), key=lambda one: (len(one[1][0].parts), one[0]))[1][1] if above else ""


def _unescaped(text: str) -> str:
    """A mount point has space, tab, newline and backslash as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _sync_ms(place: Path) -> float:
    """The median of some writes with fdatasync, milliseconds. Raises OSError."""
    took: list[float] = []
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        for _ in range(_SYNCS):
            started = time.monotonic()
            file.write(bytes(_SYNC_BYTES))
            os.fdatasync(file.fileno())
            took.append(time.monotonic() - started)
    return statistics.median(took) * 1000


def _port(option: str, host: str, port: int, runs: bool, held: contextlib.ExitStack) -> MachineCheck:
    try:
        held.callback(listening.close, listening.bind(host, port, option, listens=True))
    except listening.AddressError as error:
        if runs:
            return _seen(option, f"{host}:{port} is taken, and the server of this data directory runs")
        return _failure(option, str(error), error.hint)
    return _seen(option, f"{host}:{port} is free")


def _clock() -> MachineCheck:
    """Retention and `seek` go by it."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):  # another system than Linux
        state = -1
    if state == _CLOCK_UNSYNCHRONISED:
        return _seen(
            "clock", "follows no time server", "let the machine follow a time server: chrony, systemd-timesyncd"
        )
    return _seen("clock", "the system does not say" if state < 0 else "follows a time server")
