"""`headgate send`: publishes events from flags, a file or standard input."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from headgate.cli.client import (
    BROKER_DEFAULT,
    SERVER_DEFAULT,
    ApiRefusedError,
    Broker,
    Namespace,
    Server,
    request,
)
from headgate.errors import InvalidInputError
from headgate.event.json_format import decode_event, encode_event
from headgate.event.model import DataKind, Event
from headgate.event.names import NAMESPACE_DEFAULT, full_name


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
