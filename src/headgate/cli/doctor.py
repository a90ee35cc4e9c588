"""`headgate doctor`: says whether this machine can run a server, and what to do where it cannot."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from headgate.cli.client import JsonLinesOption
from headgate.server.doctor import CheckVerdict, MachineCheck, findings
from headgate.server.effective import effective

_MARKS: Final = {
    CheckVerdict.OK: Text(" ok ", "green"),
    CheckVerdict.WARNING: Text("warn", "bold yellow"),
    CheckVerdict.FAILURE: Text("FAIL", "bold red"),
}


def doctor(
    data: Annotated[Path | None, typer.Option(help="The data directory of the server.")] = None,
    listen: Annotated[str | None, typer.Option(help="Its HOST:PORT. Default: 127.0.0.1:8080.")] = None,
    grpc: Annotated[str | None, typer.Option(help="Its HOST:PORT of gRPC, or off. Default: 127.0.0.1:8081.")] = None,
    config: Annotated[Path | None, typer.Option(help="Its headgate.yaml.")] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Check this machine: Java, memory, disk and its fdatasync, file limit, ports, clock, data directory.

    It uses the settings of headgate serve, also from the environment and a file. It changes nothing.

    Exit status: 0 when a server can run here, perhaps with warnings; 1 when it cannot.

    Example: headgate doctor

    Example: headgate doctor --data /var/lib/headgate --listen 0.0.0.0:8080
    """
    console = Console(highlight=False, soft_wrap=True)
    failed = False
    options = {"data": data, "listen": listen, "grpc": grpc, "config": config}
    for finding in findings(effective(options).settings):
        failed |= finding.verdict is CheckVerdict.FAILURE
        if as_json:
            typer.echo(json.dumps(asdict(finding)))
        else:
            console.print(_line(finding))
    raise typer.Exit(failed)


def _line(finding: MachineCheck) -> Text:
    line = Text.assemble(_MARKS[finding.verdict], f"  {finding.check:<12} {finding.message}")
    if finding.hint:
        line.append(f"\n      {'':<12} {finding.hint}", "dim")
    return line
