"""The `headgate` command imports what the command at hand needs, and has every command that its modules define."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import headgate.cli
from headgate.cli.main import COMMANDS, app

NOBODY = "http://127.0.0.1:1"
HEAVY = {"pyspark", "pyarrow", "grpc", "cel_expr_python", "google.protobuf", "starlette", "uvicorn", "structlog"}
CALL = (
    "import sys; from headgate.cli.main import main; sys.argv = ['headgate', *sys.argv[1:]]\n"
    "try: main()\n"
    "finally: print(*sys.modules)"
)


def _loaded(*arguments: str) -> set[str]:
    """The modules that a command has imported by its end."""
    command = [sys.executable, "-c", CALL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_the_version_imports_no_command() -> None:
    loaded = _loaded("--version")
    assert {name for name in loaded if name.startswith("headgate.")} == {
        "headgate.cli",
        "headgate.cli.main",
        "headgate.errors",
    }
    assert not (HEAVY | {"rich", "asyncio"}) & loaded


@pytest.mark.parametrize(
    "arguments",
    [
        "send --type t",
        "tail",
        "consume s",
        "seek s --to earliest",
        "why 1 --trigger t",
        "trace 1",
        "apply -f {manifest}",
        "get triggers",
        "deadletter list",
        "replay list",
        "subscription stats s",
    ],
)
def test_a_command_that_asks_the_server_imports_none_of_it(tmp_path: Path, arguments: str) -> None:
    manifest = tmp_path / "broker.yaml"
    manifest.write_text("apiVersion: eventing.knative.dev/v1\nkind: Broker\nmetadata: {name: b}\n")
    loaded = _loaded(*(part.format(manifest=manifest) for part in arguments.split()), "--server", NOBODY)
    assert "urllib.request" in loaded, "it did not come as far as to ask"
    assert not HEAVY & loaded


def test_the_version_costs_little_more_than_typer() -> None:
    """In seconds of CPU, the least of three runs; all commands together would be five times as much."""

    def cpu_s(*arguments: str) -> float:
        program = (
            "import resource, subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], stdout=2, check=True);"
            "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
        )
        runs = [
            subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True, timeout=60)
            for _ in range(3)
        ]
        return min(float(run.stdout) for run in runs)

    headgate_program = str(Path(sys.executable).with_name("headgate"))
    assert cpu_s(headgate_program, "--version") < 2 * cpu_s("-c", "import typer, rich")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_helps(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert f"Usage: headgate {name}" in done.output


def test_every_app_of_a_module_is_a_command_or_all_its_commands_are() -> None:
    places = set(COMMANDS.values())
    for found in pkgutil.iter_modules(headgate.cli.__path__):
        module = importlib.import_module(f"headgate.cli.{found.name}")
        own = getattr(module, "app", None)
        if found.name != "main" and isinstance(own, typer.Typer) and f"{found.name}:app" not in places:
            names = {one.callback.__name__ for one in own.registered_commands if one.callback}
            assert {f"{found.name}:{name}" for name in names} <= places


def test_a_name_that_is_nearly_one_is_told() -> None:
    done = CliRunner().invoke(app, ["sent"])
    assert done.exit_code == 2
    assert "Did you mean 'send'?" in done.output
