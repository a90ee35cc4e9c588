"""`headgate trigger pause` and `resume`: lets the events of triggers wait, and go on."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.client import SERVER_DEFAULT, Namespace, Server, named_path, print_error, request
from headgate.control.bodies import MERGE_PATCH
from headgate.control.objects import PAUSED_ANNOTATION, Kind
from headgate.errors import InvalidInputError
from headgate.event.names import NAMESPACE_DEFAULT, full_name

app = typer.Typer(no_args_is_help=True, help="Pause and resume the deliveries of triggers.")

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of triggers: NAME or NAMESPACE/NAME.")]


@app.command()
def pause(names: Names, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT) -> None:
    """Stop sending events to the subscribers of triggers. The events wait, within the limits of a backlog.

    Attempts in flight end. Replays to the triggers and redriven dead letters wait, too.

    Example: headgate trigger pause billing
    """
    _annotate(server, namespace, names, "true", "paused")


@app.command()
def resume(names: Names, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT) -> None:
    """Resume deliveries: send the events that waited, the oldest first, and then new ones.

    Example: headgate trigger resume billing
    """
    _annotate(server, namespace, names, None, "resumed")


def _annotate(server: str, namespace: str, names: list[str], value: str | None, done: str) -> None:
    change = {"metadata": {"annotations": {PAUSED_ANNOTATION: value}}}
    failed = False
    for name in names:
        path = named_path(Kind.TRIGGER, name, namespace)
        try:
            request(server, "PATCH", path, body=change, content_type=MERGE_PATCH)
        except InvalidInputError as error:  # not that there is no server
            failed = True
            print_error(error.message, hint=error.hint)
            continue
        typer.echo(f"trigger {full_name(name, namespace)} {done}")
    if failed:
        raise typer.Exit(1)
