from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dispatch.harness import EventLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    """An empty log of events, where the dispatcher looks for it."""
    log = EventLog(tmp_path)
    yield log
    log.close()
