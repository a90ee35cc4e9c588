"""`headgate filter test`, `explain`, `convert` and `dialects`: what needs no server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headgate.cli.client import JsonLinesOption
from headgate.cli.filter_input import (
    CelOption,
    FilterOption,
    compiled,
    fail,
    lines,
    refuse,
    text_of,
)
from headgate.cli.filter_output import show_explanation, show_trace
from headgate.errors import HeadgateError
from headgate.event import rfc3339
from headgate.event.json_format import decode_event
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.request import KNOWN, spec_of
from headgate.filter.dialects import CUSTOM, DIALECTS, to_cel
from headgate.filter.dialects.subscriptions import NAMES
from headgate.filter.skipping.prune import FILTER_VALUE
from headgate.filter.tools.explain import explain
from headgate.filter.tools.trace import trace


def try_filter(
    events: Annotated[Path, typer.Argument(metavar="EVENTS", help="Events in JSON, one a line; - for stdin.")] = Path(
        "-"
    ),
    cel: CelOption = None,
    filter_json: FilterOption = None,
    explained: Annotated[bool, typer.Option("--explain", help="Also name the part that decided.")] = False,
    traced: Annotated[bool, typer.Option("--trace", help="Also show the value of every part of the filter.")] = False,
    publish_time: Annotated[
        str | None,
        typer.Option(
            "--publish-time", metavar="TIME", help="When the events were stored, RFC 3339.", show_default="now"
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Evaluate a filter on events: print true, false or the error for each.

    Exit status: 2 when the filter or an event is invalid, else 0.
    """
    wanted = compiled(cel, filter_json)
    tested = program(wanted.cel)
    stored_us = int(time.time() * 1e6) if publish_time is None else rfc3339.micros(publish_time)
    if stored_us is None:
        fail(f"--publish-time {publish_time!r} is no time", "as in RFC 3339: 2026-01-31T09:30:00Z")
    for number, line in lines(events):
        try:
            view = EventView(decode_event(line), stored_us)
        except HeadgateError as error:
            fail(f"line {number}: {error.message}", error.hint)
        outcome = tested.evaluate_view(view)
        parts = trace(cel if cel is not None else wanted.cel, view) if traced or explained else None
        if as_json:
            result: dict[str, object] = {"line": number, "id": view.event.id, "outcome": outcome.kind.name.lower()}
            if outcome.message:
                result["error"] = outcome.message
            if parts is not None and explained:
                result["decided"] = {"part": parts.decided_text, "value": parts.decided.value}
            if parts is not None and traced:
                result["trace"] = msgspec.to_builtins(parts)
            typer.echo(json.dumps(result, ensure_ascii=False))
            continue
        shown = f"error: {outcome.message}" if outcome.kind is OutcomeKind.ERROR else outcome.kind.name.lower()
        typer.echo(f"{shown}\t(decided by {parts.decided_text})" if parts is not None and explained else shown)
        if parts is not None and traced:
            show_trace(parts)


def explain_filter(
    given: Annotated[
        str | None, typer.Argument(metavar="EXPRESSION", help="The filter as a CEL expression, as with --cel.")
    ] = None,
    cel: CelOption = None,
    filter_json: FilterOption = None,
    filter_value: Annotated[
        str,
        typer.Option(
            "--filter-value", metavar="EXPRESSION", help="The broker's filter value, by which readers skip chunks."
        ),
    ] = FILTER_VALUE,
    as_json: JsonLinesOption = False,
) -> None:
    """Explain a filter: its CEL, the index it is matched by, the part that decides, and its cost.

    \b
    Example:
      headgate filter explain 'ce.type in ["a", "b"] && data.amount > 100'
    """  # noqa: D301 - click reads \b as "keep these lines"
    if given is not None and cel is not None:
        fail("the filter is given twice", "either EXPRESSION or --cel")
    wanted = compiled(cel if given is None else given, filter_json, advised=True)
    try:
        explanation = explain(wanted, filter_value=filter_value)
    except FilterError as error:
        refuse(error.at_field("--filter-value"))
    if as_json:
        typer.echo(msgspec.json.encode(explanation).decode())
    else:
        show_explanation(explanation)


def convert(
    given: Annotated[
        str, typer.Argument(metavar="FILTER|FILE", help="The filter as text, a file that holds it, or - for stdin.")
    ] = "-",
    source: Annotated[str, typer.Option("--from", metavar="DIALECT", help=f"One of: {', '.join(KNOWN)}.")] = "filter",
    target: Annotated[str, typer.Option("--to", metavar="DIALECT", help="cel.")] = "cel",
    canonical: Annotated[
        bool, typer.Option("--canonical", help="Print the canonical form that the matcher uses.")
    ] = False,
) -> None:
    """Translate a filter of any dialect to CEL.

    \b
    Examples:
      headgate filter convert --from attributes '{"type": "order.created", "tenant": ""}'
      headgate filter convert --from prefix '{"type": "order."}' --to cel
    """  # noqa: D301 - click reads \b as "keep these lines"
    if target != "cel":
        fail(f"a filter cannot be written in {target!r}", "cel is what every dialect becomes")
    try:
        text = to_cel(*spec_of(source, _dialect_text(given).rstrip("\n")))
        meaning = compile_cel(text).cel
    except FilterError as error:
        refuse(error)
    typer.echo(meaning if canonical else text)


def dialects(as_json: JsonLinesOption = False) -> None:
    """List the dialects, with those of installed packages and their faults."""
    ours = [(name, "headgate", None) for name in (*DIALECTS, *NAMES) if name not in CUSTOM or CUSTOM[name].taken]
    for name, package, custom in (*ours, *((name, item.package, item) for name, item in CUSTOM.items())):
        fault = custom.fault() if custom is not None else ""
        if as_json:
            row: dict[str, object] = {"name": name, "package": package, "fault": fault}
            if custom is not None and not fault:
                row["schema"] = custom.load().schema
            typer.echo(json.dumps(row, ensure_ascii=False))
            continue
        where = "filters" if name in NAMES else "filter, filters"
        typer.echo(f"{name:<15} {where:<16} {package}{f'  broken: {fault}' if fault else ''}")


def _dialect_text(given: str) -> str:
    """Like `text_of`; but what names no file is the filter itself."""
    try:
        is_file = given == "-" or Path(given).is_file()
    except (OSError, ValueError):  # too long, or a NUL
        is_file = False
    return text_of(given) if is_file else given
