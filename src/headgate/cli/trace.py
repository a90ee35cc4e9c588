"""`headgate trace`: the whole way of an event: where it is stored, matches, attempts and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from headgate.cli.client import (
    BROKER_DEFAULT,
    SERVER_DEFAULT,
    Broker,
    JsonLinesOption,
    Namespace,
    Server,
    named_path,
)
from headgate.cli.why import entry_text, search
from headgate.control.objects import Kind
from headgate.errors import NotFoundError
from headgate.event.names import NAMESPACE_DEFAULT, full_name
from headgate.limits import TRACE_EVENTS_MAX


def trace(
    event_id: Annotated[str, typer.Argument(metavar="EVENT-ID", help="The event's id.")],
    broker: Broker = BROKER_DEFAULT,
    source: Annotated[str, typer.Option(help="The event's source, if its id is not unique.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Every stored event with this id, not only the newest.")] = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: JsonLinesOption = False,
) -> None:
    """Show the whole path of an event: where it is stored, its matches, every attempt and its answer.

    \b
    Examples:
      headgate trace order-4711
      headgate trace order-4711 --broker shop/orders --source /shop --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    path = named_path(Kind.BROKER, broker, namespace, "trace")
    shown = 0
    for found in _traces(server, path, {"id": event_id, "source": source}):
        if shown == TRACE_EVENTS_MAX:
            typer.echo(f"hint: only {shown} events are shown; --source narrows the search", err=True)
            break
        if as_json:
            typer.echo(json.dumps(found, ensure_ascii=False))
        else:
            typer.echo(("\n" if shown else "") + "\n".join(_lines(found)))
        shown += 1
        if not every:
            break
    if not shown:
        raise NotFoundError(
            f"broker {full_name(broker, namespace)} has stored no event with the id {event_id!r}",
            hint="it was never accepted there, or retention took it; --broker names another broker",
        )


def _traces(server: str, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The stored events of an id, the newest first."""
    answer = search(server, path, query)
    while "trace" in answer:
        yield answer["trace"]
        if "next" not in answer:
            return
        answer = search(server, path, {**query, "next": answer["next"]})


def _lines(trace: dict[str, Any]) -> list[str]:
    found = trace["event"]
    event = found["event"]
    lines = [f"event {event['id']}  source {event['source']}  type {event['type']}  broker {found['broker']}"]
    if traceparent := event.get("traceparent"):
        lines.append(f"trace {traceparent.split('-')[1]}")
    first, last = trace["chunk"]
    lines.append(
        f"{found['stored']}  stored: partition {found['partition']}, offset {found['offset']}, chunk {first} to {last}"
    )
    matches = trace.get("matches", [])
    if not matches:
        lines.append("matched by no filter" if trace["evaluated"] else "not matched yet")
    for match in matches:
        lines += _match_lines(match)
    for one in trace.get("tree", []):
        kind = f"hop {one['hops']}" if one["hops"] else "root"
        place = f"partition {one['partition']}, offset {one['offset']}"
        lines.append(f"{one['stored']}  {kind}: event {one['id']}  source {one['source']}  type {one['type']}, {place}")
    if not trace.get("treeComplete", True):
        lines.append("replies: not all of the log was searched")
    for entry in trace.get("replays", []):
        lines.append(f"{entry['time']}  {entry_text(entry)}")
    return lines


def _match_lines(match: dict[str, Any]) -> list[str]:
    kind = match.get("kind", "target").lower()
    name = match.get("name") or f"(deleted, id {match['target']})"
    lines = [
        f"{match['time']}  matched: {kind} {name}, verdict {match['verdict']}, "
        f"generation {match['generation']}, outbox position {match['position']}"
    ]
    attempts = match.get("attempts", [])
    lines += [f"{entry['time']}    {entry_text(entry)}" for entry in attempts]
    if letter := match.get("deadLetter"):
        problem = f": {letter['problem']}" if letter.get("problem") else ""
        lines.append(f"{letter['died']}    dead letter {letter['id']} ({letter['reason']}), {letter['state']}{problem}")
    if pull := match.get("subscription"):
        times = f", handed out {pull['deliveries']} times" if pull.get("deliveries") else ""
        consumer = f", to {pull['consumer']}" if pull.get("consumer") else ""
        lines.append(f"    {pull['state'].replace('-', ' ')}{times}{consumer}")
    elif not attempts and match["verdict"] != "error":
        lines.append("    no attempt is known: none yet, or too long ago")
    return lines
