"""`headgate health`: asks the server of a data directory on this machine whether it works, as containers' checks do."""

from __future__ import annotations

import contextlib
import http.client
import socket
from pathlib import Path
from typing import Annotated

import typer

from headgate.errors import UnavailableError
from headgate.server.effective import effective


class NoFrontError(UnavailableError):
    """No front of the server answers."""

    code = "no-front"


def health(
    data: Annotated[Path | None, typer.Option(help="The data directory of the server.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Ask only whether the server answers.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=60.0, help="Timeout in seconds.")] = 5.0,
) -> None:
    """Ask the server on this machine whether every part of it works.

    The command uses a socket in the data directory, so it needs no address, no certificate and no token. Run it as the
    user who runs the server. HEADGATE_DATA can name the directory, too.

    Exit status: 0 when every part works; 1 when one does not, or when no server runs.

    Example: headgate health --data /var/lib/headgate
    """
    settings = effective({"data": data}).settings
    fronts: list[Path] = []
    with contextlib.suppress(PermissionError):
        fronts = sorted(settings.run_directory.glob("front-*.in"))
    for front in fronts:
        try:
            works, said = _asked(front, "/livez" if live else "/readyz?verbose", timeout)
        except (OSError, http.client.HTTPException):
            continue  # it has just ended, or hangs; another one may answer
        typer.echo(said.strip())
        raise typer.Exit(not works)
    raise NoFrontError(
        f"no server answers in {settings.data}", hint="name its directory with --data, as the user who runs it"
    )


def _asked(front: Path, target: str, timeout_s: float) -> tuple[bool, str]:
    """Whether a front says that all is well, and what it says.

    Raises:
        OSError: Nobody answers there, or not in time.
        http.client.HTTPException: The answer broke off.
    """
    connection = http.client.HTTPConnection("headgate")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(str(front))
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status == 200, answer.read().decode()
    finally:
        connection.close()
