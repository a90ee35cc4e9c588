"""Memory of the matcher's JVM before and after many triggers have come and gone.

    python -m benchmarks.churn [--triggers 4000] [--at-once 200] [--idle 60] [--json]

Triggers are created and deleted by 8 clients, `--at-once` of them in a round, each with a filter of its own: every
round is several generations of the matcher, each a new Spark query with its own generated classes. The resident set is
read from /proc when the server is ready, during the churn (the largest value), right after it and after `--idle`
seconds without any change.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from headgate.testing.server import Server

CLIENTS = 8
SAMPLE_S = 0.5


@dataclass(frozen=True)
class Result:
    """Resident sets of the JVM in MiB."""

    triggers: int
    seconds: float
    ready_mib: float
    largest_mib: float
    churned_mib: float
    idle_mib: float


def descendants(pid: int) -> list[int]:
    """Processes below `pid`."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def jvm_of(server: Server) -> int:
    """The server's only Java process."""
    (jvm,) = [pid for pid in descendants(server.pid) if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
    return jvm


def resident_mib(pid: int) -> float:
    """What the process has in memory now."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


class Largest:
    """The largest resident set of a process, sampled in a thread for as long as the block lasts."""

    def __init__(self, pid: int) -> None:
        self.mib = 0.0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Largest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.mib = max(self.mib, resident_mib(self._pid))


def churn(server: Server, triggers: int, at_once: int) -> None:
    """Creates and deletes triggers; the last of each round is waited for."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        for first in range(0, triggers, at_once):
            names = [f"churn-{number}" for number in range(first, min(first + at_once, triggers))]
            list(clients.map(lambda name: create(server, name), names))
            server.wait_trigger_ready("default", names[-1], seconds=300)
            list(clients.map(lambda name: server.delete("triggers", "default", name), names))


def create(server: Server, name: str) -> None:
    """A trigger with a filter that no other one has."""
    expression = f'ce.type == "{name}" && data.{name.replace("-", "_")} > 3 && ce.subject.startsWith("{name}")'
    spec = {
        "broker": "default",
        "subscriber": {"uri": "http://127.0.0.1:9/"},
        "filter": {"expression": expression},
    }
    server.create("triggers", "default", name, spec)


def measure(triggers: int, at_once: int, idle_s: float) -> Result:
    """One server's life."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder) / "data", log=Path(folder) / "server.log") as server,
    ):
        jvm = jvm_of(server)
        ready = resident_mib(jvm)
        began = time.monotonic()
        with Largest(jvm) as largest:
            churn(server, triggers, at_once)
            seconds, churned = time.monotonic() - began, resident_mib(jvm)
            time.sleep(idle_s)
        return Result(triggers, seconds, ready, largest.mib, churned, resident_mib(jvm))


def main() -> None:
    """Prints a line for people, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=4_000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    result = measure(asked.triggers, asked.at_once, asked.idle)
    if asked.json:
        print(json.dumps(asdict(result)))
        return
    print(
        f"{result.triggers} triggers in {result.seconds:.0f} s: the JVM has {result.ready_mib:.0f} MiB before,"
        f" {result.largest_mib:.0f} MiB at most, {result.churned_mib:.0f} MiB after,"
        f" {result.idle_mib:.0f} MiB {asked.idle:.0f} s later"
    )


if __name__ == "__main__":
    main()
