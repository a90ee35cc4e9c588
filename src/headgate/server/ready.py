"""Which parts work now? One file per process under run/, written when it is ready, removed when it is not."""

from __future__ import annotations

import os
from pathlib import Path

PARTS = ("front", "dispatcher", "matcher")
"""The processes of a server, in the order in which they become ready."""


def mark(run_directory: Path, part: str, *, ready: bool) -> None:
    """Says that `part` is ready, or that it no longer is."""
    path = run_directory / f"{part}.ready"
    if ready:
        path.write_text(str(os.getpid()))
    else:
        path.unlink(missing_ok=True)


def parts_ready(run_directory: Path) -> dict[str, bool]:
    """Each part with whether it is ready now."""
    return {part: (run_directory / f"{part}.ready").exists() for part in PARTS}
