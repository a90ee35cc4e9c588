"""`headgate consume`, `seek` and `subscription`: pulls a subscription's events, moves it, shows its state."""

from __future__ import annotations

import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Annotated, Any, Final

import typer

from headgate_api.event.names import NAMESPACE_DEFAULT, full_name
from headgate_api.limits import PULL_EVENTS_DEFAULT
from headgate_api.objects.kinds import Kind
from headgate_cli.client import (
    SERVER_DEFAULT,
    JsonOption,
    Namespace,
    Server,
    filter_value,
    named_path,
    print_table,
    request,
    time_text,
)

_WAIT_S: Final = 20.0
"""How long one pull waits at the server."""
_PROGRESS_S: Final = 1.0
"""How often the progress of a seek is printed."""
_SEEK_S_MAX: Final = 86_400.0
"""A seek through a large log may take hours; Ctrl-C cancels it."""

app = typer.Typer(
    no_args_is_help=True,
    help="Show a subscription's state, and count what a filter would match in its backlog.",
)

Name = Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of the subscription.")]


def consume(
    name: Name,
    namespace: Namespace = NAMESPACE_DEFAULT,
    consumer: Annotated[str, typer.Option(help="Name of the consumer. Default: host and process id.")] = "",
    limit: Annotated[int | None, typer.Option(help="Stop after this many events.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more events at the end.")] = True,
    ack: Annotated[bool, typer.Option(help="Acknowledge printed events; otherwise they are delivered again.")] = True,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Print a subscription's events in JSON, one on each line, and acknowledge them.

    Example: headgate consume orders --no-follow
    """
    called = consumer or f"{socket.gethostname()}-{os.getpid()}"
    left = limit
    try:
        while left is None or left > 0:
            count = PULL_EVENTS_DEFAULT if left is None else min(left, PULL_EVENTS_DEFAULT)
            body = {"consumer": called, "max": count, "wait": _WAIT_S if follow else 0.0}
            events = _ask(server, namespace, name, "pull", body)["events"]
            for one in events:
                typer.echo(json.dumps(one["event"], ensure_ascii=False, separators=(",", ":")))
            sys.stdout.flush()
            if events and ack:
                # Only now: what was not printed must come again.
                _ask(server, namespace, name, "ack", {"consumer": called, "ids": [one["ackId"] for one in events]})
            if not events and not follow:
                break
            left = None if left is None else left - len(events)
    except KeyboardInterrupt:
        pass
    finally:
        _ask(server, namespace, name, "leave", {"consumer": called})


def seek(
    name: Name,
    to: Annotated[
        str, typer.Option(help="earliest, latest, a time (RFC 3339), an age (15m, 7d) or a position (0:123,1:456).")
    ] = "earliest",
    first: Annotated[
        str, typer.Option(help="The first event from there on for which this is true: CEL, or JSON as in spec.filter.")
    ] = "",
    last: Annotated[str, typer.Option(help="The last event for which this is true.")] = "",
    after: Annotated[
        bool, typer.Option("--after", help="With --first and --last: move to the position after that event.")
    ] = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Move a subscription, for all its consumers: events are delivered again, or skipped.

    With an expression, the server searches the whole log, not only the subscription's events. Ctrl-C cancels it.

    Example: headgate seek orders --first 'data.commit_ts >= 449320000000' --after
    """
    body = {"to": time_text(to), "first": first, "last": last, "after": after}
    with ThreadPoolExecutor(1) as thread:
        seeking = thread.submit(
            request,
            server,
            "POST",
            named_path(Kind.SUBSCRIPTION, name, namespace, "seek"),
            body=body,
            timeout_s=_SEEK_S_MAX,
        )
        try:
            while wait([seeking], timeout=_PROGRESS_S).not_done:
                _show_progress(server, namespace, name)
        except KeyboardInterrupt:
            request(server, "DELETE", named_path(Kind.SUBSCRIPTION, name, namespace, "seek"))
        done = seeking.result()
    where = first or last or to
    typer.echo(
        f"subscription {full_name(name, namespace)} moved to {where} ({done['position']}, epoch {done['epoch']})"
    )


def _show_progress(server: str, namespace: str, name: str) -> None:
    found = request(server, "GET", named_path(Kind.SUBSCRIPTION, name, namespace, "seek"))
    if found["running"] and found["eventsTotal"]:
        typer.echo(f"searched {found['eventsScanned']:,} of about {found['eventsTotal']:,} events", err=True)


@app.command()
def describe(
    name: Name,
    namespace: Namespace = NAMESPACE_DEFAULT,
    as_json: JsonOption = False,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show a subscription's state: its backlog, events with consumers, and counters."""
    found = request(server, "GET", named_path(Kind.SUBSCRIPTION, name, namespace, "stats"))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    print_table([[key, "-" if value is None else str(value)] for key, value in found.items()])


@app.command()
def analyze(
    name: Name,
    filter_: Annotated[str, typer.Option("--filter", help="CEL, or JSON as in a trigger's spec.filter.")],
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Count the events of the backlog that a filter would accept; nothing is consumed.

    Example: headgate subscription analyze orders --filter 'data.amount > 100'
    """
    written = filter_value(filter_)
    body = {"filter": written if isinstance(written, dict) else {"expression": written}}
    found = _ask(server, namespace, name, "analyze", body)
    more = "" if found["complete"] else " (there are more)"
    typer.echo(
        f"{found['accepted']} of {found['events']} events{more}; {found['rejected']} rejected, {found['errors']} errors"
    )


def _ask(server: str, namespace: str, name: str, action: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    return request(server, "POST", named_path(Kind.SUBSCRIPTION, name, namespace, action), body=body)
