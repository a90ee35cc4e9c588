"""`headgate config`: checks a configuration file, and shows the settings that a server would have."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from typer.main import get_command

from headgate.backend.config_file import SettingFault, SettingsError
from headgate.server.effective import EffectiveSettings, SettingOrigin, effective
from headgate_api.errors import HeadgateError
from headgate_cli.client import print_error, print_table
from headgate_cli.options import JsonLinesOption

_NAMED: Final = re.compile(r"--([a-z][a-z-]*)|HEADGATE_([A-Z_]+)")
_DEFAULT: Final = Path("headgate.yaml")

app = typer.Typer(
    name="config",
    help="Check headgate.yaml, and show the effective settings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="The file.", envvar="HEADGATE_CONFIG", show_default="headgate.yaml", show_envvar=True
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Check a file as headgate serve would: each fault with its line, and what to do.

    It checks names, values, contradictions, and the files that settings name: certificates, keys, tokens. It includes
    the environment variables. headgate doctor checks the machine and the ports. With --json each fault is one line.

    Exit status: 0 when a server would accept the settings; 1 when it would refuse them.

    \b
    Examples:
      headgate config check
      headgate config check /etc/headgate/headgate.yaml --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    path = file if file is not None else _DEFAULT
    faults = _faults(path)
    for one in faults:
        if as_json:
            typer.echo(json.dumps(asdict(one)))
        else:
            print_error(str(one), hint=one.hint)
    if faults:
        raise typer.Exit(1)
    if not as_json:
        typer.echo(f"{path} is as it must be")


def _faults(path: Path) -> list[SettingFault]:
    """Everything that is wrong with the names and values, else the first thing that contradicts another one."""
    found: EffectiveSettings | None = None
    try:
        found = effective({"config": path})
        from headgate.server import preflight  # a second of imports, which a wrong name does not need

        preflight.check_settings(found.settings, found.cluster)
    except SettingsError as error:
        return list(error.faults)
    except HeadgateError as error:
        return [_placed(error, path, found)]
    return []


def _placed(error: HeadgateError, path: Path, found: EffectiveSettings | None) -> SettingFault:
    """An error of settings that were read, at the line of the first one that it names."""
    named = [(option or variable).replace("-", "_").lower() for option, variable in _NAMED.findall(error.message)]
    if found is not None and found.file is not None:
        for name in named:
            if found.origins.get(name) is SettingOrigin.FILE:
                line = found.file.lines.get((name,))
                return SettingFault(f"{path}:{line}: {name}", str(error), error.hint, line)
    return SettingFault(str(path), str(error).removeprefix(f"{path}: "), error.hint)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def show(context: typer.Context, as_json: JsonLinesOption = False) -> None:
    """Show every setting that a server would have, and where it comes from: option, environment, file or default.

    It accepts the options of headgate serve. It does not show secrets_key_command, which may contain a secret.

    Exit status: 0; 1 when a setting is invalid.

    \b
    Examples:
      headgate config show
      headgate config show --config headgate.yaml --listen 0.0.0.0:8080
      headgate config show --config headgate.yaml --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    from headgate.cli import serve  # here: `check` needs no server

    holder = typer.Typer()
    holder.command("serve")(serve.serve)
    given = get_command(holder).make_context("headgate config show", list(context.args))
    found = effective(serve.options_of(given.params))
    if as_json:
        for one in found.shown():
            typer.echo(json.dumps(asdict(one)))
        return
    rows = [[one.name, _text(one.value), str(one.origin), one.where] for one in found.shown()]
    print_table([["SETTING", "VALUE", "FROM", "WHERE"], *rows])


def _text(value: object) -> str:
    """A value in a cell, as a file has it."""
    if value is None or value == "":
        return "-"
    return value if isinstance(value, str) else json.dumps(value)


@app.command()
def schema() -> None:
    """Print the JSON Schema of headgate.yaml, for editors and for checks without a server.

    \b
    Examples:
      headgate config schema > headgate.schema.json
    """  # noqa: D301 - click reads \b as "keep these lines"
    from headgate.backend.config_file import config_schema  # here: no other command needs it

    typer.echo(json.dumps(config_schema(), indent=2))
