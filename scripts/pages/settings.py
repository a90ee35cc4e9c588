"""The page of the server's settings, from the class that reads them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

from headgate.settings import Settings
from scripts.pages.cell import row

HEAD: Final = """# Settings

<!-- Written by `make pages` from src/headgate/settings.py: edit that. -->

Each setting of a server is an environment variable. Most are also an option of [`headgate serve`](cli.md#headgate-serve), which wins. Every program that talks to a server reads `HEADGATE_SERVER`, the server's URL.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_rows(), ""])


def _rows() -> Iterator[str]:
    text = inspect.getdoc(Settings).partition("Attributes:\n")[2]  # type: ignore[union-attr]
    meanings = dict(re.findall(r"^    (\w+): ((?:.+\n?(?:        .+\n?)*))", text, re.M))
    yield row("variable", "default", "meaning")
    yield "|---|---|---|"
    for name, field in Settings.model_fields.items():
        known = field.default_factory is None and field.default not in (None, "")
        default = f"`{_shown(field.default)}`" if known else ""
        yield row(f"`HEADGATE_{name.upper()}`", default, meanings[name])


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
