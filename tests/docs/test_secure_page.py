"""The commands of the page that secures a server do what it shows, in order: an open server, then TLS and two teams."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.testing.server import free_port
from tests.docs.test_tutorial import Terminals, run
from tests.support import executable

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]


def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    assert executable("kubectl")
    assert executable("npm")
    terminals = Terminals(tmp_path, grpc=f"127.0.0.1:{free_port()}")
    try:
        run("howto/secure.md", terminals)
    finally:
        terminals.stop()
