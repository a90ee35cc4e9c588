"""The output of a filter's plan and trace: lines and small tables."""

from __future__ import annotations

import sys
from typing import Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.filter.tools.explain import Explanation
from headgate.filter.tools.trace import Trace

_ROWS_SHOWN: Final = 20
_WIDTH_PIPED: Final = 100_000
"""Piped, a line is as long as it needs to be."""
_TEXT_CHARACTERS: Final = 70
_DECIDED: Final = {
    "matcher": "the matcher, exactly",
    "cel": "cel-cpp, for every event that the matcher finds",
    "both": "the matcher, and cel-cpp for events that only a candidate row finds",
    "nobody": "no part: the filter is false for every event",
}


def show_explanation(explanation: Explanation) -> None:
    """A filter as the matcher sees it."""
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
    _print(table)
    if len(rows) > _ROWS_SHOWN:
        typer.echo(f"... and {len(rows) - _ROWS_SHOWN} rows more")


def show_trace(trace: Trace) -> None:
    """A filter on one event: a line under the part that decided, and every part with its value."""
    for line in trace.caret.splitlines():
        typer.echo(f"  {line}")
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for part in trace.parts:
        text = trace.text[part.start : part.end]
        text = text if len(text) <= _TEXT_CHARACTERS else text[: _TEXT_CHARACTERS - 3] + "..."
        value = f"error: {part.value}" if part.kind == "error" else part.value
        element = f"({part.element})" if part.element else ""
        table.add_row(*map(Text, (" >" if part.decided else "", "  " * part.depth + text, value, element)))
    _print(table)
    if trace.left_out:
        typer.echo("  ... and more parts")


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else _WIDTH_PIPED, highlight=False).print(table)


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
