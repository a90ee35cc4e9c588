"""The commands of the page on TLS do what it shows, in order, on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.testing.server import free_port
from tests.docs.test_tutorial import Terminals, run

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]


def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    terminals = Terminals(tmp_path, grpc=f"127.0.0.1:{free_port()}")
    try:
        run("howto/tls.md", terminals)
    finally:
        terminals.stop()
