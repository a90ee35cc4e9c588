"""Logging by structlog on stderr, of libraries too: lines for people on a terminal, else JSON lines. No event data."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TextIO, cast

import structlog

from headgate_api.limits import LOG_FILE_BYTES_MAX


class Form(StrEnum):
    """How lines are written on stderr."""

    AUTO = "auto"  # text on a terminal, else JSON
    TEXT = "text"
    JSON = "json"


class Stderr(io.TextIOBase):
    """Standard error for what may be lost: a write never raises, and nothing is kept for later.

    The disk under it may be full and the reader of a pipe gone; neither is a reason to stop working.
    """

    encoding = "utf-8"
    descriptor = 2

    def write(self, text: str) -> int:
        """Writes a text by one system call; one that the file does not take is dropped."""
        with contextlib.suppress(OSError):
            os.write(self.descriptor, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)


_stderr: Final = Stderr()
STDERR: Final = cast(TextIO, _stderr)
FILE: Final = "server.log"
"""In the data directory: every line in JSON; `FILE.1` has those before."""
_Fact = structlog.typing.EventDict
_write_json: Final = structlog.processors.JSONRenderer()


class _Kept:
    """A processor that writes each line into a file, and passes on what is to be seen on stderr."""

    path: Path | None = None

    def __init__(self, least: int) -> None:
        self._least = least

    def __call__(self, log: object, name: str, fact: _Fact) -> _Fact:
        if _Kept.path is not None:
            line = f"{_write_json(None, name, dict(fact))!s}\n".encode("utf-8", "backslashreplace")
            with contextlib.suppress(OSError):  # a full disk
                file = os.open(_Kept.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.write(file, line)
                finally:
                    os.close(file)
        if logging.getLevelNamesMapping()[str(fact["level"]).upper()] < self._least:
            raise structlog.DropEvent
        return fact


def keep(data: Path) -> None:
    """From now on each line of this process is in a file of the data directory, too."""
    _Kept.path = data / FILE


def rotate(data: Path) -> None:
    """Begins another file when the present one is large; for one process alone. Raises OSError."""
    path = data / FILE
    if path.exists() and path.stat().st_size > LOG_FILE_BYTES_MAX:
        path.replace(data / f"{FILE}.1")


def written_for_people(form: Form) -> bool:
    """Whether stderr gets text, not JSON."""
    return form is Form.TEXT or (form is Form.AUTO and STDERR.isatty())


def renderer_for_people(*, colors: bool) -> structlog.typing.Processor:
    """A fact as a line of text."""
    return structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=32)


def configure(process: str, form: Form = Form.AUTO, *, verbose: bool = True) -> None:
    """Sets up logging of this process, which lines call `process`: `front-0`, `matcher`. Call once, first.

    Text without `verbose` has warnings and errors alone.
    """
    for_people = written_for_people(form)
    renderer = renderer_for_people(colors=STDERR.isatty()) if for_people else _write_json

    # Not a context variable: callbacks of sockets run in a context of their own.
    def name_process(_: object, __: str, fact: _Fact) -> _Fact:
        return {"process": process, **fact}

    def show_time(_: object, __: str, fact: _Fact) -> _Fact:
        then = datetime.fromisoformat(str(fact["timestamp"])).astimezone()
        return {**fact, "timestamp": then.strftime("%H:%M:%S.%f")}

    facts: list[structlog.typing.Processor] = [
        name_process,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: list[structlog.typing.Processor] = [
        _Kept(logging.WARNING if for_people and not verbose else logging.INFO),
        *([show_time] if for_people else []),
        renderer,
    ]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *facts, *last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # One write a line: all processes share this stderr, and two parts of a line may have another's between them.
        logger_factory=structlog.WriteLoggerFactory(STDERR),
    )
    sys.stderr = STDERR  # what libraries and the interpreter say must not fail, either
    of_libraries = logging.StreamHandler(STDERR)
    of_libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *facts],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[of_libraries])
    logging.captureWarnings(True)
    if not for_people:
        sys.excepthook = _tell_uncaught
        threading.excepthook = lambda found: _tell_uncaught(
            found.exc_type, found.exc_value or found.exc_type(), found.exc_traceback
        )


def _tell_uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        structlog.get_logger().critical("an error that nobody expects", exc_info=(kind, error, where))


@contextlib.contextmanager
def heard(program: str, silent: Sequence[str] = ()) -> Iterator[None]:
    """What a program that is started meanwhile says on its stderr, for as long as it lives, are lines of this log.

    Lines that begin with one of `silent` are left out.
    """
    reading, writing = os.pipe()
    before = os.dup(2)
    try:
        _stderr.descriptor = before
        os.dup2(writing, 2)
        threading.Thread(target=_hear, args=(reading, program, tuple(silent)), daemon=True, name="stderr").start()
        yield
    finally:
        os.dup2(before, 2)
        _stderr.descriptor = 2
        os.close(before)
        os.close(writing)


def _hear(reading: int, program: str, silent: tuple[str, ...]) -> None:
    log = structlog.get_logger()
    with os.fdopen(reading, encoding="utf-8", errors="backslashreplace") as said:
        for line in said:
            if line.strip() and not line.startswith(silent or ("\0",)):
                log.warning(line.rstrip(), logger=program)


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
