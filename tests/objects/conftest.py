from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.store.store import Store
from tests.objects.support import Kubectl, Server, running
from tests.support import executable


@pytest.fixture
def admission(store: Store) -> Admission:
    return Admission(store)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as one:
        yield one


@pytest.fixture
def kubectl(server: Server, tmp_path: Path) -> Kubectl:
    """Runs the real kubectl: what it prints, or its complaint where it is to fail."""
    program = executable("kubectl")
    (tmp_path / "home").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "KUBECONFIG": "/dev/null"}

    def run(*arguments: str, stdin: str = "", fails: bool = False) -> str:
        command = [program, "--server", server.url, "--cache-dir", str(tmp_path / "cache"), *arguments]
        done = subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run
