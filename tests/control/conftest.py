from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.control.admission import Admission
from headgate.control.store import Store
from tests.control.support import Server, running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "control.db")
    yield opened
    opened.close()


@pytest.fixture
def admission(store: Store) -> Admission:
    return Admission(store)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as one:
        yield one
