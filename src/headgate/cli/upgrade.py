"""`headgate upgrade`: says what the first start of this version would do with a data directory."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headgate import __version__
from headgate.cli.client import JsonOption, print_table
from headgate.errors import InvalidInputError, UnavailableError
from headgate.server.effective import effective
from headgate.server.stored_formats import StoredFormat, UpgradePlan, plan_upgrade


def upgrade(
    check: Annotated[bool, typer.Option("--check", help="Say what the first start would change. Required.")] = False,
    data: Annotated[Path | None, typer.Option(help="The data directory. Default: as headgate serve.")] = None,
    config: Annotated[Path | None, typer.Option(help="The server's headgate.yaml.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what the first start of this version would change in a data directory: tables, compiled filters, disk.

    The command changes nothing, and the server of the old version may run. headgate serve upgrades when it starts.

    Exit status: 0 when a server of this version can start on it; 1 when it would refuse, or the disk is too full.

    Example: headgate upgrade --check

    Example: headgate upgrade --check --data /var/lib/headgate --json
    """
    if not check:
        raise InvalidInputError("headgate upgrade changes nothing by itself", hint="run headgate upgrade --check")
    folder = effective({"data": data, "config": config}).settings.data
    try:
        if not (folder / "control.db").exists():
            raise InvalidInputError(
                f"{folder} is no data directory of a server: there is no control.db", hint="name it with --data"
            )
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
        _print(plan)
    raise typer.Exit(not plan.is_possible)


def _print(plan: UpgradePlan) -> None:
    typer.echo(f"last used by Headgate {plan.written_by or '(not known)'}, this is {__version__}")
    rows = [[one.part, str(one.found), str(one.known), _meaning(one)] for one in plan.formats]
    print_table([["PART", "HAS", "THIS VERSION", "AT THE FIRST START"], *rows])
    typer.echo(f"filters   {plan.stale_plans:,} of {plan.plans:,} are compiled anew, while events are accepted")
    typer.echo(f"disk      {plan.needed_bytes:,} bytes are needed, {plan.free_bytes:,} are free")


def _meaning(one: StoredFormat) -> str:
    if one.is_newer:
        return "refused: a newer Headgate wrote it"
    return "brought up to date" if one.is_older else "stays as it is"
