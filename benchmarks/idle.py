"""What a server takes that has nothing to do: memory, processor time and wake-ups of each process.

    python -m benchmarks.idle [--seconds 60] [--firsts 20] [--threads 10] [--json]

`headgate serve` with its defaults, a broker and ten triggers. When it is quiet, /proc is read twice, `--seconds` apart:
PSS (its private memory and its share of what others map as well), USS (what ending it would give back), threads,
processor time and voluntary context switches. Then each of `--firsts` events comes after 5 s of silence, and beside
them 50 events a second come without a pause: the time from POST to subscriber of both. Without `--json` the status is 1
when the processes together take more than the limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pyreqwest.client import ClientBuilder
from rich.table import Table

from benchmarks.latency import Receiver, load, produce, publish, serving
from benchmarks.tables import print_whole
from headgate.testing.server import Server, parts_of

MEMORY_MB_MAX: Final = 1_000.0
PROCESSOR_PERCENT_MAX: Final = 2.0
TRIGGERS: Final = 10
SILENCE_S: Final = 5.0
STEADY_PER_S: Final = 50
QUIET_PERCENT: Final = 10.0
"""A server that takes less of a core for QUIET_S has come to rest: the limit is measured after it."""
QUIET_S: Final = 10.0
QUIET_S_MAX: Final = 300.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """What /proc says of a process at one moment.

    Attributes:
        processor_s: Processor time of all threads that lived.
        switches: Voluntary context switches of each living thread, by name and id.
    """

    processor_s: float
    switches: dict[str, int]

    @classmethod
    def of(cls, pid: int) -> Reading:
        """Reads it now."""
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        switches = {}
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            try:
                text = status.read_text()
            except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                continue
            name = text.split("\n", 1)[0].removeprefix("Name:").strip()
            switches[f"{name} {status.parent.name}"] = _number(text, "voluntary_ctxt_switches")
        return cls((int(fields[11]) + int(fields[12])) / _TICKS_PER_S, switches)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a process takes.

    Attributes:
        pss_mb: Private memory and a share of the rest, in 10^6 bytes.
        uss_mb: Private memory.
        threads: How many.
        processor_percent: Of one core.
        wakeups_per_s: Voluntary context switches a second.
    """

    pss_mb: float
    uss_mb: float
    threads: int
    processor_percent: float
    wakeups_per_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from POST to subscriber."""

    median_ms: float
    p99_ms: float

    @classmethod
    def of(cls, values_ms: list[float]) -> Latency:
        """The quantiles of some values."""
        return cls(
            round(statistics.median(values_ms), 2),
            round(statistics.quantiles(values_ms, n=100, method="inclusive")[98], 2),
        )


def _number(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert found is not None, f"/proc has no {name}"
    return int(found[1])


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


def processes(server: Server) -> dict[str, int]:
    """Process ids of a server, by what they are."""
    named = {"supervisor": server.pid, **parts_of(server.pid)}
    known = {pid: name for name, pid in named.items()}
    for pid in descendants(server.pid):
        if not Path(f"/proc/{pid}/cmdline").read_bytes():
            continue  # it has ended, and nobody has waited for it
        if b"headgate.server.processes.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes():
            named["zygote"] = pid
        elif pid not in known:
            named[f"{Path(f'/proc/{pid}/comm').read_text().strip()} {pid}"] = pid
    return named


def processor_s(pids: dict[str, int]) -> float:
    """Processor time of all of them so far."""
    return sum(Reading.of(pid).processor_s for pid in pids.values())


def wait_until_quiet(pids: dict[str, int]) -> float:
    """Returns when the server has nothing left to do, with the seconds that it took."""
    started = time.monotonic()
    while True:
        before, at = processor_s(pids), time.monotonic()
        time.sleep(QUIET_S)
        percent = (processor_s(pids) - before) / (time.monotonic() - at) * 100
        if percent < QUIET_PERCENT:
            return time.monotonic() - started
        if time.monotonic() - started > QUIET_S_MAX:
            raise SystemExit(f"error: the server takes {percent:.0f} % of a core after {QUIET_S_MAX:.0f} s of nothing")


def observe(pids: dict[str, int], seconds: float) -> tuple[dict[str, Taken], Counter[str]]:
    """What the processes take, and the wake-ups a second of each thread."""
    before, at = {name: Reading.of(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    after, lasted_s = {name: Reading.of(pid) for name, pid in pids.items()}, time.monotonic() - at
    taken: dict[str, Taken] = {}
    threads: Counter[str] = Counter()
    for name, pid in pids.items():
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        private_kb = _number(rollup, "Private_Clean") + _number(rollup, "Private_Dirty")
        woken = {
            thread: (count - before[name].switches.get(thread, 0)) / lasted_s
            for thread, count in after[name].switches.items()
        }
        threads.update({f"{name}: {thread}": round(per_s, 1) for thread, per_s in woken.items()})
        taken[name] = Taken(
            pss_mb=round(_number(rollup, "Pss") * 1_024 / 1e6, 1),
            uss_mb=round(private_kb * 1_024 / 1e6, 1),
            threads=len(after[name].switches),
            processor_percent=round((after[name].processor_s - before[name].processor_s) / lasted_s * 100, 2),
            wakeups_per_s=round(sum(woken.values()), 1),
        )
    return taken, threads


async def latencies(server: Server, receiver: Receiver, firsts: int) -> tuple[Latency, Latency]:
    """Of events after a silence, and of those in the midst of a steady flow."""
    url = f"{server.url}/default/default"
    rng = random.Random(7)
    receiver.latencies_ms.clear()
    for number in range(firsts):
        await asyncio.sleep(SILENCE_S)
        async with ClientBuilder().build() as client:
            await publish(client, url, number, rng)
        await asyncio.sleep(0.5)  # its delivery is in the list, and in the silence before the next one
    first = Latency.of(receiver.latencies_ms)
    await produce(url, STEADY_PER_S, 3)
    await asyncio.sleep(1)
    receiver.latencies_ms.clear()
    await produce(url, STEADY_PER_S, max(5.0, firsts))
    await asyncio.sleep(1)
    return first, Latency.of(receiver.latencies_ms)


async def measure(server: Server, asked: argparse.Namespace) -> dict[str, object]:
    """The whole run; the figures."""
    receiver = Receiver()
    async with serving(receiver):
        url = f"http://127.0.0.1:{receiver.port}/all"
        await load(server, TRIGGERS - 1, url, 1)
        spec = {"broker": "default", "subscriber": {"uri": url}}
        await asyncio.to_thread(server.create, "triggers", "default", "all", spec)
        await asyncio.to_thread(server.wait_trigger_ready, "default", "all")
        pids = processes(server)
        quiet_s = await asyncio.to_thread(wait_until_quiet, pids)
        taken, threads = await asyncio.to_thread(observe, pids, asked.seconds)
        figures: dict[str, object] = {"quiet_s": round(quiet_s, 1), "processes": taken, "threads": threads}
        if asked.firsts:
            first, steady = await latencies(server, receiver, asked.firsts)
            figures |= {"after_silence": first, "steady": steady}
    return figures


def total(taken: dict[str, Taken]) -> Taken:
    """What all processes take together."""
    every = taken.values()
    return Taken(
        round(sum(one.pss_mb for one in every), 1),
        round(sum(one.uss_mb for one in every), 1),
        sum(one.threads for one in every),
        round(sum(one.processor_percent for one in every), 2),
        round(sum(one.wakeups_per_s for one in every), 1),
    )


def show(taken: dict[str, Taken], threads: Counter[str], latency: dict[str, Latency], threads_shown: int) -> None:
    """The tables for people."""
    table = Table(title="A server with nothing to do", show_footer=True)
    whole = total(taken)
    footers = ("together", whole.pss_mb, whole.uss_mb, whole.threads, whole.processor_percent, whole.wakeups_per_s)
    limits = ("limit", f"{MEMORY_MB_MAX:.0f}", "", "", PROCESSOR_PERCENT_MAX, "")
    heads = ("process", "PSS MB", "USS MB", "threads", "% of a core", "wake-ups/s")
    for head, footer, limit in zip(heads, footers, limits, strict=True):
        table.add_column(head, footer=f"{footer}\n{limit}", justify="left" if head == "process" else "right")
    for name, one in taken.items():
        figures = (one.pss_mb, one.uss_mb, one.threads, one.processor_percent, one.wakeups_per_s)
        table.add_row(name, *map(str, figures))
    print_whole(table)
    for name, per_s in threads.most_common(threads_shown):
        print(f"{per_s:8.1f} wake-ups/s  {name}")
    for name, figures_ms in latency.items():
        print(f"POST to subscriber, {name}: median {figures_ms.median_ms} ms, p99 {figures_ms.p99_ms} ms")


def main() -> None:
    """Parses the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of nothing that are measured")
    parser.add_argument("--firsts", type=int, default=20, help="events after a silence; 0 for none, else at least 2")
    parser.add_argument("--threads", type=int, default=0, help="print the threads that wake up most")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("arguments", nargs="*", help="more arguments of `headgate serve`, behind --")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        data = Path(folder)
        with Server(data / "data", log=data / "server.log", arguments=tuple(asked.arguments)) as server:
            figures = asyncio.run(measure(server, asked))
    taken: dict[str, Taken] = figures["processes"]  # type: ignore[assignment]
    latency = {
        name: figures[key]
        for name, key in (("after 5 s of silence", "after_silence"), (f"at {STEADY_PER_S} events/s", "steady"))
        if key in figures
    }
    whole = total(taken)
    if asked.json:
        plain = {"processes": {name: asdict(one) for name, one in taken.items()}, "together": asdict(whole)}
        print(json.dumps(plain | {name: asdict(one) for name, one in latency.items()}))  # type: ignore[call-overload]
    else:
        show(taken, figures["threads"], latency, asked.threads)  # type: ignore[arg-type]
        sys.exit(whole.pss_mb > MEMORY_MB_MAX or whole.processor_percent > PROCESSOR_PERCENT_MAX)


if __name__ == "__main__":
    main()
