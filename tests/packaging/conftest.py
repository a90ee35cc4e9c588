"""What tests of the installed distributions share: both wheels, made from the sdist, and their environments."""

from __future__ import annotations

import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.wheels import build, environment
from tests.support import REPOSITORY
from tests.system.conftest import subscriber

__all__ = ["subscriber"]


@dataclass(frozen=True)
class Wheels:
    """The files of both distributions, in one folder."""

    headgate: Path
    client: Path


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    done = build(REPOSITORY, folder, "--sdist")
    assert done.returncode == 0, done.stderr
    (archive,) = folder.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
    return archive.with_name(archive.name.removesuffix(".tar.gz"))


@pytest.fixture(scope="session")
def wheels(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    # uv knows a wheel in a folder by its path and version: in a folder that was there before it takes the older one.
    folder = tmp_path_factory.mktemp("wheels") / uuid.uuid4().hex
    for project in (sdist, sdist / "packaging" / "client"):
        done = build(project, folder, "--wheel")
        assert done.returncode == 0, done.stderr
    (headgate,), (client,) = folder.glob("headgate_broker-*.whl"), folder.glob("headgate_client-*.whl")
    return Wheels(headgate, client)


@pytest.fixture(scope="session")
def bin_folder(sdist: Path, wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with both wheels."""
    lock = sdist / "requirements" / "runtime.txt"
    return environment(tmp_path_factory.mktemp("elsewhere"), lock, wheels.headgate, wheels.client)


@pytest.fixture(scope="session")
def client_folder(sdist: Path, wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with headgate-client alone."""
    lock = sdist / "requirements" / "client.txt"
    return environment(tmp_path_factory.mktemp("client"), lock, wheels.client)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where nothing of the repository is found; nor by the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
