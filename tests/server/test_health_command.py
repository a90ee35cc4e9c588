"""`headgate health`, by the real paths of health on a front's socket: what it prints, and its exit status."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from typer.testing import CliRunner, Result

from headgate.server import health, parts, ready
from headgate.server.peers import local_http
from headgate.settings import Settings
from headgate_cli.main import app


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory whose sockets have short paths."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def asked(data: Path, *options: str, working: bool = True) -> Result:
    """The command beside a front whose parts are ready, or not yet."""
    settings = Settings(data=data)
    settings.run_directory.mkdir(exist_ok=True)
    for part in parts.of_server(settings) if working else ():
        ready.PartReport(settings.run_directory, part.name).ready(True)

    async def main() -> Result:
        app_ = Starlette(routes=health.routes(settings, {"log": lambda: ""}))
        async with local_http.answering(app_, settings.front_inward(1)):
            return await asyncio.to_thread(command, data, *options)

    return asyncio.run(main())


def command(data: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["health", "--data", str(data), *options])


def test_a_server_that_works(data: Path) -> None:
    result = asked(data)
    assert result.exit_code == 0
    assert {"[+]matcher ok", "[+]log ok", "readyz check passed"} <= set(result.stdout.splitlines())


def test_a_part_that_does_not_work(data: Path) -> None:
    result = asked(data, working=False)
    assert result.exit_code == 1
    assert {"[-]matcher failed", "[+]log ok", "readyz check failed"} <= set(result.stdout.splitlines())
    assert (asked(data, "--live", working=False).exit_code, asked(data, "--live").stdout) == (0, "ok\n")


def test_no_server_and_one_that_hangs(data: Path) -> None:
    result = command(data)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"error: no server answers in {data}" in result.stderr
    assert "hint: name its directory with --data" in result.stderr
    settings = Settings(data=data)
    settings.run_directory.mkdir()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as silent:
        silent.bind(str(settings.front_inward(0)))
        silent.listen()
        assert command(data, "--timeout", "0.2").exit_code == 1
        assert asked(data, "--timeout", "1").exit_code == 0, "another front answers"
