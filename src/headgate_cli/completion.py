"""What a shell offers for the word at hand: kinds, and names that the server has. Nothing where no server answers."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import typer

from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_cli.client import SERVER_DEFAULT, request
from headgate_cli.resources import RESOURCES, Resource, resource_named

_ANSWER_S_MAX: Final = 2.0
"""A person who presses Tab waits no longer."""
_NAMES_MAX: Final = 500
_NAMES_ONLY: Final = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def kinds(ctx: typer.Context, incomplete: str) -> list[str]:
    """Kinds of objects; behind `KIND/` the names of one."""
    kind, slash, name = incomplete.partition("/")
    if not slash:
        return [one.plural for one in RESOURCES if one.plural.startswith(incomplete)]
    known = _resource(kind)
    return [f"{kind}/{one}" for one in _names(ctx, known, name)] if known else []


def objects_of_kind(ctx: typer.Context, incomplete: str) -> list[str]:
    """Objects of the kind that stands before."""
    known = _resource(str(ctx.params.get("kind") or ""))
    return _names(ctx, known, incomplete) if known else kinds(ctx, incomplete)


def names_there(plural: str, ctx: typer.Context, begun: str) -> list[str]:
    """Names of the objects of a kind, `NAME` or `NAMESPACE/NAME`."""
    return _names(ctx, resource_named(plural), begun)


def _resource(kind: str) -> Resource | None:
    with suppress(InvalidInputError):
        return resource_named(kind)
    return None


def _names(ctx: typer.Context, kind: Resource, begun: str) -> list[str]:
    """Names of a kind that begin so, in the namespace of the command or in that of `NAMESPACE/`."""
    place, slash, name = begun.rpartition("/")
    namespace = place or str(ctx.params.get("namespace") or NAMESPACE_DEFAULT)
    server = str(ctx.params.get("server") or SERVER_DEFAULT)
    path = f"{kind.path(namespace)}?limit={_NAMES_MAX}"
    try:
        answer = request(server, "GET", path, accept=_NAMES_ONLY, timeout_s=_ANSWER_S_MAX)
        found = [str(one["metadata"]["name"]) for one in answer["items"]]
    except (HeadgateError, KeyError, TypeError):
        return []
    return [f"{place}{slash}{one}" for one in found if one.startswith(name)]
