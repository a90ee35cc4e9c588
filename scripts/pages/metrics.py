"""The page of metrics, from the declared table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headgate.observe.metrics import DECLARED, OTHER, Family
from scripts.pages.cell import row

HEAD: Final = """# Metrics

<!-- Written by `make pages` from src/headgate/observe/metrics.py: edit that. -->

`/metrics` on the server's HTTP port holds the numbers of all processes, at most a second old. [Observe](../howto/observe.md#metrics) says which metric answers which question.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_rows(), ""])


def _rows() -> Iterator[str]:
    yield row("metric", "kind", "label", "what")
    yield "|---|---|---|---|"
    for name, family in DECLARED.items():
        yield row(f"`{name}`", family.kind, _label(family), family.help)


def _label(family: Family) -> str:
    if not family.label:
        return ""
    if family.values:
        return f"`{family.label}`: {', '.join(family.values)}, {OTHER}"
    return f"`{family.label}`: at most {family.labels_max}"
