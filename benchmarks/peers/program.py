"""A program that answers lines on its standard input with JSON lines, and the processor time that it takes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.idle import descendants
from benchmarks.shards import own_s

END_S_MAX = 20.0


class ProgramError(RuntimeError):
    """A program ended, or said nothing for too long."""


class Program:
    """A running program; see `running`."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._name = name
        self._process = process

    def said(self, seconds: float) -> dict[str, Any]:
        """The next JSON line; other lines are for people. A ProgramError tells why there is none within `seconds`."""
        assert self._process.stdout is not None
        watch = threading.Timer(seconds, self.kill)
        watch.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    return json.loads(line)  # type: ignore[no-any-return]
        finally:
            watch.cancel()
        raise ProgramError(f"{self._name} ended without an answer, or gave none within {seconds:g} s")

    def kill(self) -> None:
        """Ends it and all below it, which may hold its output open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def ask(self, line: str, seconds: float) -> dict[str, Any]:
        """Writes a line; returns its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProgramError(f"{self._name} ended before `{line}`") from None
        return self.said(seconds)


def tree_s(pids: Sequence[int]) -> float:
    """Processor time so far of these processes and of all below them, seconds."""
    return sum(own_s(one) for pid in pids for one in (pid, *descendants(pid)))


@contextlib.contextmanager
def running(name: str, command: Sequence[str]) -> Iterator[Program]:
    """Starts a program; it ends when its standard input does."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdin is not None
        program = Program(name, process)
        try:
            yield program
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(END_S_MAX)
            except subprocess.TimeoutExpired:
                program.kill()
