"""Logging by structlog on stderr, of libraries too: lines for people on a terminal, else JSON lines. No event data."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO, cast

import structlog

STDERR_FD: Final = 2


class Stderr(io.TextIOBase):
    """Standard error for what may be lost: a write never raises, and nothing is kept for later.

    The disk under it may be full and the reader of a pipe gone; neither is a reason to stop working.
    """

    encoding = "utf-8"

    def write(self, text: str) -> int:
        """Writes a text by one system call; one that the file does not take is dropped."""
        with contextlib.suppress(OSError):
            os.write(STDERR_FD, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def fileno(self) -> int:
        return STDERR_FD

    def isatty(self) -> bool:
        return os.isatty(STDERR_FD)


STDERR: Final = cast(TextIO, Stderr())


def configure(process: str) -> None:
    """Sets up logging of this process, which lines call `process`: `front-0`, `matcher`. Call once, first."""
    terminal = STDERR.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=terminal, pad_event_to=32)
        if terminal
        else structlog.processors.JSONRenderer()
    )

    # Not a context variable: callbacks of sockets run in a context of their own.
    def name_process(_: object, __: str, fact: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {"process": process, **fact}

    facts: list[structlog.typing.Processor] = [
        name_process,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if terminal else "iso", utc=not terminal),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *facts, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # One write a line: all processes share this stderr, and two parts of a line may have another's between them.
        logger_factory=structlog.WriteLoggerFactory(STDERR),
    )
    sys.stderr = STDERR  # what libraries and the interpreter say must not fail, either
    of_libraries = logging.StreamHandler(STDERR)
    of_libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *facts],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[of_libraries])
    logging.captureWarnings(True)


class Recurring:
    """A failure that recurs: logged once, until it works again or fails in another way.

    `event` is the message, at level error with the field `error`, and `hint` if the error has one. Other errors than
    the `expected` ones are raised.
    """

    def __init__(self, log: structlog.typing.FilteringBoundLogger, event: str, *expected: type[Exception]) -> None:
        self._log = log
        self._event = event
        self._expected = expected
        self._told = ""

    @contextlib.contextmanager
    def attempt(self, **facts: object) -> Iterator[None]:
        """One try. Ends the block at an expected error. `facts` are further fields of the line."""
        try:
            yield
        except self._expected as error:
            if self._told != str(error):
                self._told = str(error)
                hint = getattr(error, "hint", "")
                self._log.error(self._event, error=self._told, **facts, **({"hint": hint} if hint else {}))
        else:
            self._told = ""


def tell_failure(task: asyncio.Task[Any], what: str) -> None:
    """Hands the error of a task that has ended, if any, to the loop's exception handler, which hears at once."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": what, "exception": error})
