"""What the server's processes take: processor time over time, bytes written, and the pauses of the JVM."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.idle import descendants, jvm_of
from benchmarks.shards import ROLES, processor_s
from headgate.testing.server import Server, parts_of

EVENTS_JFR = "jdk.GarbageCollection,jdk.ThreadAllocationStatistics"


class Course:
    """Cores that each role uses, sampled in a thread for as long as the block lasts.

    Attributes:
        samples: Seconds since the start, and the cores of each of ROLES.
        marks: Seconds since the start, and what began then.
    """

    def __init__(self, server: Server, every_s: float) -> None:
        self.samples: list[list[float]] = []
        self.marks: list[tuple[float, str]] = []
        self._server = server
        self._every_s = every_s
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Course:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def mark(self, what: str) -> None:
        self.marks.append((round(time.monotonic() - self._started, 1), what))

    def _run(self) -> None:
        at, before = 0.0, None
        while not self._stop.wait(self._every_s):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a child has just ended
                now, used = time.monotonic(), processor_s(self._server)
                if before is not None:
                    cores = [round((used[role] - before[role]) / (now - at), 2) for role in ROLES]
                    self.samples.append([round(now - self._started, 1), *cores])
                at, before = now, used


def written_bytes(server: Server) -> Counter[str]:
    """What each role has handed to the disk so far, in bytes."""
    found: Counter[str] = Counter()
    for part, pid in {"supervisor": server.pid, **parts_of(server.pid)}.items():
        below = [] if part == "supervisor" else descendants(pid)
        for one in [pid, *below]:
            fields = dict(line.split(": ") for line in Path(f"/proc/{one}/io").read_text().splitlines())
            found[part.partition("-")[0]] += int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])
    return found


@dataclass(frozen=True)
class Pauses:
    """What the JVM's garbage collector did.

    Attributes:
        collections: How many.
        total_ms: Of all pauses.
        longest_ms: Of one.
        allocated_bytes: By all threads that live at the end.
    """

    collections: int
    total_ms: float
    longest_ms: float
    allocated_bytes: int


class Recording:
    """A flight recording of the server's JVM for as long as the block lasts.

    Attributes:
        pauses: Its findings; None without `jcmd` and `jfr` on the machine.
    """

    def __init__(self, server: Server) -> None:
        self.pauses: Pauses | None = None
        self._jvm = str(jvm_of(server))
        self._can = bool(shutil.which("jcmd") and shutil.which("jfr"))

    def __enter__(self) -> Recording:
        if self._can:
            _said("jcmd", self._jvm, "JFR.start", "name=bench", "settings=default")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._can or kind is not None:
            return
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
            file = Path(folder) / "bench.jfr"
            _said("jcmd", self._jvm, "JFR.stop", "name=bench", f"filename={file}")
            said = _said("jfr", "print", "--json", "--stack-depth", "1", "--events", EVENTS_JFR, str(file))
        self.pauses = pauses_of(json.loads(said)["recording"]["events"])


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def pauses_of(events: list[dict[str, Any]]) -> Pauses:
    """What the events of a recording say.

    A thread's allocations are told at the start and at the end of a recording. A thread that is told of once has ended
    meanwhile, or, when that is nearer the end, has begun.
    """
    collections = [one["values"] for one in events if one["type"] == "jdk.GarbageCollection"]
    told = [one["values"] for one in events if one["type"] == "jdk.ThreadAllocationStatistics"]
    sums = [_ms(one["sumOfPauses"]) for one in collections]
    longest = [_ms(one["longestPause"]) for one in collections]
    threads: dict[int, list[tuple[datetime, int]]] = {}
    for one in told:
        at = datetime.fromisoformat(one["startTime"])
        threads.setdefault(one["thread"]["javaThreadId"], []).append((at, int(one["allocated"])))
    times = [at for found in threads.values() for at, _ in found]
    allocated = 0
    for found in threads.values():
        (first_at, first), (last_at, last) = min(found), max(found)
        if first_at != last_at:
            allocated += last - first
        elif last_at - min(times) > max(times) - last_at:
            allocated += last
    return Pauses(len(collections), round(sum(sums), 1), round(max(longest, default=0.0), 1), allocated)


def _ms(duration: str) -> float:
    """Milliseconds of PT1M2.5S."""
    found = re.fullmatch(r"PT(?:(\d+)M)?(?:([\d.]+)S)?", duration)
    if found is None:
        raise ValueError(duration)
    return (int(found[1] or 0) * 60 + float(found[2] or 0)) * 1e3
