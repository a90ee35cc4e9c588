"""Programs that Go builds once below `build/`, in the versions that `tests/fixtures/NAME/go.sum` fixes."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

from tests.support import REPOSITORY, executable

_BUILD_S_MAX = 900


def grpcurl() -> Path:
    """The real grpcurl."""
    return _built("grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl")


def kn() -> Path:
    """The real kn, Knative's command."""
    return _built("kn", "knative.dev/client/cmd/kn")


def helm() -> Path:
    """The real helm."""
    return _built("helm", "helm.sh/helm/v3/cmd/helm")


def _built(name: str, package: str) -> Path:
    go, source = executable("go"), REPOSITORY / "tests" / "fixtures" / name
    program = REPOSITORY / "build" / name / name
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / ".lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() or program.stat().st_mtime < (source / "go.sum").stat().st_mtime:
            command = [go, "build", "-mod=readonly", "-trimpath", "-o", str(program), package]
            subprocess.run(command, cwd=source, check=True, timeout=_BUILD_S_MAX)
    return program
