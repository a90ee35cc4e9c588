"""`headgate version` and `status` name the server's version, and do without one."""

from __future__ import annotations

import json

from headgate_api import __version__
from tests.commands import headgate, told
from tests.objects.support import Server


def test_the_version_is_that_of_both(server: Server) -> None:
    assert told("version", "--server", server.url).splitlines() == [
        f"headgate  {__version__}",
        f"server    {__version__}  {server.url}",
    ]
    assert json.loads(told("version", "--server", server.url, "--json")) == {
        "client": __version__,
        "server": __version__,
    }


def test_without_a_server_the_version_is_that_of_the_command() -> None:
    said = headgate("version", "--server", "http://127.0.0.1:1")
    assert (said.exit_code, said.stdout) == (0, f"headgate  {__version__}\n")
    assert "no server at http://127.0.0.1:1" in said.stderr
    assert json.loads(told("version", "--server", "http://127.0.0.1:1", "--json"))["server"] is None
