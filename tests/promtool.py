"""Prometheus' own promtool: that of the machine, or what `scripts/ensure.sh` keeps in the user's cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from headgate.backend.kafka.spark_jars import cache_directory
from tests.support import missing


def promtool(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs it; the caller looks at its exit status."""
    cached = cache_directory() / "promtool"
    program = shutil.which("promtool") or (str(cached) if cached.is_file() else None)
    if program is None:
        missing("promtool is not installed: scripts/ensure.sh promtool")
    command = [program, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
