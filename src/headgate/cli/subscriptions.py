"""`headgate consume`, `seek` and `subscription`: pulls a subscription's events, moves it, shows its state."""

from __future__ import annotations

import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from headgate.cli.client import SERVER_DEFAULT, Namespace, Server, print_table, request
from headgate.control.objects import Kind
from headgate.errors import InvalidInputError
from headgate.event.names import NAMESPACE_DEFAULT
from headgate.limits import PULL_EVENTS_DEFAULT

_WAIT_S: Final = 20.0
"""One pull waits so long at the server; then we ask again."""
_LOOK_S: Final = 1.0
"""How often we say how far a seek is."""
_SEEK_S_MAX: Final = 86_400.0
"""A seek through a large log takes what it takes; Ctrl-C ends it."""

app = typer.Typer(no_args_is_help=True, help="Ask where a subscription stands, and what a filter would take of it.")

Name = Annotated[str, typer.Argument(help="Name of the subscription.")]


def consume(
    name: Name,
    namespace: Namespace = NAMESPACE_DEFAULT,
    consumer: Annotated[str, typer.Option(help="Our name; this host and process by default.")] = "",
    limit: Annotated[int | None, typer.Option(help="Stop after so many events.")] = None,
    follow: Annotated[bool, typer.Option(help="At the end, wait for more.")] = True,
    ack: Annotated[bool, typer.Option(help="Acknowledge what has been printed; else it comes again.")] = True,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Print a subscription's events, one a line in the JSON format, and acknowledge them.

    Example: headgate consume orders --no-follow
    """
    called = consumer or f"{socket.gethostname()}-{os.getpid()}"
    left = limit
    try:
        while left is None or left > 0:
            count = PULL_EVENTS_DEFAULT if left is None else min(left, PULL_EVENTS_DEFAULT)
            asked = {"consumer": called, "max": count, "wait": _WAIT_S if follow else 0.0}
            events = _ask(server, namespace, name, "pull", asked)["events"]
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
        str, typer.Option(help="earliest, latest, a time (RFC 3339) or a position (0:123,1:456).")
    ] = "earliest",
    first: Annotated[
        str, typer.Option(help="From there on, the first event of which this is true: CEL, or JSON as in spec.filter.")
    ] = "",
    last: Annotated[str, typer.Option(help="The last event of which this is true.")] = "",
    after: Annotated[bool, typer.Option("--after", help="With --first and --last: behind that event.")] = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Go on elsewhere, for all consumers of a subscription: events come again, or are passed over.

    An expression is looked for in the whole log, whoever wants the event; the way is shown, and Ctrl-C breaks it off.

    Example: headgate seek orders --first 'data.commit_ts >= 449320000000' --after
    """
    asked = {"to": to, "first": first, "last": last, "after": after}
    with ThreadPoolExecutor(1) as thread:
        seeking = thread.submit(
            request, server, "POST", _path(namespace, name, "seek"), body=asked, timeout_s=_SEEK_S_MAX
        )
        try:
            while wait([seeking], timeout=_LOOK_S).not_done:
                _show_progress(server, namespace, name)
        except KeyboardInterrupt:
            request(server, "DELETE", _path(namespace, name, "seek"))
        done = seeking.result()
    where = first or last or to
    typer.echo(f"subscription {namespace}/{name} goes on at {where} ({done['position']}, epoch {done['epoch']})")


def _show_progress(server: str, namespace: str, name: str) -> None:
    found = request(server, "GET", _path(namespace, name, "seek"))
    if found["running"] and found["eventsTotal"]:
        typer.echo(f"looked at {found['eventsScanned']:,} of about {found['eventsTotal']:,} events", err=True)


@app.command()
def describe(
    name: Name,
    namespace: Namespace = NAMESPACE_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show where a subscription stands: backlog, what consumers have, and what became of events so far."""
    found = request(server, "GET", _path(namespace, name, "stats"))
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
    """Say how many events of the backlog a filter would accept; nothing is consumed.

    Example: headgate subscription analyze orders --filter 'data.amount > 100'
    """
    try:
        written = json.loads(filter_) if filter_.lstrip().startswith("{") else {"expression": filter_}
    except ValueError as error:
        raise InvalidInputError(f"--filter is no JSON: {error}", hint="CEL needs no braces") from error
    found = _ask(server, namespace, name, "analyze", {"filter": written})
    more = "" if found["complete"] else " (there are more)"
    typer.echo(
        f"{found['accepted']} of {found['events']} events{more}; {found['rejected']} rejected, {found['errors']} errors"
    )


def _ask(server: str, namespace: str, name: str, action: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    return request(server, "POST", _path(namespace, name, action), body=body)


def _path(namespace: str, name: str, action: str) -> str:
    kind, where = Kind.SUBSCRIPTION, quote(namespace, safe="")
    return f"/apis/{kind.api_version}/namespaces/{where}/{kind.plural}/{quote(name, safe='')}/{action}"
