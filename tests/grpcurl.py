"""The real grpcurl, which Go builds once below `build/`, in the version that `tests/fixtures/grpcurl/go.sum` fixes."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

from tests.support import REPOSITORY, executable

_SOURCE = REPOSITORY / "tests" / "fixtures" / "grpcurl"
_BUILT = REPOSITORY / "build" / "grpcurl" / "grpcurl"
_BUILD_S_MAX = 600


def grpcurl() -> Path:
    """The program."""
    go = executable("go")
    _BUILT.parent.mkdir(parents=True, exist_ok=True)
    with (_BUILT.parent / ".lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _BUILT.exists() or _BUILT.stat().st_mtime < (_SOURCE / "go.sum").stat().st_mtime:
            package = "github.com/fullstorydev/grpcurl/cmd/grpcurl"
            command = [go, "build", "-mod=readonly", "-trimpath", "-o", str(_BUILT), package]
            subprocess.run(command, cwd=_SOURCE, check=True, timeout=_BUILD_S_MAX)
    return _BUILT
