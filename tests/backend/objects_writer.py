"""A control process that leads, creates triggers, prints each that was acknowledged, and kills itself in the last one.

python -m tests.backend.objects_writer BOOTSTRAP PREFIX PATH NAME POINT
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headgate.backend.kafka.objects import KafkaObjects
from headgate.backend.kafka.transactions import FencedWriter
from tests.backend.object_stores import ControlProcess
from tests.backend.objects_contract import create
from tests.backend.stores import kafka_config

WRITES = 3
"""Those that are acknowledged."""
POINTS: dict[str, tuple[type, str, bool]] = {
    "before-send": (FencedWriter, "send", True),
    "before-commit": (FencedWriter, "commit", True),
    "before-cache": (FencedWriter, "commit", False),
    "before-answer": (KafkaObjects, "commit", False),
}
"""Where it dies: before a method's work, or behind it."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(work: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        if first:
            die()
        result = work(*arguments)
        die()
        return result

    return run


def main(bootstrap: str, prefix: str, path: str, name: str, point: str) -> None:
    process = ControlProcess(kafka_config(bootstrap, prefix), Path(path), name)
    for number in range(WRITES + 1):
        if number == WRITES:
            owner, method, first = POINTS[point]
            setattr(owner, method, deadly(getattr(owner, method), first=first))
        create(process.store, f"{name}-{number}")
        print(f"{name}-{number}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
