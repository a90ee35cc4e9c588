"""Entry point of a supervised process: `python -m headgate.server PART`, a name such as `front-0` or `reader`."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import sqlite3
import sys

import structlog

from headgate.observe import logs
from headgate.observe.exposition import Publisher
from headgate.server import child, parts, ready
from headgate.server.parts import UnknownPartError
from headgate.storage import sqlite
from headgate_api.errors import FatalError, HeadgateError
from headgate_api.event.json_text import allow_deep_json

_log = structlog.get_logger(__name__)


def main() -> None:
    """Runs the named part until it is told to stop; each part's module is imported by its own process only."""
    allow_deep_json()
    part = sys.argv[1]
    settings = child.settings()
    logs.configure(part, logs.Form(settings.log_format), verbose=settings.verbose)
    logs.keep(settings.data)
    faulthandler.register(child.STACKS_SIGNAL)
    try:
        context = child.context(part)
    except UnknownPartError as error:
        raise SystemExit(error.message) from error
    with contextlib.ExitStack() as stack:
        if context.settings.metrics:
            publisher = Publisher(context.settings.metrics_directory, part)
            publisher.start()
            stack.callback(publisher.close)
        try:
            _run(context)
        except FatalError as error:
            if not ready.refuse(context.settings.run_directory, part, error):
                _log.error("part cannot work", error=error.message, hint=error.hint)
            sys.exit(child.FATAL_STATUS)
        except HeadgateError as error:
            _log.error("part fails", error=error.message, hint=error.hint, detail=error.detail)
            sys.exit(1)


def _run(context: child.Context) -> None:
    """An error of SQLite that tells of damage becomes one that names the file."""
    try:
        importlib.import_module(parts.module_of(context.settings, context.part)).run(context)
    except sqlite3.DatabaseError as error:
        if sqlite.tells_damage(error):
            sqlite.examine(context.settings.data)
        raise


if __name__ == "__main__":
    main()
