"""`headgate filter`: the table of its commands. Only a backtest may ask a server."""

from __future__ import annotations

from typing import Final

import typer

from headgate.cli.lazy import CommandTable, group_of

COMMANDS: Final[CommandTable] = {
    "test": (
        "filter_tools:try_filter",
        "Evaluate a filter on events: print true, false or the error for each.",
    ),
    "explain": (
        "filter_tools:explain_filter",
        "Explain a filter: its CEL, the index it is matched by, the part that decides, and its cost.",
    ),
    "convert": ("filter_tools:convert", "Translate a filter of any dialect to CEL."),
    "backtest": (
        "backtest:backtest",
        "Count the stored events that a filter would have matched: by hour, and compared with other filters.",
    ),
    "dialects": ("filter_tools:dialects", "List the dialects, with those of installed packages and their faults."),
}

app = typer.Typer(
    name="filter",
    cls=group_of(COMMANDS),
    help="Try a filter on events, explain how it is matched, and count the stored events that it matches.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """The commands of the table, whose app has no other."""
