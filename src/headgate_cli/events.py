"""`headgate send`, `tail`, `consume`, `seek` and `subscription`: events in and out, and where a subscription stands."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import msgspec
import typer

from headgate_api import positions
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.event.json_format import decode_event, encode_event
from headgate_api.event.model import DataKind, Event
from headgate_api.event.names import NAMESPACE_DEFAULT, full_name
from headgate_api.limits import PULL_EVENTS_DEFAULT
from headgate_api.objects.kinds import Kind
from headgate_cli.client import (
    BROKER_DEFAULT,
    SERVER_DEFAULT,
    ApiRefusedError,
    Broker,
    JsonOption,
    Namespace,
    Server,
    filter_value,
    lines,
    named_path,
    print_table,
    request,
    time_text,
)

_CONTROL: Final = re.compile("[\x7f-\x9f]")


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
    data: Annotated[str | None, typer.Option(help="The event's data, as JSON.")] = None,
    extension: Annotated[
        list[str] | None, typer.Option("--extension", "-e", help="An extension, NAME=VALUE. Repeatable.")
    ] = None,
    broker: Broker = BROKER_DEFAULT,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")] = False,
) -> None:
    """Publish CloudEvents: one from options, or many from a file of JSON lines.

    Example: headgate send --type com.shop.order.paid --data '{"total": 42}'

    Example: headgate send events.jsonl --broker shop/orders
    """
    if (file is None) == (type_ is None):
        raise InvalidInputError("give either --type or a FILE of events", hint="headgate send --help shows examples")
    if file is not None:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        events = [decode_event(line.encode()) for line in text.splitlines() if line.strip()]
    else:
        assert type_ is not None
        events = [_from_flags(type_, source, id_ or str(uuid.uuid4()), subject, data, extension or [])]
    path = f"/{quote(full_name(broker, namespace))}"
    for event in events:
        _post(server, path, event)
        typer.echo(json.dumps({"id": event.id, "accepted": True}) if as_json else f"accepted {event.id}")


def _from_flags(
    type_: str, source: str, id_: str, subject: str | None, data: str | None, extensions: list[str]
) -> Event:
    pairs = [pair.partition("=") for pair in extensions]
    if any(not equals for _, equals, _ in pairs):
        raise InvalidInputError("--extension is not NAME=VALUE", hint="for example: -e tenant=acme")
    return Event(
        specversion="1.0",
        id=id_,
        source=source,
        type=type_,
        subject=subject,
        datacontenttype="application/json" if data is not None else None,
        extensions={name: value for name, _, value in pairs},
        data_kind=DataKind.NONE if data is None else DataKind.JSON,
        data=None if data is None else data.encode(),
    )


def _post(server: str, path: str, event: Event) -> None:
    try:
        body = msgspec.Raw(encode_event(event))
        request(server, "POST", path, body=body, content_type="application/cloudevents+json")
    except ApiRefusedError as error:
        problem = f"event {event.id}: {error.message} (HTTP {error.status})"
        raise ApiRefusedError(error.status, problem, hint=error.hint) from error


def tail(
    broker: Broker = BROKER_DEFAULT,
    start: Annotated[
        str,
        typer.Option(
            "--from", help="earliest, latest, next, a time (RFC 3339), an age (15m, 7d) or a position (0:123,1:456)."
        ),
    ] = "next",
    filter_: Annotated[str | None, typer.Option("--filter", help="CEL, or JSON as in a trigger's spec.filter.")] = None,
    first: Annotated[
        str | None, typer.Option(help="Start at the first event for which this CEL expression is true.")
    ] = None,
    value: Annotated[list[str] | None, typer.Option(help="Only chunks with this filter value. Repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after this many events.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more events at the end.")] = True,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's lines, progress included.")] = False,
) -> None:
    """Print a broker's events, one on each line, and wait for new ones. Ctrl-C ends it and prints the position.

    Example: headgate tail --filter 'data.amount > 100'

    Example: headgate tail --broker shop/orders --from 1h --no-follow --value com.shop.order.paid --json
    """
    parameters = [("from", time_text(start)), ("follow", str(follow).lower())]
    parameters += [(name, text) for name, text in (("filter", filter_), ("first", first)) if text is not None]
    parameters += [("filterValue", each) for each in value or ()]
    parameters += [("limit", str(limit))] if limit is not None else []
    places: dict[int, int] = {}
    errors = 0
    path = events_path(full_name(broker, namespace), parameters)
    try:
        for line in lines(server, path, accept="application/x-ndjson"):
            found = json.loads(line)
            if as_json:
                typer.echo(_harmless(line.decode().rstrip()))
            if "specversion" in found:  # an event, whatever its extensions are called
                if not as_json:
                    typer.echo(_shown(found))
                partition, offset = map(int, found["hgposition"].split(":"))
                places[partition] = offset + 1
            elif "progress" in found:
                places |= positions.parse(found["progress"]["position"])
                if (known := found["progress"].get("filterErrors", 0)) > errors:
                    errors = known
                    tell = f"headgate: the filter is an error on {errors} of the events so far; they are not printed"
                    print(tell, file=sys.stderr)
            else:
                raise UnavailableError(found["error"]["message"], hint=_on(places))
    except KeyboardInterrupt:
        pass
    if places:
        print(f"headgate: {_on(places)}", file=sys.stderr)


def events_path(broker: str, parameters: Sequence[tuple[str, str]]) -> str:
    """The path that answers with stored events of a broker, NAMESPACE/NAME."""
    return f"/{quote(broker)}/events?{urlencode(parameters)}"


def _on(places: dict[int, int]) -> str:
    """Where to go on; "" when nothing was read."""
    return f"read up to --from {positions.write(places)}" if places else ""


def _harmless(text: str) -> str:
    """A terminal obeys control characters. JSON has those above U+007E in texts only, and writes them so."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(event: dict[str, Any]) -> str:
    """Place, time, type, source, subject and data on one line, for a terminal."""
    data = event.get("data", event.get("data_base64", ""))
    parts = [event.get(name, "") for name in ("hgposition", "time", "type", "source", "subject")]
    if data:
        parts.append(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    return _harmless("  ".join(filter(None, parts)))


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


@subscriptions.command()
def describe(
    name: Name, namespace: Namespace = NAMESPACE_DEFAULT, as_json: JsonOption = False, server: Server = SERVER_DEFAULT
) -> None:
    """Show a subscription's state: its backlog, events with consumers, and counters."""
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
