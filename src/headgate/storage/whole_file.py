"""Small files that are replaced as a whole: reports and addresses under `run/`."""

from __future__ import annotations

import os
from pathlib import Path


def replace_whole(path: Path, data: bytes) -> None:
    """Put a new file in the place of one; a reader sees the old or the new one. Not synced: it may be lost with power.

    Args:
        path: Only its owner may read it.
        data: All of it.

    Raises:
        OSError: The disk does not take it; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)
