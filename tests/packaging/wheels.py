"""Building and installing the distributions as people do, by uv."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import REPOSITORY

UV = Path(sys.executable).with_name("uv")
_COMMANDS = """
import contextlib, io, json, sys
from headgate_cli.main import main
told = []
for words in json.loads(sys.argv[1]):
    sys.argv, status = ["headgate", *words], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
    told.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(told))
"""


def uv(*arguments: object, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run([UV, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)


def build(project: Path, out: Path, kind: str) -> subprocess.CompletedProcess[str]:
    """`kind` is --sdist or --wheel; by the locked hatchling of this environment."""
    return uv("build", kind, "--offline", "--no-build-isolation", "--python", sys.executable, "-o", out, cwd=project)


def cached(*command: object, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """A command of uv from its cache when that has everything, else from the registry; it must succeed."""
    done = uv("--offline", *command, cwd=cwd)
    if done.returncode:
        done = uv(*command, cwd=cwd)
        assert done.returncode == 0, done.stderr
    return done


def commands(programs: Path, folder: Path, *commands: Sequence[str]) -> list[list[Any]]:
    """Exit status, output and errors of commands of an environment: one process of it for all."""
    program = [programs / "python", "-c", _COMMANDS, json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def environment(folder: Path, lock: Path, *wheels: Path) -> Path:
    """The folder of the programs of a new environment that has the locked dependencies and the wheels, nothing else."""
    assert uv("venv", "--python", sys.executable, "env", cwd=folder).returncode == 0
    programs = folder / "env" / "bin"
    command = ("pip", "install", "-q", "--python", programs / "python")
    cached(*command, "--require-hashes", "-r", lock)
    cached(*command, "--no-deps", *wheels)
    return programs
