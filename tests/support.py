"""What tests of several rooms share."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


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
