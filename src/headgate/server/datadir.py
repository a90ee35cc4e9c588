"""The data directory of a running server: locked for it alone, readable by its user alone, with an empty `run/`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from headgate.observe import logs
from headgate.server.stored_formats import VERSION, check_formats, tell_version
from headgate.settings import Settings
from headgate.storage.commit import SUFFIX
from headgate.storage.files import PARENT, DispatcherDirectory, private_files
from headgate_api.errors import FatalError, HeadgateError, InvalidInputError, UnavailableError
from headgate_api.limits import CORES_A_DISPATCHER, DISPATCHERS_MAX

if TYPE_CHECKING:
    from headgate.backend.embedded_state import EmbeddedState


# --- layout ---------------------------------------------------------------------------------------
# `dispatcher/layout.json` says how many there are. For another number everything is written anew beside it, synced, and
# put in its place by two renames; the first one decides:
#
#     dispatcher   dispatcher.new   dispatcher.old   after a crash, the next start
#     ----------   --------------   --------------   ------------------------------------------------
#     there        perhaps partly   -                throws the new one away and begins anew
#     -            complete         there            puts the new one in its place: it was complete
#     there        -                perhaps partly   removes the old one
#
# No process of the server runs meanwhile.

LAYOUT: Final = "layout.json"
"""In `dispatcher/`: how many there are."""
_log = structlog.get_logger(__name__)

Rewrite = Callable[[tuple[DispatcherDirectory, ...], tuple[DispatcherDirectory, ...]], None]
"""Writes what the first ones hold into the second ones, which are empty."""


class LayoutError(FatalError):
    """The dispatchers' directories are not as this server leaves them."""

    code = "layout"


class _Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dispatchers: int


def settled(settings: Settings) -> Settings:
    """Settings with the number of dispatchers: as asked for, else as the directories are, else by the cores."""
    if "dispatchers" in settings.model_fields_set:
        return settings
    _finish(settings.data)
    number = _stored(settings.data / PARENT) or by_cores(os.cpu_count() or 1)
    return settings.model_copy(update={"dispatchers": number})


def stored_directories(data: Path) -> tuple[DispatcherDirectory, ...]:
    """Those of the dispatchers that there were, unchanged; LayoutError when they are not as a server leaves them."""
    current = data / PARENT
    if (data / f"{PARENT}.old").exists() and not current.exists():
        raise LayoutError(
            f"a change of the number of dispatchers of {data} has not ended",
            hint="start the server once, and stop it when it is ready",
        )
    return tuple(DispatcherDirectory(current / str(number)) for number in range(_stored(current) or 0))


