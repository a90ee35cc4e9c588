"""`headgate replay`: sends stored events to one target again."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Final

import typer

from headgate_api.errors import InvalidInputError
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_api.limits import REPLAY_RATE_DEFAULT
from headgate_api.objects.kinds import OWN_API_VERSION
from headgate_cli.client import (
    SERVER_DEFAULT,
    Broker,
    JsonOption,
    Namespace,
    Server,
    api_path,
    filter_value,
    print_table,
    request,
    split_name,
    time_text,
)

_HEADS: Final = ["ID", "STATE", "BROKER", "TARGET", "PASSED", "TOTAL", "MATCHED", "DELIVERED", "DEAD", "FAILED"]
_POLL_S: Final = 0.5
"""How often the progress of a dry run is polled."""

app = typer.Typer(help="Send a broker's stored events to one target again.")

Id = Annotated[int, typer.Argument(metavar="ID", help="Id of a replay.")]


@app.callback(invoke_without_command=True)
def replay(
    context: typer.Context,
    target: Annotated[str, typer.Option(help="NAME or NAMESPACE/NAME of a trigger, or a URL.")] = "",
    broker: Broker = "",
    from_: Annotated[
        str,
        typer.Option("--from", help="Where it starts: earliest, a time (RFC 3339), an age (15m, 7d) or a position."),
    ] = "earliest",
    to: Annotated[
        str, typer.Option(help="Where it ends, exclusive: next (now), a time, an age or a position.")
    ] = "next",
    filter_: Annotated[
        str, typer.Option("--filter", help="CEL, or JSON as in spec.filter; in addition to the trigger's filter.")
    ] = "",
    rate: Annotated[float, typer.Option(help="Maximum number of events per second.")] = REPLAY_RATE_DEFAULT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the events without sending them.")] = False,
    as_json: JsonOption = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Send a broker's stored events to one target again, each with the extension headgatereplay.

    The server does it after this command has ended.

    Example: headgate replay --target billing --from 2026-03-04T05:06:07Z --rate 50
    """
    if context.invoked_subcommand is not None:
        return
    if not target:
        raise InvalidInputError("--target is missing", hint="give the name of a trigger, or a URL")
    if "://" in target:
        aim = {"url": target}
    else:
        namespace, target = split_name(target, namespace)
        aim = {"trigger": target}
    span = {"from": time_text(from_), "to": time_text(to)}
    body = {"broker": broker, **aim, **span, "filter": filter_value(filter_), "rate": rate}
    made = request(server, "POST", _path(namespace), body=body | {"dryRun": dry_run})
    if dry_run:
        made = _ended(server, namespace, made["id"])
    if as_json:
        typer.echo(json.dumps(made, indent=2))
    elif dry_run:
        typer.echo(f"{made['matched']} of {made['eventsTotal']} events would be sent to {target}")
    else:
        typer.echo(f"replay {made['id']} of {made['eventsTotal']} events has begun")


@app.command("list")
def list_(
    as_json: JsonOption = False, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT
) -> None:
    """Show replays, the newest first."""
    items = request(server, "GET", _path(namespace))["items"]
    if as_json:
        typer.echo(json.dumps(items, indent=2))
    elif not items:
        typer.echo(f"no replays found in namespace {namespace}", err=True)
    else:
        print_table([_HEADS, *map(_row, items)])


@app.command()
def show(id_: Id, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT) -> None:
    """Print one replay as JSON."""
    typer.echo(json.dumps(request(server, "GET", _path(namespace, id_)), indent=2))


@app.command()
def cancel(id_: Id, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT) -> None:
    """Cancel a replay; events already sent stay sent."""
    done = request(server, "POST", _path(namespace, id_, "cancel"))
    typer.echo(f"replay {id_} {'is cancelled' if done['cancelled'] else 'had ended'}")


def _ended(server: str, namespace: str, id_: int) -> Any:  # noqa: ANN401 - JSON
    """A replay once it has ended; Ctrl-C ends it."""
    try:
        while (found := request(server, "GET", _path(namespace, id_)))["state"] == "running":
            typer.echo(f"searched {found['eventsPassed']:,} of {found['eventsTotal']:,} events", err=True)
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        request(server, "POST", _path(namespace, id_, "cancel"))
        raise
    if found["state"] != "done":
        raise InvalidInputError(f"the dry run has {found['state']}: {found['problem']}")
    return found


def _row(item: dict[str, Any]) -> list[str]:
    fields = ("eventsPassed", "eventsTotal", "matched", "delivered", "deadLettered", "failed")
    target = item["trigger"] or item["url"]
    return [*(str(item[name]) for name in ("id", "state", "broker")), target, *(str(item[name]) for name in fields)]


def _path(namespace: str, *names: object) -> str:
    return api_path(OWN_API_VERSION, namespace, "replays", *names)
