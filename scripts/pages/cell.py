"""Cells of Markdown tables."""

from __future__ import annotations


def row(*cells: str) -> str:
    """One line of a table; bars and line ends in the cells are made harmless."""
    return f"| {' | '.join(' '.join(cell.replace('|', chr(92) + '|').split()) for cell in cells)} |"
