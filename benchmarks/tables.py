"""Rich tables as wide as their content: no number is cut, on a narrow terminal or in a pipe."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDTH_MAX = 10_000


def print_whole(table: Table) -> None:
    """Print a table without cutting a cell; a terminal that is narrower wraps the lines."""
    console = Console(highlight=False)
    wanted = Measurement.get(console, console.options.update(width=_WIDTH_MAX), table).maximum
    Console(width=max(console.width, wanted), highlight=False, soft_wrap=True).print(table, crop=False)
