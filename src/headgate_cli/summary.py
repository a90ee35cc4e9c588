"""`headgate summary`: parts, rates, backlog and what needs attention, of a running server or a namespace of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from headgate_api.objects.kinds import OWN_API_VERSION
from headgate_cli.client import SERVER_DEFAULT, JsonOption, Server, api_path, counted, request


def summary(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="One namespace.", show_default="the whole server")
    ] = None,
    server: Server = SERVER_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show parts, rates, backlog, and what needs attention.

    \b
    Examples:
      headgate summary
      headgate summary -n shop --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    found = request(server, "GET", api_path(OWN_API_VERSION, namespace, "summary"))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    for line in _lines(found):
        typer.echo(line)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    waiting = [
        f"{one['name']}{' of ' + one['server'] if one.get('server') else ''}"
        f"{': ' if one.get('note') else ''}{one.get('note', '')}"
        for one in found["parts"]
        if not one["ready"]
    ]
    yield f"parts         {'not ready: ' + '; '.join(waiting) if waiting else 'ready'}"
    objects = (counted(count, plural.removesuffix("s")) for plural, count in found["objects"].items())
    yield f"objects       {', '.join(objects)}"
    rates, latency, backlog, letters = found["rates"], found.get("latency", {}), found["backlog"], found["deadLetters"]
    times = "".join(
        f", {name} {1_000 * latency[name]:.1f} ms" for name in ("p50", "p99") if latency.get(name) is not None
    )
    yield (
        f"last minute   {rates['received']:.1f} events/s in, {rates['delivered']:.1f} deliveries/s out, "
        f"{rates['failed']:.1f}/s given up{times}"
    )
    yield (
        f"backlog       {counted(backlog['deliveries'], 'delivery', 'deliveries')} in memory, "
        f"{counted(backlog['lagging'], 'trigger')} with more, {counted(backlog['circuitsOpen'], 'circuit')} open"
    )
    yield f"dead letters  {letters['count']:,}, {letters['kept']:,} kept"
    shown, total = found["attention"], found["attentionTotal"]
    yield f"attention     {total}"
    for one in shown:
        named = f"{one['kind']} {one['namespace']}/{one['name']}"
        yield f"  {named}  {one.get('type', '')} {one.get('reason', '')}: {one.get('message', '')}"
    if len(shown) < total:
        yield f"  ... and {total - len(shown)} more"
