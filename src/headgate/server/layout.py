"""The layout of the dispatchers' directories: for how many dispatchers they are, and the change to another number.

`dispatcher/layout.json` says how many there are. For another number everything is written anew beside it, synced, and
put in its place by two renames; the first one decides:

    dispatcher   dispatcher.new   dispatcher.old   after a crash, the next start
    ----------   --------------   --------------   ------------------------------------------------
    there        perhaps partly   -                throws the new one away and begins anew
    -            complete         there            puts the new one in its place: it was complete
    there        -                perhaps partly   removes the old one

No process of the server runs meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from headgate.settings import Settings
from headgate.storage.files import PARENT, DispatcherDirectory
from headgate_api.errors import FatalError
from headgate_api.limits import CORES_A_DISPATCHER, DISPATCHERS_MAX

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
    _sync_all(new)
    _sync(data)
    if before is not None:
        current.rename(old)
    new.rename(current)
    _sync(data)
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
        _sync(data)
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


def _sync_all(directory: Path) -> None:
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
