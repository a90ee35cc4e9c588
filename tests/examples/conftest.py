"""One server, which has a key for Secrets, and one clone, for the examples of all languages."""

from __future__ import annotations

import base64
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.testing.server import Server
from tests.docs.test_tutorial import Terminals
from tests.go_programs import grpcurl
from tests.support import REPOSITORY, executable

BUILD_S_MAX = 900.0
"""Where nothing is cached, and on a slow machine."""
_BUILT = ("bin", "node_modules", "target")
"""What somebody may have built in the repository's own folder."""


class Clone(Terminals):
    """Terminals in a clone of the examples, beside a server that runs where one is given."""

    wait_s = BUILD_S_MAX
    interrupted = frozenset({0, 128 + signal.SIGINT, -signal.SIGINT})

    def __init__(self, folder: Path, server: Server | None = None) -> None:
        super().__init__(folder)
        self._environment |= {"PYTHONPATH": str(folder), "KUBECONFIG": "/dev/null"}
        if server is not None:
            self._ports |= {"8080": str(server.port), "8081": server.grpc.rpartition(":")[2]}
            path = f"{grpcurl().parent}:{self._environment['PATH']}"
            self._environment |= {"HEADGATE_SERVER": server.url, "PATH": path}

    @property
    def url(self) -> str:
        """Where a subscriber on port 9000 of the pages listens."""
        return f"http://127.0.0.1:{self._ports['9000']}"

    def built(self) -> bool:
        """Whether the commands that build have been typed."""
        return all(any(self._folder.glob(f"examples/*/{name}")) for name in _BUILT)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "keys").write_text(f"k1:{base64.b64encode(bytes(32)).decode()}\n")
    arguments = ("--secrets-key-file", str(folder / "keys"), "--dispatchers", "1", "--fronts", "1")
    with Server(folder / "data", log=folder / "server.log", arguments=arguments) as running:
        yield running


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a copy of the examples, so that what is built leaves no trace in the repository."""
    for program in ("go", "node", "npm", "mvn", "java", "kubectl", "curl", "openssl"):
        executable(program)
    made = tmp_path_factory.mktemp("clone")
    shutil.copytree(REPOSITORY / "examples", made / "examples", ignore=shutil.ignore_patterns(*_BUILT))
    return made


@pytest.fixture
def clone(folder: Path, server: Server) -> Iterator[Clone]:
    terminals = Clone(folder, server)
    try:
        yield terminals
    finally:
        terminals.stop()
        for trigger in server.list("triggers", "default"):
            server.delete("triggers", "default", trigger["metadata"]["name"])
