"""`headgate apply --preview` and `--max-change`: what changed filters do to the events of the last hour, exactly.

Each changed filter of a trigger or subscription is counted on the stored events beside the one that the server has now.
Nothing is changed by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import typer

from headgate_api.backtest import BacktestRequest, BacktestSummary, SeenEvent
from headgate_api.errors import InvalidInputError
from headgate_api.objects.kinds import Kind
from headgate_cli.backtest import backtested
from headgate_cli.client import BROKER_DEFAULT, ApiRefusedError, counted, fail, object_path, request, time_text

_FILTERED: Final = frozenset({Kind.TRIGGER, Kind.SUBSCRIPTION})
_EVERYTHING: Final = "true"
_TAGS: Final = "tags"
"""The consumer filter of a subscription that names none."""


@dataclass(frozen=True, slots=True)
class FilterChange:
    """A filter that a file changes, and what both take; `found.against` is None for a new object."""

    label: str
    found: BacktestSummary

    @property
    def come(self) -> int:
        """Events that the changed filter takes, and the one of now does not."""
        return self.found.taken - (self.found.both or 0)

    @property
    def go(self) -> int:
        return (self.found.against or 0) - (self.found.both or 0)

    @property
    def percent(self) -> float:
        """How many events come or go, of those that the filter takes now; 0 for a new object."""
        if self.found.against is None or not (self.come or self.go):
            return 0.0
        return 100 * (self.come + self.go) / self.found.against if self.found.against else float("inf")


def changes(
    server: str, objects: Iterable[tuple[str, Kind, str, Mapping[str, Any]]], since: str
) -> Iterator[FilterChange]:
    """Of named objects, each with its label, kind and namespace, those whose filter is not as the server has it.

    Raises InvalidInputError for a filter that the server refuses; says so where a broker is not there yet.
    """
    start = time_text(since)
    for label, kind, namespace, body in objects:
        spec = body.get("spec")
        if kind not in _FILTERED or not isinstance(spec, Mapping):
            continue
        old = request(server, "GET", object_path(kind, namespace, str(body["metadata"]["name"])), missing_ok=True)
        broker = f"{namespace}/{spec.get('broker') or BROKER_DEFAULT}"
        try:
            new, before = filter_of(spec), filter_of(old["spec"]) if old is not None else ""
            if new == before:
                continue
            asked = BacktestRequest(filter=new, against=before, from_=start, triggers=False)
            yield FilterChange(label, backtested(asked, server, broker))
        except InvalidInputError as error:
            if isinstance(error, ApiRefusedError) and error.status == HTTPStatus.NOT_FOUND:
                typer.echo(f"{label}: the broker {broker} is not there yet, and has no events")
                continue
            raise InvalidInputError(f"{label}: {error.message}", hint=error.hint) from error


def filter_of(spec: Mapping[str, Any]) -> str | dict[str, Any] | list[Any]:
    """The filter of a trigger's or subscription's spec, with the tags that it asks for, as a backtest takes it."""
    one, filters = spec.get("filter"), list(spec.get("filters") or ())
    metadata = spec.get("consumerMetadata") or {}
    if (name := spec.get("consumerFilter") or _TAGS) == _TAGS:
        tags = {key: value for key, value in metadata.items() if key.startswith(("anytag", "alltag"))}
        if tags:
            filters = [*(filters or ([one] if one else [])), {_TAGS: tags}]
    elif metadata:
        message = f"the consumerFilter {name} cannot be previewed: its package is the server's"
        raise InvalidInputError(message, hint="apply it without --preview")
    return filters or one or _EVERYTHING


def tell(found: Iterable[FilterChange], max_percent: float | None) -> None:
    """Prints what filters do; where one changes more than `max_percent` allows, this ends the command with status 1."""
    above = 0
    count = 0
    for change in found:
        count += 1
        typer.echo("\n".join(_shown(change)))
        above += max_percent is not None and change.percent > max_percent
    if not count:
        typer.echo("no filter changes")
    if above:
        fail(
            f"{counted(above, 'filter')} would change more than {max_percent:g} % of the events: nothing was applied",
            "change the files, or allow more with --max-change",
        )


def _shown(change: FilterChange) -> Iterator[str]:
    found = change.found
    if found.against is None:
        yield f"{change.label}: new, takes {counted(found.taken, 'event')}"
    else:
        percent = "" if found.against == 0 else f" ({change.percent:.3g} %)"
        yield (
            f"{change.label}: takes {counted(found.against, 'event')} now, {found.taken:,} then: "
            f"{change.come:,} come, {change.go:,} go{percent}"
        )
    if found.errors:
        yield f"  an error on {counted(found.errors, 'event')}"
    if not found.complete:
        yield "  stopped before the end: --from begins later"
    for sign, events in (("+", found.only_filter), ("-", found.only_against)):
        yield from (_event(sign, one) for one in events)


def _event(sign: str, one: SeenEvent) -> str:
    return f"  {sign} {one.stored}  {one.type}  {one.source}  {one.id}"


def percent_of(text: str) -> float:
    """`5%` or `5` as a number; InvalidInputError for anything else."""
    try:
        found = float(text.strip().removesuffix("%"))
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise InvalidInputError(f"--max-change {text!r} is no percentage", hint="for example --max-change 5%")
    return found
