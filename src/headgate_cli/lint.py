"""`headgate lint`: what the filters of a broker's triggers and subscriptions say of one another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import typer

from headgate_api.event.names import NAMESPACE_DEFAULT, full_name
from headgate_api.objects.kinds import API_VERSION
from headgate_cli.client import (
    BROKER_DEFAULT,
    SERVER_DEFAULT,
    Broker,
    JsonOption,
    Namespace,
    Server,
    api_path,
    counted,
    request,
)

_OTHERS_SHOWN: Final = 3


def lint(
    broker: Broker = BROKER_DEFAULT,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Compare the filters of a broker: which are equal, implied by others, never or always true.

    What is said is sure for every event. Filters of which nothing is said may still be related.

    Example: headgate lint --broker shop/orders
    """
    within, _, name = full_name(broker, namespace).partition("/")
    found = request(server, "GET", api_path(API_VERSION, within, "brokers", name, "lint"))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    for line in _lines(found):
        typer.echo(line)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for one in found["items"]:
        for says in _says(one):
            yield f"{one['kind']}/{one['name']}: {says}"
    left_out = found.get("leftOut", 0)
    if left_out:
        yield f"... and {left_out} more"
    yield f"{counted(found['filters'], 'filter')} compared, {len(found['items']) + left_out or 'none'} with a remark"


def _says(one: dict[str, Any]) -> Iterator[str]:
    if one.get("never"):
        yield "no event makes the filter true"
    if one.get("always"):
        yield "every event makes the filter true"
    if equal := one.get("equal"):
        yield f"the same filter as {_listed(equal)}"
    if wider := one.get("impliedBy"):
        yield f"all of its events also go to {_listed(wider)}"
    if redundant := one.get("redundant"):
        yield f"{counted(redundant, 'alternative')} without effect, contained in others of the filter"


def _listed(names: list[str]) -> str:
    more = len(names) - _OTHERS_SHOWN
    return ", ".join(names[:_OTHERS_SHOWN]) + (f" and {more} more" if more > 0 else "")
