"""Real clusters on loopback for tests, benchmarks and examples: Kafka and Spark."""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self


class LocalCluster(ABC):
    """Processes by number, as a context manager that leaves none behind.

    They end with the thread that started them, also where that is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Starts all of them; returns when they work together."""

    @abstractmethod
    def stop(self) -> None:
        """Ends every process."""

    def kill(self, number: int) -> None:
        """SIGKILL to one of them."""
        process = self._running.pop(number)
        process.kill()
        process.wait()


def launched(
    command: Sequence[str], log: Path, end: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program that writes into a log; `end` is the signal that it gets when our thread ends."""
    setpriv = shutil.which("setpriv")
    with log.open("ab") as written:
        return subprocess.Popen(
            [*((setpriv, "--pdeathsig", end) if setpriv else ()), *command],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            env=environment,
        )
