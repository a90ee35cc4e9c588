"""The `headgate` command in this process: what a process of its own would say costs a second of imports each time."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from structlog.testing import capture_logs
from typer.testing import CliRunner

from headgate.observe import logs
from headgate.server.zygote import Zygote
from headgate.testing import free_port
from headgate_cli.main import app


def headgate(*arguments: object, **environment: str) -> tuple[int, str, str]:
    """Exit status, and what a command prints; without the variables that tests are run with."""
    unknown: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith("HEADGATE_") or name == "JAVA_HOME"
    }
    done = CliRunner().invoke(app, [*map(str, arguments)], env=unknown | environment)
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done.exit_code, done.stdout, done.stderr


def serve(data: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Exit status and lines of `headgate serve`, which must end before it starts a part; lines of its log are none."""
    options = ("--data", data, "--listen", f"127.0.0.1:{free_port()}", "--grpc", "off", *arguments)
    with (
        capture_logs(),
        mock.patch.object(logs, "configure"),  # it is for the whole process
        mock.patch.object(Zygote, "start", side_effect=AssertionError("a part was started")),
    ):
        status, out, said = headgate("serve", *options, **environment)
    assert out == ""
    return status, said.splitlines()


def refused(lines: list[str]) -> tuple[str, str]:
    """The error and the hint, which are all that was said."""
    error, hint = lines
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return error, hint
