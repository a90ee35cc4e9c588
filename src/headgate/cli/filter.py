"""headgate filter: what does a filter say of these events, and how will it be matched? Needs no server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.errors import HeadgateError
from headgate.event.json_format import decode_event
from headgate.filter.compiler import compile_filter
from headgate.filter.errors import FilterError
from headgate.filter.evaluate import EventView, OutcomeKind, program
from headgate.filter.explain import Explanation, explain
from headgate.filter.plan import CompiledFilter
from headgate.filter.prune import FILTER_VALUE
from headgate.filter.rows import row_verdicts
from headgate.limits import EVENT_BYTES_MAX

EXIT_ERROR: Final = 2
_LINE_BYTES_MAX: Final = 2 * EVENT_BYTES_MAX
"""One line of events: the data may be written as Base64 and with escapes."""
_ROWS_SHOWN: Final = 20
_WIDTH_PIPED: Final = 100_000

app = typer.Typer(
    name="filter",
    help="Try a filter on events, and see how it will be matched. Needs no server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_CelOption = Annotated[str | None, typer.Option("--cel", metavar="EXPRESSION", help="The filter as a CEL expression.")]
_FilterOption = Annotated[
    str | None,
    typer.Option(
        "--filter-json",
        metavar="JSON|FILE",
        help="A trigger's spec.filter, or its spec.filters as a list: JSON text, a file, or - for stdin.",
    ),
]
_JsonOption = Annotated[bool, typer.Option("--json", help="JSON for machines: one object a line.")]


@app.command("test")
def try_filter(
    events: Annotated[Path, typer.Argument(metavar="EVENTS", help="Events in JSON, one a line; - for stdin.")] = Path(
        "-"
    ),
    cel: _CelOption = None,
    filter_json: _FilterOption = None,
    explained: Annotated[bool, typer.Option("--explain", help="Also say what the matcher decides by itself.")] = False,
    as_json: _JsonOption = False,
) -> None:
    """Evaluate a filter on events: true, false, or the error, one line an event.

    Exit status: 2 when the filter or an event is invalid, else 0.
    """
    compiled = _compiled(cel, filter_json)
    tested = program(compiled.cel)
    for number, line in _lines(events):
        try:
            view = EventView(decode_event(line))
        except HeadgateError as error:
            _fail(f"line {number}: {error.message}", error.hint)
        outcome = tested.evaluate_view(view)
        verdict = row_verdicts(compiled, view)
        says = "nothing" if verdict is None else verdict.name
        if as_json:
            result = {"line": number, "id": view.event.id, "outcome": outcome.kind.name.lower()}
            if outcome.message:
                result["error"] = outcome.message
            if explained:
                result["matcher"] = says
            typer.echo(json.dumps(result, ensure_ascii=False))
            continue
        shown = f"error: {outcome.message}" if outcome.kind is OutcomeKind.ERROR else outcome.kind.name.lower()
        typer.echo(f"{shown}\t(matcher: {says})" if explained else shown)


@app.command("explain")
def explain_filter(
    cel: _CelOption = None,
    filter_json: _FilterOption = None,
    filter_value: Annotated[
        str,
        typer.Option("--filter-value", metavar="EXPRESSION", help="What the broker's events are found by in the log."),
    ] = FILTER_VALUE,
    as_json: _JsonOption = False,
) -> None:
    """Say what a filter means in CEL and how it will be matched: by which index, decided by whom, at which cost."""
    compiled = _compiled(cel, filter_json)
    try:
        explanation = explain(compiled, filter_value=filter_value)
    except FilterError as error:
        _refuse(error.at_field("--filter-value"))
    if as_json:
        typer.echo(msgspec.json.encode(explanation).decode())
    else:
        _say(explanation)


_DECIDED: Final = {
    "matcher": "the matcher, exactly",
    "cel": "cel-cpp, for every event that the matcher finds",
    "both": "the matcher, and cel-cpp for events that only a candidate row finds",
    "nobody": "nobody: the filter is false for every event",
}


def _say(explanation: Explanation) -> None:
    cost, rows = explanation.cost, explanation.rows
    typer.echo(f"meaning     {explanation.cel}")
    typer.echo(f"decided by  {_DECIDED[explanation.decided_by]}")
    typer.echo(
        f"cost        {_count(cost.lookups, 'look-up')} and {_count(cost.scans, 'comparison')} an event; "
        f"{_count(cost.steps, 'step')} where cel-cpp decides"
    )
    typer.echo(f"skipped     {explanation.skips.says}")
    for note in explanation.notes:
        typer.echo(f"note        {note}")
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("row", justify="right")
    for name in ("verdict", "index", "compare"):
        table.add_column(name, overflow="fold")
    for number, row in enumerate(rows[:_ROWS_SHOWN], start=1):
        index, compare = " && ".join(row.index) or "none: a scan", " && ".join(row.compare) or "nothing"
        table.add_row(str(number), *map(Text, (row.verdict, index, compare)))
    typer.echo()
    # Piped, a line is as long as it needs to be.
    Console(width=None if sys.stdout.isatty() else _WIDTH_PIPED, highlight=False).print(table)
    if len(rows) > _ROWS_SHOWN:
        typer.echo(f"... and {len(rows) - _ROWS_SHOWN} rows more")


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _compiled(cel: str | None, filter_json: str | None) -> CompiledFilter:
    if (cel is None) == (filter_json is None):
        _fail("give either --cel or --filter-json", "headgate filter explain --cel 'ce.type == \"order\"'")
    try:
        if cel is not None:
            return compile_filter({"cel": cel})
        written = _written_filter(filter_json or "")
        return compile_filter(None, written) if isinstance(written, list) else compile_filter(written)
    except FilterError as error:
        _refuse(error)


def _refuse(error: FilterError) -> NoReturn:
    _fail(f"{error.message}\n{error.caret}".rstrip("\n"), error.hint)


def _written_filter(given: str) -> dict[str, object] | list[object]:
    """A `spec.filter` object or a `spec.filters` list."""
    text = given
    if given == "-":
        text = sys.stdin.read()
    elif not given.lstrip().startswith(("{", "[")):
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            _fail(f"cannot read the filter from {given}: {error}")
    try:
        return msgspec.json.decode(text, type=dict[str, object] | list[object])
    except msgspec.DecodeError as error:
        _fail(f"the filter is no JSON object and no list of them: {error}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1."""
    try:
        if str(path) == "-":
            yield from _numbered(sys.stdin.buffer)
        else:
            with path.open("rb") as file:
                yield from _numbered(file)
    except OSError as error:
        _fail(f"cannot read events from {path}: {error}")


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(lines, start=1):
        if len(line) > _LINE_BYTES_MAX:
            _fail(f"line {number} is longer than {_LINE_BYTES_MAX} bytes")
        if line.strip():
            yield number, line


def _fail(message: str, hint: str = "") -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    if hint:
        typer.echo(f"hint: {hint}", err=True)
    raise typer.Exit(EXIT_ERROR)
