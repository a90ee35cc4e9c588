"""What tests of several rooms share."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import pytest

from headgate.auth.static_tokens import StaticToken, digest_of, line_of
from headgate.auth.user import authenticated

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parent.parent
DEPTHS = ("gate", "all", "nightly")
DEPTH = os.environ.get("HEADGATE_TEST_DEPTH", "gate")
"""How often tests repeat what can be repeated: as often as `make test`, `make test-all` or `make nightly` do."""
SEED = int(os.environ.get("HEADGATE_TEST_SEED", "0"))
"""What everything random comes from, to repeat a run that failed; 0 where each test has its own."""
WAIT_S_MAX = 120.0
"""What does not come true by then is not going to, on a busy machine either."""


def times(*counts: int) -> int:
    """How often to repeat something: `counts` are those of `DEPTHS`; a last one that is missing is the one before."""
    assert DEPTH in DEPTHS, f"HEADGATE_TEST_DEPTH is one of {', '.join(DEPTHS)}"
    return counts[min(DEPTHS.index(DEPTH), len(counts) - 1)]


def examples(count: int) -> int:
    """How many examples a property tries: `count`, and in the gate at most 30."""
    return times(min(count, 30), count)


def token_line(text: str, user: str, *groups: str) -> str:
    """The line of a token in the file that a server reads."""
    return line_of(StaticToken(digest_of(text.encode()), authenticated(user, groups)))


def eventually(holds: Callable[[], T], what: str | Callable[[], object] = "", *, seconds: float = WAIT_S_MAX) -> T:
    """What `holds` gives, as soon as that is something; fails when it is not within `seconds`.

    `what` is named in the error, or finds out what to name; otherwise the error shows the code of `holds`.
    """
    deadline, pause = time.monotonic() + seconds, 0.02
    while not (found := holds()):
        assert time.monotonic() < deadline, _missed(holds, what, seconds)
        time.sleep(pause)
        pause = min(1.3 * pause, 0.25)  # who asks all the time takes the processor from what is waited for
    return found


async def until(holds: Callable[[], T], what: str | Callable[[], object] = "", *, seconds: float = WAIT_S_MAX) -> T:
    """Like `eventually`, for a coroutine."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, _missed(holds, what, seconds)
        await asyncio.sleep(0.005)
    return found


_LOOP: Final = asyncio.Runner()


def on_one_loop(work: Coroutine[Any, Any, T], *, seconds: float = WAIT_S_MAX) -> T:
    """Does it on an event loop that stays open for the tests that come, for those that use gRPC.

    gRPC hears of all loops of a process in one place. What still comes for one that is closed is an error there, and
    what waits behind it is late.
    """
    return _LOOP.run(asyncio.wait_for(work, seconds))


def _missed(holds: Callable[[], object], what: str | Callable[[], object], seconds: float) -> str:
    """That something did not come true, by its name."""
    named = what() if callable(what) else what
    if not named:
        code = getattr(holds, "__name__", "") == "<lambda>"
        named = inspect.getsource(holds).strip() if code else getattr(holds, "__qualname__", repr(holds))
    return f"not within {seconds:g} s: {named}"


def missing(what: str) -> NoReturn:
    """Skips the test, because the machine lacks `what`; in CI (`CI=true`) the test fails instead."""
    if os.environ.get("CI", "").lower() in {"true", "1"}:
        pytest.fail(f"CI must have it: {what}", pytrace=False)
    pytest.skip(what)


def conformance(name: str) -> Path:
    """The public conformance cases `name`, which lie beside the repository and are used in place.

    HEADGATE_SHARED names another folder that holds `conformance/`.
    """
    shared = Path(os.environ.get("HEADGATE_SHARED", REPOSITORY.parent / "shared"))
    path = shared / "conformance" / name
    if not path.is_file():
        missing(f"conformance cases not found: {path} (set HEADGATE_SHARED to the folder that holds conformance/)")
    return path


def executable(name: str) -> str:
    """The path of a program of the machine."""
    return shutil.which(name) or missing(f"{name} is not installed")


@contextlib.contextmanager
def small_disk(mount: Path, kb: int) -> Iterator[Path]:
    """A file system of `kb` kB at `mount`, which root can make."""
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kb}k", "tmpfs", str(mount)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"mounting a tmpfs is not allowed here: {done.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)
