"""`headgate send` and `tail`: publishes events, and reads a broker's events from any position, with any filter."""

from __future__ import annotations

import json
import re
import sys
import uuid
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
from headgate_cli.client import (
    BROKER_DEFAULT,
    SERVER_DEFAULT,
    ApiRefusedError,
    Broker,
    Namespace,
    Server,
    lines,
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
    path = quote(full_name(broker, namespace))
    try:
        for line in lines(server, f"/{path}/events?{urlencode(parameters)}", accept="application/x-ndjson"):
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
