"""`python -m conformance SUITE FILE`: runs the cases of a file and counts those that pass.

Exit status: 0 when nothing failed, 1 when a case did, 2 when the file cannot be used.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec
import typer

from conformance import cel, cesql, dialects, http
from conformance.cases import EXIT_FAILED, EXIT_UNUSABLE, CaseError, Run
from headgate_api.event.json_text import allow_deep_json
from headgate_conformance.broker import CaseStatus

SUITES: Final[Mapping[str, Run]] = {
    "cel": cel.run,
    "cesql": cesql.run,
    "selectors": dialects.selectors,
    "eventbridge": dialects.event_patterns,
    "pulsar": dialects.tags,
    "http": http.run,
}
"""Suites by name."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def run(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help=f"One of: {', '.join(SUITES)}.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Cases in JSON, one a line.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON for machines: one object a case, the summary last.")
    ] = False,
    url: Annotated[str, typer.Option(help="http only: a broker's URL to send the requests to, not this process.")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out the cases that passed.")] = False,
) -> None:
    """Run a file of conformance cases."""
    allow_deep_json()
    if suite not in SUITES:
        _fail(f"unknown suite {suite}: one of {', '.join(SUITES)}")
    if url and suite != "http":
        _fail("--url is for http")
    counts: Counter[str] = Counter()
    try:
        with file.open("rb") as lines:
            for result in http.run_at(url, lines) if url else SUITES[suite](lines):
                counts[result.verdict] += 1
                if quiet and result.verdict is CaseStatus.PASSED:
                    continue
                shown = f"{result.verdict}  {result.id}{': ' if result.detail else ''}{result.detail}"
                typer.echo(msgspec.json.encode(result).decode() if as_json else shown)
    except OSError as error:
        _fail(f"cannot read {file}: {error}")
    except CaseError as error:
        _fail(f"{file}: {error.message}")
    if not counts:
        _fail(f"{file} has no cases")
    summary: dict[str, str | int] = {"suite": suite, "cases": counts.total()}
    summary.update((verdict.value, counts[verdict]) for verdict in CaseStatus)
    typer.echo(msgspec.json.encode(summary).decode() if as_json else _summary(summary))
    raise typer.Exit(EXIT_FAILED if counts[CaseStatus.FAILED] else 0)


def _summary(summary: Mapping[str, str | int]) -> str:
    parts = (f"{count} {name}" for name, count in summary.items() if name not in ("suite", "cases") and count)
    return f"{summary['suite']}: {summary['cases']} cases, {', '.join(parts)}"


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(EXIT_UNUSABLE)


if __name__ == "__main__":
    sys.exit(app())
