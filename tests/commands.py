"""Commands of `headgate` in the process of the tests: one of its own works most of a second before it does anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from structlog.testing import capture_logs
from typer.testing import CliRunner

from headgate.observe import logs
from headgate.server.processes.zygote import Zygote
from headgate.testing.server import free_port
from headgate_cli.main import app


class Said(NamedTuple):
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


def headgate(*words: object, **environment: object) -> Said:
    """Runs a command without the variables that tests are run with. An error that is not ours raises."""
    known: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith("HEADGATE_") or name == "JAVA_HOME"
    }
    known |= {name: str(value) for name, value in environment.items()}
    done = CliRunner().invoke(app, [*map(str, words)], env=known, catch_exceptions=False)
    return Said(done.exit_code, done.stdout, done.stderr)


def told(*words: object, **environment: object) -> str:
    """What a command that must succeed prints."""
    said = headgate(*words, **environment)
    assert said.exit_code == 0, f"{words}: {said}"
    return said.stdout


def serve(data: Path, *words: str, **environment: str) -> tuple[int, list[str]]:
    """Exit status and lines of `headgate serve`, which must end before it starts a part; lines of its log are none."""
    options = ("--data", data, "--listen", f"127.0.0.1:{free_port()}", "--grpc", "off", *words)
    with (
        capture_logs(),
        mock.patch.object(logs, "configure"),  # it is for the whole process
        mock.patch.object(Zygote, "start", side_effect=AssertionError("a part was started")),
    ):
        said = headgate("serve", *options, **environment)
    assert said.stdout == ""
    return said.exit_code, said.stderr.splitlines()


def refused(lines: list[str]) -> tuple[str, str]:
    """The error and the hint, which are all that was said."""
    error, hint = lines
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return error, hint
