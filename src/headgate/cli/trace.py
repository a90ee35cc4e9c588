"""headgate trace: what happened to an event? Stored where, matched by which filters, every attempt and its answer."""

from __future__ import annotations

import json
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from headgate.dispatch.journal import Entry
from headgate.dispatch.story import Match, Story, stories
from headgate.errors import NotFoundError
from headgate.event import rfc3339
from headgate.event.trace import context_of
from headgate.limits import TRACE_STORIES_MAX


def trace(
    event_id: Annotated[str, typer.Argument(metavar="EVENT-ID", help="The event's id.")],
    data: Annotated[Path, typer.Option(help="The server's data directory; the server may run.")] = Path(
        "headgate-data"
    ),
    source: Annotated[str, typer.Option(help="Only events of this source: an id is unique within one.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON for machines: one object a line.")] = False,
) -> None:
    """Tell an event's whole story, from the files of a data directory.

    Example: headgate trace order-4711 --data ./headgate-data
    """
    found = list(islice(stories(data, event_id, source=source), TRACE_STORIES_MAX + 1))
    if not found:
        raise NotFoundError(
            f"no event with the id {event_id!r} is stored in {data}",
            hint="it was never accepted there, or retention took it; --data names the directory",
        )
    for number, story in enumerate(found[:TRACE_STORIES_MAX]):
        if as_json:
            typer.echo(json.dumps(_object(story)))
        else:
            typer.echo(("\n" if number else "") + "\n".join(_lines(story)))
    if len(found) > TRACE_STORIES_MAX:
        typer.echo(f"hint: only {TRACE_STORIES_MAX} of more events are shown; --source narrows it", err=True)


def _lines(story: Story) -> list[str]:
    event, hit = story.event, story.hit
    lines = [f"event {event.id}  source {event.source}  type {event.type}  broker {story.broker}"]
    if traceparent := context_of(event).get("traceparent"):
        lines.append(f"trace {traceparent.split('-')[1]}")
    last = hit.first_offset + hit.record_count - 1
    lines.append(
        f"{rfc3339.text(hit.append_time_us)}  stored: partition {hit.partition}, offset {hit.offset}, "
        f"chunk {hit.first_offset} to {last}"
    )
    if not story.matches:
        lines.append("matched by no trigger" if story.evaluated else "not matched yet")
    for match in story.matches:
        lines += _match_lines(match)
    return lines


def _match_lines(match: Match) -> list[str]:
    name = match.trigger or f"(deleted, id {match.target})"
    lines = [
        f"{rfc3339.text(match.time_us)}  matched: trigger {name}, verdict {match.verdict}, "
        f"generation {match.generation}, outbox position {match.position}"
    ]
    lines += [f"{rfc3339.text(entry.time_us)}    {_entry_line(entry)}" for entry in match.attempts]
    if not match.attempts and match.verdict != "error":
        lines.append("    no attempt is known: none yet, or too long ago")
    return lines


def _entry_line(entry: Entry) -> str:
    if entry.result:
        return f"ended: {entry.result.replace('_', ' ')}"
    answer = f"{entry.status} {_phrase(entry.status)}".rstrip() if entry.status else "no answer"
    failed = f", failed ({entry.reason})" if entry.reason else ", delivered"
    return f"attempt {entry.attempt}: {answer}{failed}"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _object(story: Story) -> dict[str, object]:
    event, hit = story.event, story.hit
    return {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "broker": story.broker,
        "stored": {
            "time": rfc3339.text(hit.append_time_us),
            "partition": hit.partition,
            "offset": hit.offset,
            "chunk": {"firstOffset": hit.first_offset, "records": hit.record_count},
        },
        "evaluated": story.evaluated,
        "matches": [
            {
                "trigger": match.trigger,
                "target": match.target,
                "time": rfc3339.text(match.time_us),
                "verdict": match.verdict,
                "generation": match.generation,
                "position": match.position,
                "attempts": [
                    {
                        "time": rfc3339.text(entry.time_us),
                        "attempt": entry.attempt,
                        "status": entry.status,
                        "reason": entry.reason,
                        "result": entry.result,
                    }
                    for entry in match.attempts
                ],
            }
            for match in story.matches
        ],
    }
