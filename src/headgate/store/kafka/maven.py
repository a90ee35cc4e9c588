"""Jars of a pom, fetched by Maven once and kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from headgate.errors import UnavailableError


def cache_directory() -> Path:
    """Where fetched jars are kept: `headgate` below the user's cache directory (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "headgate"


def jars(pom: Path) -> Path:
    """The folder with every jar that a pom names or needs; fetched at the first call, by one process at a time.

    A changed pom is another folder. Maven compares the checksum of everything that it fetches.

    Raises:
        UnavailableError: There is no Maven, or it cannot fetch them.
    """
    cache = cache_directory()
    folder = cache / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{pom.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as made:
                _fetch(pom, Path(made))
                (Path(made) / "jars").rename(folder)
    return folder


def _fetch(pom: Path, scratch: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError("Maven is not installed", hint="apt-get install maven")
    shutil.copy(pom, scratch / "pom.xml")
    done = subprocess.run(
        [
            *(maven, "--batch-mode", "--quiet", "--strict-checksums", "--file", scratch / "pom.xml"),
            *("dependency:copy-dependencies", f"-DoutputDirectory={scratch / 'jars'}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnavailableError(f"Maven cannot fetch what {pom.name} names:\n{done.stdout.strip()[-2_000:]}")
