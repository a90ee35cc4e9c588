"""A server out of the image that `scripts/build-image.sh headgate-test` has built; `make image-test` runs both.

Beside the gate, because the build takes minutes and needs root, buildah and mmdebstrap.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.server import Server
from tests.packaging.confined import USER, Confinement
from tests.packaging.test_container import given, of, works_confined
from tests.system.conftest import subscriber
from tests.system.subscriber import Subscriber

__all__ = ["subscriber"]
pytestmark = pytest.mark.system
NAME = "headgate-test"


def buildah(*arguments: str) -> str:
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """The image's root directory."""
    made = buildah("from", "--pull-never", NAME)
    try:
        yield Path(buildah("mount", made))
    finally:
        buildah("rm", made)


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    """What the image says of itself."""
    return json.loads(buildah("inspect", "--type", "image", NAME))["Docker"]["config"]  # type: ignore[no-any-return]


def test_the_image_says_what_the_file_says(config: dict[str, Any]) -> None:
    environment = dict(one.split("=", 1) for one in config["Env"])
    assert {name: environment[name] for name in given() if name != "PATH"} == {
        name: text for name, text in given().items() if name != "PATH"
    }
    assert environment["PATH"].startswith("/opt/headgate/bin:")
    assert config["User"] == f"{USER}:{USER}"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "headgate", "health"]
    assert config["Entrypoint"] == ["tini", "--", "headgate"]
    assert set(config["ExposedPorts"]) == {f"{port}/tcp" for port in of("EXPOSE")[0].split()}
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_image_holds_no_tools_of_the_build(root: Path) -> None:
    for name in ("usr/bin/javac", "usr/bin/mvn", "opt/headgate/bin/pip", "build/dist"):
        assert not (root / name).exists(), name
    owned = [path for path in (root / "opt").rglob("*") if path.lstat().st_uid or path.lstat().st_mode & 0o022]
    assert [path for path in owned if not path.is_symlink()] == []


def test_a_server_of_the_image_delivers(
    root: Path, config: dict[str, Any], subscriber: Subscriber, tmp_path: Path
) -> None:
    mount, volume = tmp_path / "root", tmp_path / "volume"
    mount.mkdir()
    volume.mkdir()
    os.chown(volume, USER, USER)
    confinement = Confinement(
        source=root,
        mount=mount,
        volume=volume,
        place=of("VOLUME")[0],
        environment=dict(one.split("=", 1) for one in config["Env"]),
        headgate=config["Entrypoint"][-1:],
        entry=config["Entrypoint"][:-1],
    )
    data = Path(given()["HEADGATE_DATA"])
    server = Server(data, log=tmp_path / "log", program=confinement.program(tmp_path / "headgate"), spark=True)
    works_confined(confinement, server, subscriber)
    assert {path.name for path in volume.iterdir()} == {"data"}