def by_cores(cores: int) -> int:
    """How many dispatchers a new server has."""
    return max(1, min(DISPATCHERS_MAX, cores // CORES_A_DISPATCHER))


def arrange(data: Path, dispatchers: int, rewrite: Rewrite) -> None:
    """Make the directories be for so many dispatchers; may be broken off at any instant and called again."""
    current, new, old = _finish(data)
    before = _stored(current)
    if before == dispatchers:
        return
    directories = tuple(DispatcherDirectory(new / str(number)) for number in range(dispatchers))
    for directory in directories:
        directory.path.mkdir(parents=True)
    if before is not None:
        _log.info("writing anew for another number of dispatchers", before=before, after=dispatchers)
        rewrite(tuple(DispatcherDirectory(current / str(number)) for number in range(before)), directories)
    (new / LAYOUT).write_bytes(msgspec.json.encode(_Layout(dispatchers)))
    for path in (*new.rglob("*"), new, data):
        sync(path)
    if before is not None:
        current.rename(old)
    new.rename(current)
    sync(data)
    shutil.rmtree(old, ignore_errors=True)


def _finish(data: Path) -> tuple[Path, Path, Path]:
    """Bring a change to its end that was broken off; returns the current, the new and the old directory."""
    current, new, old = data / PARENT, data / f"{PARENT}.new", data / f"{PARENT}.old"
    if not current.exists() and old.exists():
        if not new.exists():
            raise LayoutError(
                f"{current} is missing, and {old} is there",
                hint=f"if nobody moved it on purpose, type: mv {old} {current}",
            )
        new.rename(current)
        sync(data)
    for left in (new, old):
        if left.exists():
            shutil.rmtree(left)
    return current, new, old


def _stored(current: Path) -> int | None:
    """For how many dispatchers the directories are; None when there are none. LayoutError when that is unclear."""
    if not current.exists():
        return None
    path = current / LAYOUT
    try:
        number = msgspec.json.decode(path.read_bytes(), type=_Layout).dispatchers
    except (OSError, msgspec.DecodeError) as error:
        raise LayoutError(f"{path} cannot be read: {error}", hint=f"restore {current} from a copy") from error
    if not 1 <= number <= DISPATCHERS_MAX:
        raise LayoutError(f"{path} says {number} dispatchers", hint=f"restore {current} from a copy")
    missing = [str(current / str(one)) for one in range(number) if not (current / str(one)).is_dir()]
    if missing:
        raise LayoutError(f"{' and '.join(missing)} are missing, {path} names them", hint="restore them from a copy")
    return number


def sync(path: Path) -> None:
    """Makes a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the directory of a server that runs ----------------------------------------------------------

_OTHERS: Final = 0o077
RESTORING: Final = "restoring"
"""Where `headgate restore` writes before anything is in its place."""
_ENTRIES: Final = (
    "log",
    "dispatcher",
    "dispatcher.new",
    "dispatcher.old",
    "run",
    "lock",
    logs.FILE,
    f"{logs.FILE}.1",
    "instance",
    VERSION,
    RESTORING,
)
_DATABASE_SUFFIXES: Final = (".db", ".db-wal", ".db-shm", f".db{SUFFIX}")


class DataDirectoryError(HeadgateError):
    """The data directory cannot be used by this user."""

    code = "data-directory"


class DataDirectoryFullError(DataDirectoryError):
    """There is no room in the data directory, which may pass."""

    retriable = True


@contextlib.contextmanager
def owned(settings: Settings) -> Iterator[None]:
    """Holds the data directory for this server; what is made in the block is for its user only."""
    with private_files(), contextlib.ExitStack() as stack:
        try:
            settings.data.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(settings.data))
            if (settings.data / RESTORING).exists():
                raise DataDirectoryError(
                    f"a restore into {settings.data} was broken off",
                    hint="empty the directory, and restore the backup again",
                )
            check_formats(settings.data)
            tell_version(settings.data)
            shutil.rmtree(settings.run_directory, ignore_errors=True)
            _close_to_others(settings.data)
            settings.metrics_directory.mkdir(parents=True)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (DataDirectoryFullError if full else DataDirectoryError)(
                f"the data directory {settings.data} cannot be used: {error.strerror or error}",
                hint="give this user a directory it may write, with room on its disk: --data DIRECTORY",
            ) from error
        yield


def check_objects(data: Path) -> None:
    """Refuses what is no data directory of a server."""
    if not (data / "control.db").exists():
        raise InvalidInputError(
            f"{data} is no data directory of a server: there is no control.db", hint="name it with --data"
        )


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """Keeps every server from a data directory that is there; UnavailableError when a server has it."""
    with (data / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnavailableError(
                f"another server uses the data directory {data}", hint="choose another with --data"
            ) from error
        yield


def _close_to_others(data: Path) -> None:
    """Takes from others what they may do here, with one warning; what is not this server's stays as it is."""
    foreign = [path.name for path in data.iterdir() if not _is_ours(path)]
    wide = [] if foreign else _narrowed(data.resolve())
    for path in data.iterdir():
        if _is_ours(path):
            wide += _narrowed(path)
            if path.is_dir() and not path.is_symlink():
                wide += [one for inner in path.rglob("*") for one in _narrowed(inner)]
    if wide:
        _log.warning("files in the data directory were open to others, closed", count=len(wide), first=str(wide[0]))
    if foreign and stat.S_IMODE(data.stat().st_mode) & _OTHERS:
        _log.warning("the data directory is open to others, and stays so: it holds other files", first=foreign[0])


def _is_ours(path: Path) -> bool:
    return path.name in _ENTRIES or path.name.endswith(_DATABASE_SUFFIXES)


def _narrowed(path: Path) -> list[Path]:
    """The path, if its mode had to be changed; a file of another user, or one that has just gone, is left."""
    try:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not mode & _OTHERS or path.is_symlink():
            return []
        path.chmod(mode & ~_OTHERS)
    except (PermissionError, FileNotFoundError):
        return []
    return [path]


# --- the directory of a server that does not run --------------------------------------------------
# Of a server without Kafka, for who reads all of it, or writes it anew.


@contextlib.contextmanager
def stopped_server(data: Path) -> Iterator[EmbeddedState]:
    """What it has; no server can be started on it while the block lasts."""
    from headgate.backend.embedded_state import EmbeddedState  # imports that no start needs

    check_objects(data)
    with locked(data):
        yield EmbeddedState(data, stored_directories(data))


@contextlib.contextmanager
def new_directory(data: Path) -> Iterator[DispatcherDirectory]:
    """An empty directory that a server with one dispatcher will have; empty again where the block fails."""
    if data.exists() and any(data.iterdir()):
        raise InvalidInputError(f"{data} is not empty", hint="name a new directory with --data")
    with private_files():
        data.mkdir(parents=True, exist_ok=True)
        with locked(data):
            try:
                arrange(data, 1, lambda *_: None)
                yield DispatcherDirectory.of(data, 0)
                os.sync()
            except BaseException:
                for path in data.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                raise
