"""Commands of `headgate` in the process of the tests: one of its own works most of a second before it does anything."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner, Result

from headgate_cli.main import app


def headgate(*words: str, **environment: Any) -> Result:
    """What a command says: `exit_code`, `stdout`, `stderr`. An error that is not ours raises."""
    known = {name: str(value) for name, value in environment.items()}
    return CliRunner().invoke(app, words, env=known, catch_exceptions=False)


def told(*words: str, **environment: Any) -> str:
    """What a command that must succeed prints."""
    done = headgate(*words, **environment)
    assert done.exit_code == 0, f"{words}: {done.output}"
    return done.stdout
