"""Every generated page, by its file name in docs/reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from scripts.pages import authorization, cli, cluster, dialects, limits, metrics, settings

REFERENCE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "authorization.md": authorization.page,
    "cli.md": cli.page,
    "cluster.md": cluster.page,
    "filters/operators.md": dialects.page,
    "headgate.schema.json": settings.schema,
    "limits.md": limits.page,
    "metrics.md": metrics.page,
    "settings.md": settings.page,
}


def stale() -> list[str]:
    """The pages that differ from what the code would write."""
    return [name for name, page in PAGES.items() if (REFERENCE / name).read_text(encoding="utf-8") != page()]
