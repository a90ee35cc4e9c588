"""The `headgate` command: a typer app that imports a command when it runs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from headgate import __version__
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from typer._click import Command, Context

COMMANDS: Final = {
    "serve": "serve:serve",
    "demo": "demo:demo",
    "doctor": "doctor:doctor",
    "config": "config:app",
    "backup": "backup:app",
    "restore": "backup:restore",
    "upgrade": "upgrade:upgrade",
    "health": "health:health",
    "token": "token:app",
    "send": "send:send",
    "tail": "tail:tail",
    "consume": "subscriptions:consume",
    "seek": "subscriptions:seek",
    "why": "why:why",
    "trace": "trace:trace",
    "conformance": "conformance:conformance",
    "apply": "objects:apply",
    "get": "objects:get",
    "describe": "objects:describe",
    "delete": "objects:delete",
    "trigger": "trigger:app",
    "summary": "summary:summary",
    "deadletter": "deadletter:app",
    "replay": "replay:app",
    "subscription": "subscriptions:app",
    "filter": "filter:app",
    "log": "log:app",
    "cluster": "cluster:app",
}
"""By name, in the order in which help lists them: a module of this package, and in it a function or a typer app."""
_MARKUP: Final = "rich"


class _Commands(TyperGroup):
    """The commands of `COMMANDS`. To import them all takes a second of CPU, to import one a tenth."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - typer's
        super().__init__(**attributes)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment] # the names, for suggestions

    def get_command(self, ctx: object, cmd_name: str) -> Command | None:
        """A command by its name."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        from headgate.event.json_text import allow_deep_json  # here, because --version needs it as little as commands

        allow_deep_json()
        module, _, attribute = place.partition(":")
        found = getattr(import_module(f"headgate.cli.{module}"), attribute)
        holder = typer.Typer(rich_markup_mode=_MARKUP)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=cmd_name)
        else:
            holder.command(cmd_name)(found)
        from headgate.cli.access import with_access_options  # here, because --version needs nothing of it

        return with_access_options(get_group(holder).commands[cmd_name])

    def invoke(self, ctx: Context) -> object:
        """Runs the command; an error of ours becomes one line and a hint on stderr, exit status 1."""
        try:
            return super().invoke(ctx)
        except HeadgateError as error:
            from headgate.cli.client import fail  # here, because --version needs nothing of it

            fail(str(error), hint=error.hint)


app = typer.Typer(
    name="headgate",
    cls=_Commands,
    help="A CloudEvents broker that evaluates every subscriber's filter on the server.",
    no_args_is_help=True,
    rich_markup_mode=_MARKUP,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"headgate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """A CloudEvents broker that evaluates every subscriber's filter on the server."""


def main() -> None:
    """Entry point."""
    app()
