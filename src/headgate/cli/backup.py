"""`headgate backup` and `headgate restore`: the data directory of a server, saved while it runs, and put back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headgate_cli.client import JsonOption

if TYPE_CHECKING:
    from headgate.backup.manifest import Manifest

app = typer.Typer(
    name="backup",
    help="Save the data directory, also while its server runs, and verify backups.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Source = Annotated[str, typer.Argument(metavar="BACKUP", help="A directory, a .tar, or - for a tar from stdin.")]
_DataOption = Annotated[Path | None, typer.Option("--data", help="The data directory. Default: as headgate serve.")]
_ConfigOption = Annotated[Path | None, typer.Option("--config", help="The server's headgate.yaml.")]


@app.command()
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


@app.command()
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
    source: _Source,
    data: _DataOption = None,
    config: _ConfigOption = None,
    as_json: JsonOption = False,
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
    from headgate.server.effective import effective  # here: `--help` needs nothing of it

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
