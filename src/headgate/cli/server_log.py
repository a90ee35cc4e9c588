"""`headgate logs`: what a server on this machine has said, from the file in its data directory."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from headgate.observe import logs as server_logs
from headgate.server.effective import effective
from headgate_api.errors import NotFoundError
from headgate_cli.options import JsonLinesOption

_POLL_S: Final = 0.5
_SERIOUS: Final = ("warning", "error", "critical")


def logs(
    data: Annotated[Path | None, typer.Option(help="The data directory. Default: as headgate serve.")] = None,
    config: Annotated[Path | None, typer.Option(help="Its headgate.yaml.")] = None,
    last: Annotated[int, typer.Option(min=0, help="Begin with so many lines of those that there are.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then print each new line. Ctrl-C ends it.")] = False,
    serious: Annotated[bool, typer.Option("--warnings", help="Only warnings and errors.")] = False,
    as_json: JsonLinesOption = False,
) -> None:
    """Print what the server on this machine says: also what a terminal without --verbose hides.

    \b
    Examples:
      headgate logs --data headgate-data
      headgate logs --warnings --follow
    """  # noqa: D301 - click reads \b as "keep these lines"
    path = effective({"data": data, "config": config}).settings.data / server_logs.FILE
    if not path.exists():
        raise NotFoundError(f"there is no {path}", hint="name the server's directory with --data")
    render = server_logs.renderer_for_people(colors=sys.stdout.isatty())
    try:
        for line in _lines(path, last, follow):
            try:
                fact: dict[str, Any] = json.loads(line)
            except ValueError:  # a line that a full disk cut
                continue
            if serious and fact.get("level") not in _SERIOUS:
                continue
            if not as_json:
                fact["timestamp"] = str(datetime.fromisoformat(fact["timestamp"]).astimezone())[:23]
                line = str(render(None, "", fact))
            typer.echo(line)
    except KeyboardInterrupt:
        pass


def _lines(path: Path, last: int, follow: bool) -> Iterator[str]:
    """The last lines of the file and of the one before, and then what comes, also in a file that follows."""
    older = path.with_name(f"{path.name}.1")
    kept: deque[str] = deque(maxlen=last)
    if older.exists():
        with older.open(encoding="utf-8") as file:
            kept.extend(map(str.rstrip, file))
    file = path.open(encoding="utf-8")
    try:
        kept.extend(map(str.rstrip, file))
        yield from kept
        while follow:
            yield from _whole(file)
            if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file = path.open(encoding="utf-8")
            else:
                time.sleep(_POLL_S)
    finally:
        file.close()


def _whole(file: TextIO) -> Iterator[str]:
    """Lines to the end of the file; each is one write, and so whole."""
    for line in file:
        yield line.rstrip()
