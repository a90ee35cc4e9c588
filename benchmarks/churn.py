"""What a changed trigger costs beside many others: the time until it is Ready, and the work of every process.

    python -m benchmarks.churn                                       10,000 triggers, a change a second for 30 s
    python -m benchmarks.churn --changes 600 --rate 300              for ten minutes, beside 300 events a second

The triggers are those of `benchmarks.latency`. For as long as the changes take, nothing changes first: what that costs
is taken off. Then by turns a trigger is created, until it is Ready, and deleted. The heap is what the matcher's JVM
keeps after a full collection, before all changes and after them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.idle import Reading, processes, wait_until_quiet
from benchmarks.latency import Receiver, load, produce, serving
from benchmarks.tables import print_whole
from headgate.testing.server import Server


@dataclass(frozen=True)
class Result:
    """Of all changes; megabytes are 10^6 bytes."""

    triggers: int
    loaded_s: float  # from the first request that creates one until all are Ready
    loading_by_process_ms: dict[str, float]  # processor time of each process for it
    changes: int
    ready_ms: float  # median, from the request that creates a trigger to an answer that it is Ready
    slowest_ms: float
    processor_ms: float  # of a change, in all processes; a creation and a deletion are one each
    by_process_ms: dict[str, float]
    jvm_percent: float  # what the changes take of a core in the JVM
    heap_mb: float  # what the JVM keeps after a full collection, before all changes
    heap_after_mb: float


def kept_mb(jvm: int) -> float:
    """What a JVM has in its heap after a full collection, which it does before it counts."""
    jcmd = Path(f"/proc/{jvm}/exe").resolve().with_name("jcmd")
    told = subprocess.run([jcmd, str(jvm), "GC.class_histogram"], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.search(r"^Total +\d+ +(\d+)", told, re.MULTILINE)
    assert found is not None, told
    return int(found[1]) / 1e6


async def change(server: Server, changes: int, every_s: float, url: str) -> list[float]:
    """Creates and deletes a trigger by turns; how long each took until it was Ready, in seconds."""
    took, started = [], time.monotonic()
    for number in range(changes):
        await asyncio.sleep(max(0.0, started + number * every_s - time.monotonic()))
        name = f"change-{number // 2}"
        if number % 2:
            await asyncio.to_thread(server.delete, "triggers", "default", name)
            continue
        spec = {
            "broker": "default",
            "filter": {"expression": f'ce.type == "changed.{number}" && data.user.tier == "gold"'},
            "subscriber": {"uri": url},
        }
        began = time.monotonic()
        await asyncio.to_thread(server.create, "triggers", "default", name, spec)
        await asyncio.to_thread(server.wait_trigger_ready, "default", name)
        took.append(time.monotonic() - began)
    await asyncio.sleep(max(0.0, started + changes * every_s - time.monotonic()))
    return took


async def measure(server: Server, asked: argparse.Namespace) -> Result:
    receiver = Receiver()
    async with serving(receiver):
        url = f"http://127.0.0.1:{receiver.port}/all"
        pids = processes(server)
        first = {name: Reading.of(pid).processor_s for name, pid in pids.items()}
        loaded_s = await load(server, asked.triggers, url, 1)
        loading = {name: Reading.of(pid).processor_s - first[name] for name, pid in pids.items()}
        await asyncio.to_thread(wait_until_quiet, pids)
        (jvm,) = [name for name in pids if name.startswith("java ")]

        async def worked(changes: int, seconds: float) -> tuple[dict[str, float], list[float]]:
            """Processor seconds of each process while so many changes come, and how long those took."""
            before = {name: Reading.of(pid).processor_s for name, pid in pids.items()}
            events = asyncio.create_task(produce(f"{server.url}/default/default", asked.rate, seconds))
            took = await change(server, changes, asked.every, url) if changes else []
            await asyncio.sleep(0.0 if changes else seconds)
            await events
            return {name: Reading.of(pid).processor_s - before[name] for name, pid in pids.items()}, took

        warming, seconds = min(20, asked.changes), asked.changes * asked.every
        await worked(warming, warming * asked.every)  # what is new to the server is no longer so
        heap_mb = await asyncio.to_thread(kept_mb, pids[jvm])
        calm, _ = await worked(0, seconds)
        busy, took = await worked(asked.changes, seconds)
        heap_after_mb = await asyncio.to_thread(kept_mb, pids[jvm])
    more = {name: busy[name] - calm[name] for name in pids}
    return Result(
        asked.triggers,
        round(loaded_s, 1),
        {name: round(one * 1e3) for name, one in loading.items()},
        asked.changes,
        round(statistics.median(took) * 1e3, 1),
        round(max(took) * 1e3, 1),
        round(sum(more.values()) / asked.changes * 1e3, 1),
        {name: round(one / asked.changes * 1e3, 1) for name, one in more.items()},
        round(more[jvm] / seconds * 100, 2),
        round(heap_mb, 1),
        round(heap_after_mb, 1),
    )


def main() -> None:
    """Parses the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=10_000, help="that stay (default: %(default)s)")
    parser.add_argument("--changes", type=int, default=30, help="2 at least (default: %(default)s)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds from one to the next (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=0, help="events a second beside them (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        data = Path(folder)
        with Server(data / "data", log=data / "server.log") as server:
            result = asyncio.run(measure(server, asked))
    if asked.json:
        print(json.dumps(asdict(result)))
        return
    table = Table("process", "ms a change", title=f"{result.changes} changes beside {result.triggers:,} triggers")
    for name, ms in result.by_process_ms.items():
        table.add_row(name, f"{ms}")
    table.add_row("together", f"{result.processor_ms}")
    print_whole(table)
    print(f"Ready after {result.ready_ms} ms (median), {result.slowest_ms} ms at most")
    print(f"The JVM's heap: {result.heap_mb} MB before, {result.heap_after_mb} MB after")


if __name__ == "__main__":
    main()
