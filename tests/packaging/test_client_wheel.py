"""The package headgate-client alone: which files it has, what it brings, and what its commands say that it lacks."""

from __future__ import annotations

import json
import subprocess
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

import headgate_api
from tests.packaging.conftest import Wheels
from tests.packaging.wheels import build, commands, environment
from tests.support import REPOSITORY

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]  # an environment is made, perhaps from the network

MB_MAX = 60
"""Of an environment: grpc is 15 MB, pydantic 5 (typer's), pygments 5; headgate-broker brings 800."""
LACKED = {"pyspark", "py4j", "pyarrow", "cel-expr-python", "uvicorn", "starlette", "structlog", "cryptography"}
NEEDS = {
    "serve": "headgate serve",
    "demo": "headgate demo",
    "doctor": "headgate doctor",
    "token list": "headgate token",
    "log verify x": "headgate log",
    "cluster check": "headgate cluster",
    "filter test --cel true": "headgate filter test",
    "filter explain true": "headgate filter explain",
    "filter backtest true --data x": "headgate filter backtest --data",
}
IMPORTS = """
import importlib, pathlib, sys, headgate_api
site = pathlib.Path(headgate_api.__file__).parents[1]
paths = [path.relative_to(site).with_suffix("") for path in site.glob("headgate*/**/*.py")]
names = sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, error.name, file=sys.stderr)
print(*names)
"""
OF_EXTRA = "headgate_cli.mcp_server anyio\n"
"""The module that needs the extra, and what it misses first."""


def files(wheel: Path) -> set[str]:
    """Its files but those about itself."""
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(opened.read(name))


def project(pyproject: Path) -> dict[str, Any]:
    return tomllib.loads(pyproject.read_text())["project"]  # type: ignore[no-any-return]


def test_each_file_is_in_one_of_the_wheels(wheels: Wheels) -> None:
    source = REPOSITORY / "src"
    there = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert files(wheels.headgate) & files(wheels.client) == set()
    assert files(wheels.headgate) | files(wheels.client) == there


def test_the_metadata_of_both_fit(wheels: Wheels) -> None:
    server, client = project(REPOSITORY / "pyproject.toml"), project(REPOSITORY / "packaging/client/pyproject.toml")
    native = project(REPOSITORY / "packaging/native/pyproject.toml")
    assert server["version"] == client["version"] == native["version"] == headgate_api.__version__
    assert set(client["dependencies"]) < set(server["dependencies"])
    assert server["scripts"] == client["scripts"]
    wanted = metadata(wheels.headgate).get_all("Requires-Dist", [])
    assert f"headgate-client=={headgate_api.__version__}" in wanted
    extra = client["optional-dependencies"]["mcp"]
    assert server["optional-dependencies"]["mcp"] == extra
    assert len(metadata(wheels.client).get_all("Requires-Dist", [])) == len(client["dependencies"]) + len(extra)


def test_the_client_alone_imports_all_that_it_has(wheels: Wheels, client_folder: Path, elsewhere: Path) -> None:
    done = subprocess.run([client_folder / "python", "-c", IMPORTS], capture_output=True, text=True, cwd=elsewhere)
    assert (done.returncode, done.stderr) == (0, OF_EXTRA)
    assert len(done.stdout.split()) == sum(name.endswith(".py") for name in files(wheels.client))


def test_the_client_alone_is_small(client_folder: Path) -> None:
    (packages,) = (client_folder.parent / "lib").glob("python*/site-packages")
    names = {path.name.partition("-")[0].replace("_", "-") for path in packages.glob("*.dist-info")}
    assert "headgate-client" in names
    assert names & {*LACKED, "headgate-broker"} == set()
    size_mb = sum(path.stat().st_size for path in packages.rglob("*") if path.suffix != ".pyc") / 1e6
    assert size_mb < MB_MAX


def test_a_command_that_needs_the_server_says_what_to_install(client_folder: Path, elsewhere: Path) -> None:
    said = "error: {} needs the package headgate-broker\nhint: pip install headgate-broker\n"
    found = commands(client_folder, elsewhere, *map(str.split, NEEDS))
    assert found == [[1, "", said.format(what)] for what in NEEDS.values()]


def test_a_command_that_needs_the_extra_says_what_to_install(client_folder: Path, elsewhere: Path) -> None:
    said = "error: headgate mcp needs the extra mcp\nhint: pip install 'headgate-client[mcp]'\n"
    assert commands(client_folder, elsewhere, ["mcp"], ["mcp", "--http"]) == 2 * [[1, "", said]]


@pytest.mark.slow
def test_with_the_extra_an_assistant_has_tools(sdist: Path, wheels: Wheels, elsewhere: Path) -> None:
    programs = environment(elsewhere, sdist / "requirements" / "mcp.txt", wheels.client)
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    calls = (
        {"id": 1, "method": "initialize", "params": begin},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    )
    lines = "".join(json.dumps({"jsonrpc": "2.0", **call}) + "\n" for call in calls)
    with subprocess.Popen([programs / "headgate", "mcp"], stdin=PIPE, stdout=PIPE, text=True) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(lines)
        running.stdin.flush()
        answers = [json.loads(running.stdout.readline()) for _ in range(2)]
        running.stdin.close()
    assert running.returncode == 0
    assert "why" in {tool["name"] for tool in answers[1]["result"]["tools"]}


def test_help_lists_what_needs_the_server_by_itself(client_folder: Path, elsewhere: Path) -> None:
    done = subprocess.run([client_folder / "headgate", "--help"], capture_output=True, text=True, cwd=elsewhere)
    here, _, elsewhere_ = done.stdout.partition("Commands that need the package headgate-broker")
    assert "│ apply " in here
    assert "│ serve " in elsewhere_


@pytest.mark.parametrize("name", ["client", "native"])
def test_parts_have_no_sdist_of_their_own(name: str, tmp_path: Path) -> None:
    done = build(REPOSITORY / "packaging" / name, tmp_path, "--sdist")
    assert done.returncode != 0
    assert f"error: headgate-{name} has no sdist" in done.stderr
    assert f"hint: uv build --wheel packaging/{name}" in done.stderr
