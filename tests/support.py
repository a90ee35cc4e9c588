"""What tests of several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def conformance(name: str) -> Path:
    """The public conformance cases `name`, which lie beside the repository and are used in place.

    HEADGATE_SHARED names another folder that holds `conformance/`.
    """
    shared = Path(os.environ.get("HEADGATE_SHARED", REPOSITORY.parent / "shared"))
    path = shared / "conformance" / name
    if not path.is_file():
        pytest.skip(f"conformance cases not found: {path} (set HEADGATE_SHARED to the folder that holds conformance/)")
    return path
