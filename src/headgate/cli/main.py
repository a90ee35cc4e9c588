"""The `headgate` command: one typer app, each group in its own module, loaded when it is asked for."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from headgate import __version__
from headgate.cli import conformance as conformance_command
from headgate.cli import deadletter as deadletter_commands
from headgate.cli import filter as filter_commands
from headgate.cli import log as log_commands
from headgate.cli import objects as object_commands
from headgate.cli import replay as replay_commands
from headgate.cli import send as send_command
from headgate.cli import serve as serve_command
from headgate.cli import subscriptions as subscription_commands
from headgate.cli import tail as tail_command
from headgate.cli import trace as trace_command
from headgate.cli import why as why_command
from headgate.errors import HeadgateError

app = typer.Typer(
    name="headgate",
    help="A CloudEvents broker that evaluates every subscriber's filter on the server.",
    no_args_is_help=True,
    rich_markup_mode="rich",
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


app.command("serve")(serve_command.serve)
app.command("send")(send_command.send)
app.command("tail")(tail_command.tail)
app.command("consume")(subscription_commands.consume)
app.command("seek")(subscription_commands.seek)
app.command("why")(why_command.why)
app.command("trace")(trace_command.trace)
app.command("conformance")(conformance_command.conformance)
app.add_typer(object_commands.app)
app.add_typer(deadletter_commands.app, name="deadletter")
app.add_typer(replay_commands.app, name="replay")
app.add_typer(subscription_commands.app, name="subscription")
app.add_typer(filter_commands.app, name="filter")
app.add_typer(log_commands.app, name="log")


def main() -> None:
    """Entry point: runs the command; an error of ours becomes one line and a hint on stderr, exit status 1."""
    try:
        app()
    except HeadgateError as error:
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print("[bold red]error:[/] ", escape(str(error)), sep="")
        if error.hint:
            console.print("[bold cyan]hint:[/] ", escape(error.hint), sep="")
        sys.exit(1)
