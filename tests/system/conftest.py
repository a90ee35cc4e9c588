"""Two real servers for the tests of this folder; each has objects of its own, and leaves its server ready."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.testing.server import Server
from tests.system.secured import Secured, key_line, secured_server
from tests.system.subscriber import Subscriber


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Open to everybody, over plain HTTP."""
    folder: Path = tmp_path_factory.mktemp("server")
    keys = folder / "keys"
    keys.write_text(key_line("k1", 0))
    arguments = ("--secrets-key-file", str(keys))
    with Server(folder / "data", log=folder / "server.log", arguments=arguments) as running:
        yield running


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Which knows its users, and speaks TLS alone."""
    with secured_server(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture
def subscriber() -> Iterator[Subscriber]:
    with Subscriber() as running:
        yield running
