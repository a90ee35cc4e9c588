"""The commands of the page on Secrets do what it shows, in order, on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_tutorial import Terminals, run
from tests.support import executable

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]


def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    assert executable("kubectl")
    terminals = Terminals(tmp_path)
    try:
        run("howto/secrets.md", terminals)
    finally:
        terminals.stop()
