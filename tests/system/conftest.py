"""One real server for the tests of this folder; each has objects of its own, and leaves the server ready."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.testing import Server
from tests.system.subscriber import Subscriber


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("server")
    with Server(folder / "data", log=folder / "server.log") as running:
        yield running


@pytest.fixture
def subscriber() -> Iterator[Subscriber]:
    with Subscriber() as running:
        yield running
