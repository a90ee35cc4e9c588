"""The page of the server's settings, from the class that reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from headgate.backend.config_file import config_schema, meanings
from headgate.settings import Settings
from scripts.pages.cell import row

HEAD: Final = """# Settings

<!-- Written by `make pages` from src/headgate/settings.py: edit that. -->

Each setting of a server is an environment variable, and a name in [`headgate.yaml`](../howto/configure.md) without `HEADGATE_`, in lower case: `HEADGATE_LISTEN` is `listen`. Most are also an option of [`headgate serve`](cli.md#headgate-serve). An option wins over the environment, the environment over the file, and the file over the default. Every program that talks to a server reads `HEADGATE_SERVER`, the server's URL.

The file has a [JSON Schema](headgate.schema.json). Only `HEADGATE_CONFIG` cannot be in the file. In the file, `HEADGATE_KAFKA` is `kafka.bootstrap` and `HEADGATE_SPARK` is `spark.master` ([the sections](cluster.md)).
"""


_FOUND_AT_START: Final = frozenset({"dispatchers"})
"""Settings whose default depends on the data directory."""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_rows(), ""])


def _rows() -> Iterator[str]:
    about = meanings(Settings)
    yield row("variable", "default", "meaning")
    yield "|---|---|---|"
    for name, field in Settings.model_fields.items():
        known = field.default_factory is None and field.default not in (None, "") and name not in _FOUND_AT_START
        default = f"`{_shown(field.default)}`" if known else ""
        yield row(f"`HEADGATE_{name.upper()}`", default, about[name])


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def schema() -> str:
    """The JSON Schema of the file."""
    return json.dumps(config_schema(), indent=2) + "\n"
