"""`headgate send`, `consume`, `seek` and `subscription`: events in and out, and where a subscription stands."""

from __future__ import annotations

import json
import os
import socket
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import typer

from headgate_api.errors import InvalidInputError
from headgate_api.event.attributes import is_json
from headgate_api.event.json_format import decode_event, encode_event
from headgate_api.event.model import DataKind, Event, ExtensionValue
from headgate_api.event.names import NAMESPACE_DEFAULT, full_name
from headgate_api.limits import PULL_EVENTS_DEFAULT
from headgate_api.objects.kinds import Kind
from headgate_cli.client import (
    BROKER_DEFAULT,
    SERVER_DEFAULT,
    TIMES_HELP,
    RefusedError,
    filter_value,
    named_path,
    print_table,
    request,
    time_text,
)
from headgate_cli.options import Broker, JsonOption, Namespace, Server, offers


def send(
    file: Annotated[
        Path | None, typer.Argument(help="Events as JSON lines (structured CloudEvents); - for stdin.")
    ] = None,
    type_: Annotated[
        str | None, typer.Option("--type", help="The event's type, for example com.shop.order.paid.")
    ] = None,
    source: Annotated[str, typer.Option(help="Where the event happened.")] = "/headgate/cli",
    id_: Annotated[str | None, typer.Option("--id", help="The event's id. Default: a new UUID.")] = None,
    subject: Annotated[str | None, typer.Option(help="What the event is about.")] = None,
    time_: Annotated[
        str | None, typer.Option("--time", help=f"When it happened: now, {TIMES_HELP}. Default: the event has no time.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The event's data, as JSON.")] = None,
    data_file: Annotated[
        Path | None, typer.Option("--data-file", metavar="FILE", help="A file of the event's data; - for stdin.")
    ] = None,
    datacontenttype: Annotated[
        str | None,
        typer.Option(help="Media type of the data. Data of another type than JSON is sent as it is."),
    ] = None,
    extension: Annotated[
        list[str] | None, typer.Option("--extension", "-e", help="An extension, NAME=VALUE. Repeatable.")
    ] = None,
    broker: Broker = BROKER_DEFAULT,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")] = False,
) -> None:
    """Publish CloudEvents: one from options, or many from a file of JSON lines.

    \b
    Examples:
      headgate send --type com.shop.order.paid --data '{"total": 42}'
      headgate send --type com.shop.invoice --time now --data-file invoice.pdf --datacontenttype application/pdf
      headgate send -b shop/orders events.jsonl
    """  # noqa: D301 - click reads \b as "keep these lines"
    if (file is None) == (type_ is None):
        raise InvalidInputError("give either --type or a FILE of events", hint="headgate send --help shows examples")
    if file is not None:
        events = [decode_event(line) for line in _content("FILE", file).splitlines() if line.strip()]
    else:
        assert type_ is not None
        if data is not None and data_file is not None:
            raise InvalidInputError("--data and --data-file each give the data", hint="leave out one of them")
        body = _content("--data-file", data_file) if data_file is not None else None if data is None else data.encode()
        media_type = datacontenttype or ("application/json" if body is not None else None)
        events = [
            Event(
                specversion="1.0",
                id=id_ or str(uuid.uuid4()),
                source=source,
                type=type_,
                subject=subject,
                time=None if time_ is None else time_text("0s" if time_ == "now" else time_),
                datacontenttype=media_type,
                extensions=_extensions(extension or []),
                data_kind=DataKind.NONE if body is None else _kind(media_type, body),
                data=body,
            )
        ]
    path = f"/{quote(full_name(broker, namespace))}"
    for event in events:
        _post(server, path, event)
        typer.echo(json.dumps({"id": event.id, "accepted": True}) if as_json else f"accepted {event.id}")


