"""Entry point of a supervised process: `python -m headgate.server front|dispatcher|matcher`."""

from __future__ import annotations

import importlib
import sys

from headgate.observe import logs
from headgate.server import child, ready


def main() -> None:
    """Runs the named part until it is told to stop; each part's module is imported by its own process only."""
    part = sys.argv[1]
    if part not in ready.PARTS:
        raise SystemExit(f"unknown part {part!r}; parts are {', '.join(ready.PARTS)}")
    logs.configure(part)
    importlib.import_module(f"headgate.server.{part}").run(child.context())


if __name__ == "__main__":
    main()
