"""`headgate doctor`, `health`, `upgrade`, `backup` and `restore`: this machine, its server and its data directory."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headgate.server.effective import effective
from headgate_api import __version__
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_cli.client import print_table
from headgate_cli.options import JsonLinesOption, JsonOption

if TYPE_CHECKING:
    from rich.text import Text

    from headgate.backup.manifest import Manifest
    from headgate.server.doctor import MachineCheck
    from headgate.server.stored_formats import StoredFormat, UpgradePlan

_DataOption = Annotated[Path | None, typer.Option("--data", help="The data directory. Default: as headgate serve.")]
_ConfigOption = Annotated[Path | None, typer.Option("--config", help="The server's headgate.yaml.")]
_STYLES: Final = {"ok": (" ok ", "green"), "warning": ("warn", "bold yellow"), "failure": ("FAIL", "bold red")}
"""How each verdict of a check is printed."""


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
    from rich.console import Console  # here, and below: `health`, which runs every few seconds, needs none of it

    from headgate.server.doctor import CheckVerdict, findings

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
    from rich.text import Text

    line = Text.assemble(_STYLES[finding.verdict], f"  {finding.check:<12} {finding.message}")
    if finding.hint:
        line.append(f"\n      {'':<12} {finding.hint}", "dim")
    return line


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
    """Whether a front says that all is well, and what it says; OSError or HTTPException where it does not answer."""
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


def upgrade(
    check: Annotated[bool, typer.Option("--check", help="Say what the first start would change. Required.")] = False,
    data: _DataOption = None,
    config: _ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what the first start of this version would change in a data directory: tables, compiled filters, disk.

    The command changes nothing, and the server of the old version may run. headgate serve upgrades when it starts.

    Exit status: 0 when a server of this version can start on it; 1 when it would refuse, or the disk is too full.

    Example: headgate upgrade --check

    Example: headgate upgrade --check --data /var/lib/headgate --json
    """
    from headgate.server.datadir import check_objects
    from headgate.server.stored_formats import plan_upgrade

    if not check:
        raise InvalidInputError("headgate upgrade changes nothing by itself", hint="run headgate upgrade --check")
    folder = _data(data, config)
    try:
        check_objects(folder)
        plan = plan_upgrade(folder)
    except PermissionError as error:
        hint = "run it as the server's user"
        raise UnavailableError(f"the data directory {folder} cannot be read: {error}", hint=hint) from error
    except (sqlite3.Error, OSError) as error:
        raise UnavailableError(
            f"{folder / 'control.db'} cannot be read: {error}", hint="run headgate doctor"
        ) from error
    if as_json:
        found = asdict(plan) | {"headgate": __version__, "possible": plan.is_possible}
        typer.echo(json.dumps(found))
    else:
        _print_plan(plan)
    raise typer.Exit(not plan.is_possible)


def _print_plan(plan: UpgradePlan) -> None:
    typer.echo(f"last used by Headgate {plan.written_by or '(not known)'}, this is {__version__}")
    rows = [[one.part, str(one.found), str(one.known), _meaning(one)] for one in plan.formats]
    print_table([["PART", "HAS", "THIS VERSION", "AT THE FIRST START"], *rows])
    typer.echo(f"filters   {plan.stale_plans:,} of {plan.plans:,} are compiled anew, while events are accepted")
    typer.echo(f"disk      {plan.needed_bytes:,} bytes are needed, {plan.free_bytes:,} are free")


def _meaning(one: StoredFormat) -> str:
    if one.is_newer:
        return "refused: a newer Headgate wrote it"
    return "brought up to date" if one.is_older else "stays as it is"


# --- backups ---------------------------------------------------------------------------------------

backups = typer.Typer(
    name="backup",
    help="Save the data directory, also while its server runs, and verify backups.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Source = Annotated[str, typer.Argument(metavar="BACKUP", help="A directory, a .tar, or - for a tar from stdin.")]


@backups.command()
def create(
    target: Annotated[
        str, typer.Argument(metavar="BACKUP", help="A new directory, FILE.tar, or - for a tar to stdout.")
    ],
    data: _DataOption = None,
    config: _ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a backup: one moment of events, objects, cursors, dead letters and sealed Secrets, with checksums.

    The server may run. The command does not stop it and does not change the data directory. Everything that was
    acknowledged before the command began is in the backup. An interrupted backup never gets the name BACKUP, and a
    truncated tar is refused. Secrets stay encrypted: keep their key elsewhere.

    Exit status: 0; 1 when no backup was made: the message says why.

    \b
    Examples:
      headgate backup create /backups/headgate-2026-01-31
      headgate backup create /backups/headgate.tar --data /var/lib/headgate
      headgate backup create - | zstd > headgate.tar.zst
    """  # noqa: D301 - click reads \b as "keep these lines"
    from headgate.backup.writing import STREAM, write_backup  # here: `--help` needs nothing of it

    manifest = write_backup(_data(data, config), target)
    _tell("saved", manifest, as_json=as_json, err=target == STREAM)


@backups.command()
def verify(source: _Source, as_json: JsonOption = False) -> None:
    """Read the whole backup and compare every file with its checksum.

    Exit status: 0 when it is whole; 1 when it is not: the message names the file.

    \b
    Examples:
      headgate backup verify /backups/headgate-2026-01-31
      zstd -dc headgate.tar.zst | headgate backup verify -
    """  # noqa: D301 - click reads \b as "keep these lines"
    from headgate.backup.restoring import examine  # here: `--help` needs nothing of it

    _tell("whole", examine(source), as_json=as_json)


def restore(
    source: _Source, data: _DataOption = None, config: _ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Create a data directory from a backup. It must not exist, or must be empty.

    The command compares every file with its checksum before it puts the file in place. A damaged backup restores
    nothing. Start the server afterwards. It repeats the deliveries that ended after the backup.

    Exit status: 0; 1 when nothing was restored: the message names the file, and the directory is empty again.

    Example: headgate restore /backups/headgate-2026-01-31 --data /var/lib/headgate

    Example: zstd -dc headgate.tar.zst | headgate restore - --data /var/lib/headgate
    """
    from headgate.backup.restoring import restore_backup  # here: `--help` needs nothing of it

    _tell("restored", restore_backup(source, _data(data, config)), as_json=as_json)


def _data(data: Path | None, config: Path | None) -> Path:
    """The data directory, as the server would have it."""
    return effective({"data": data, "config": config}).settings.data


def _tell(what: str, manifest: Manifest, *, as_json: bool, err: bool = False) -> None:
    files, size = len(manifest.files), manifest.size_bytes
    if as_json:
        found = {"files": files, "bytes": size, "began": manifest.began, "headgate": manifest.headgate}
        typer.echo(json.dumps(found), err=err)
    else:
        typer.echo(
            f"{what}: {files:,} files, {size:,} bytes, of {manifest.began}, Headgate {manifest.headgate}", err=err
        )