def _content(option: str, path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{option} {path} cannot be read: {error.strerror}", hint="- reads stdin") from error


def _extensions(pairs: list[str]) -> dict[str, ExtensionValue]:
    split = [pair.partition("=") for pair in pairs]
    if any(not equals for _, equals, _ in split):
        raise InvalidInputError("--extension is not NAME=VALUE", hint="for example: -e tenant=acme")
    return {name: value for name, _, value in split}


def _kind(media_type: str | None, data: bytes) -> DataKind:
    if is_json(media_type):
        try:
            msgspec.json.decode(data, type=msgspec.Raw)
        except msgspec.DecodeError as error:
            raise InvalidInputError(
                f"the data is no JSON: {error}",
                hint="quote a text twice, as in --data '\"hello\"', or give --datacontenttype text/plain",
            ) from error
        return DataKind.JSON
    try:
        data.decode()
    except UnicodeDecodeError:
        return DataKind.BINARY
    return DataKind.TEXT if (media_type or "").startswith("text/") else DataKind.BINARY


def _post(server: str, path: str, event: Event) -> None:
    try:
        body = msgspec.Raw(encode_event(event))
        request(server, "POST", path, body=body, content_type="application/cloudevents+json")
    except RefusedError as error:
        problem = f"event {event.id}: {error.message} (HTTP {error.status})"
        raise type(error)(error.status, problem, hint=error.hint) from error


# --- subscriptions ---------------------------------------------------------------------------------

_WAIT_S: Final = 20.0
"""How long one pull waits at the server."""
_PROGRESS_S: Final = 1.0
"""How often the progress of a seek is printed."""
_SEEK_S_MAX: Final = 86_400.0
"""A seek through a large log may take hours; Ctrl-C cancels it."""

subscriptions = typer.Typer(
    no_args_is_help=True, help="Show a subscription's state, and count what a filter would match in its backlog."
)

Name = Annotated[
    str,
    typer.Argument(help="NAME or NAMESPACE/NAME of the subscription.", autocompletion=offers("subscriptions")),
]


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
    to: Annotated[str, typer.Option(help=f"earliest, latest, {TIMES_HELP} or a position (0:123,1:456).")] = "earliest",
    first: Annotated[
        str, typer.Option(help="The first event from there on for which this is true: CEL, or JSON as in spec.filter.")
    ] = "",
    last: Annotated[str, typer.Option(help="The last event for which this is true.")] = "",
    after: Annotated[
        bool, typer.Option("--after", help="With --first and --last: move to the position after that event.")
    ] = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    as_json: JsonOption = False,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Move a subscription, for all its consumers: events are delivered again, or skipped.

    With an expression, the server searches the whole log, not only the subscription's events. Ctrl-C cancels it.

    Example: headgate seek orders --first 'data.commit_ts >= 449320000000' --after
    """
    body = {"to": time_text(to), "first": first, "last": last, "after": after}
    with ThreadPoolExecutor(1) as thread:
        seeking = thread.submit(
            copy_context().run,
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
    if as_json:
        typer.echo(json.dumps(done))
        return
    where = first or last or to
    typer.echo(
        f"subscription {full_name(name, namespace)} moved to {where} ({done['position']}, epoch {done['epoch']})"
    )


def _show_progress(server: str, namespace: str, name: str) -> None:
    found = request(server, "GET", named_path(Kind.SUBSCRIPTION, name, namespace, "seek"))
    if found["running"] and found["eventsTotal"]:
        typer.echo(f"searched {found['eventsScanned']:,} of about {found['eventsTotal']:,} events", err=True)


@subscriptions.command()
def describe(
    name: Name, namespace: Namespace = NAMESPACE_DEFAULT, as_json: JsonOption = False, server: Server = SERVER_DEFAULT
) -> None:
    """Show a subscription's state: its backlog, events with consumers, and counters.

    Example: headgate subscription describe orders -n shop
    """
    found = request(server, "GET", named_path(Kind.SUBSCRIPTION, name, namespace, "stats"))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    print_table([[key, "-" if value is None else str(value)] for key, value in found.items()])


@subscriptions.command()
def analyze(
    name: Name,
    filter_: Annotated[str, typer.Option("--filter", help="CEL, or JSON as in a trigger's spec.filter.")],
    namespace: Namespace = NAMESPACE_DEFAULT,
    as_json: JsonOption = False,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Count the events of the backlog that a filter would accept; nothing is consumed.

    Example: headgate subscription analyze orders --filter 'data.amount > 100'
    """
    written = filter_value(filter_)
    body = {"filter": written if isinstance(written, dict) else {"expression": written}}
    found = _ask(server, namespace, name, "analyze", body)
    if as_json:
        typer.echo(json.dumps(found))
        return
    more = "" if found["complete"] else " (there are more)"
    typer.echo(
        f"{found['accepted']} of {found['events']} events{more}; {found['rejected']} rejected, {found['errors']} errors"
    )


def _ask(server: str, namespace: str, name: str, action: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    return request(server, "POST", named_path(Kind.SUBSCRIPTION, name, namespace, action), body=body)
