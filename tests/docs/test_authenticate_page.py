"""The commands of the page on authentication do what it shows, in order, on a server; its example is taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.auth.json_web_tokens import trusted_issuers
from headgate.testing.server import free_port
from tests.docs.test_tutorial import Terminals, run
from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "howto" / "authenticate.md"


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(600)
def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    terminals = Terminals(tmp_path, grpc=f"127.0.0.1:{free_port()}")
    try:
        run("howto/authenticate.md", terminals)
    finally:
        terminals.stop()


def test_the_example_of_issuers_is_taken(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "authentication.yaml"
    path.write_text(example)
    (issuer,) = trusted_issuers(path)
    user = issuer.mapper.user_of({"sub": "ada", "roles": ["dev"], "exp": 3_600, "iat": 0})
    assert (user.name, user.groups) == ("shop:ada", ("shop:dev", "system:authenticated"))
