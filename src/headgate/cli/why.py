"""headgate why: why was this event not delivered to this trigger? Asks the server, piece by piece of its log."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from headgate.cli.client import SERVER_DEFAULT, Namespace, NoServerError, RefusedError, Server, request
from headgate.cli.filterinput import fail
from headgate.control.defaults import NAMESPACE_DEFAULT
from headgate.control.durations import duration_s
from headgate.control.objects import API_VERSION
from headgate.event import rfc3339

_NOT_FOUND_YET: Final = "not-found-yet"
_PARTS_SHOWN: Final = 60
_TEXT_CHARACTERS: Final = 70
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def why(
    event_id: Annotated[str, typer.Argument(metavar="EVENT-ID", help="The event's id.")],
    trigger: Annotated[str, typer.Option("--trigger", "-t", help="Name of the trigger.")],
    source: Annotated[str, typer.Option("--source", help="The event's source, where ids repeat.")] = "",
    since: Annotated[
        str, typer.Option("--since", help="Look at nothing older: a time (RFC 3339) or an age (90s, 15m, 12h, 7d).")
    ] = "",
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="The server's answer, on one line.")] = False,
) -> None:
    """Say what became of an event: not stored, filtered (by which part), an error, matched and undelivered, ended.

    \b
    Examples:
      headgate why 1234 --trigger gold
      headgate why 1234 --trigger gold --source /shop --since 2h
    """  # noqa: D301 - click reads \b as "keep these lines"
    query = {"id": event_id, "source": source, "since": _since(since)}
    path = f"/apis/{API_VERSION}/namespaces/{quote(namespace)}/triggers/{quote(trigger)}/why"
    try:
        answer = request(server, "GET", f"{path}?{urlencode(query)}")
        while answer["fate"] == _NOT_FOUND_YET:
            typer.echo(f"searched back to {answer['searchedTo']}", err=True)
            answer = request(server, "GET", f"{path}?{urlencode(query | {'next': answer['next']})}")
    except (RefusedError, NoServerError) as error:
        fail(error.message, error.hint)
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False))
    else:
        _say(answer)


def _say(answer: dict[str, Any]) -> None:
    typer.echo(f"{answer['fate']}: {answer['message']}")
    if event := answer.get("event"):
        place = f"{event['broker']}, partition {event['partition']}, offset {event['offset']}, stored {event['stored']}"
        typer.echo(f"event    {place}")
    if (attempts := answer.get("attempts")) and (attempts.get("code") or attempts.get("answer")):
        typer.echo(f"answer   {attempts.get('code', '')} {json.dumps(attempts.get('answer', ''))}")
    if trace := answer.get("trace"):
        typer.echo(f"filter   {trace['outcome']}")
        for line in trace["caret"].splitlines():
            typer.echo(f"  {line}")
        for part in trace["parts"][:_PARTS_SHOWN]:
            text = trace["cel"][part["start"] : part["end"]]
            text = text if len(text) <= _TEXT_CHARACTERS else text[: _TEXT_CHARACTERS - 3] + "..."
            value = f"error: {part['value']}" if part["kind"] == "error" else part["value"]
            element = f"  ({part['element']})" if part["element"] else ""
            mark = ">" if part["decided"] else " "
            typer.echo(f" {mark} {'  ' * part['depth']}{text} = {value}{element}")


def _since(text: str) -> str:
    """A time as the server takes it."""
    if not text or rfc3339.micros(text) is not None:
        return text
    try:
        is_short = text[-1] in _UNITS_S and text[:-1].isdecimal()
        age_s = float(int(text[:-1]) * _UNITS_S[text[-1]]) if is_short else duration_s(text)
        return (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (ValueError, OverflowError):
        fail(f"--since {text!r} is no time and no age", "--since 2026-01-02T03:04:05Z, --since 15m, --since 7d")
