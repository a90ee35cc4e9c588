"""The life of one event in microseconds: where it waits, who works for it, and what each part costs by itself.

    python -m benchmarks.budget                          50, 500 and 2,000 events/s, 100 triggers
    python -m benchmarks.budget --rates 500 --json

One server takes a steady flow of single POSTs, each wanted by one trigger. Waiting is the mean of the server's own
histograms of its stages, from /metrics. Processor time is that of every process, from /proc, without what the server
takes idle. Beside both stand the limits of the same machine in the same run:

* the processor time of a server that only answers, for a POST at the same rate: what comes alone finds a core asleep
  and its caches cold, so the same work costs several times as much at a low rate;
* an fdatasync behind a write of the size of an event, in the folder of the log;
* a POST to a server that does nothing but answer, one after the other;
* one thread that wakes another one up and is woken by it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop
from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from benchmarks.dispatch import subscriber
from benchmarks.ingress import served
from benchmarks.shards import ROLES, own_s, processor_s, publish, request
from benchmarks.system import arrived, load
from benchmarks.tables import print_whole
from headgate.testing.server import Server

STAGES: Final = {
    "store": "headgate_store_seconds",
    "match": "headgate_match_seconds",
    "send": "headgate_send_seconds",
    "deliver": "headgate_delivery_seconds",
}
SETTLED_S: Final = 2.5
"""Until /metrics has what has happened: it is at most a second old, and cursors are written within a twentieth."""
EVENT_BYTES: Final = 500
LIMIT_ROUNDS: Final = 500


@dataclass(frozen=True)
class Budget:
    """One event at one rate, in microseconds.

    Attributes:
        rate: Events a second.
        store_us: From the head of its request to its bytes on disk.
        match_us: From then to its match on disk.
        schedule_us: From then until its request is sent: what is left of `deliver_us`. 0 at least, for `match_us` is
            measured of one event of each read.
        send_us: From its request to the end of the subscriber's answer.
        deliver_us: From the event on disk to that answer.
        processor_us: Of each role.
        bare_us: Processor time of a server that only answers, for a POST at the same rate.
    """

    rate: float
    store_us: float
    match_us: float
    schedule_us: float
    send_us: float
    deliver_us: float
    processor_us: dict[str, float]
    bare_us: float


def stages(server: Server) -> dict[str, tuple[float, float]]:
    """Seconds and count of each stage so far."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    return {stage: (found.get(f"{name}_sum", 0.0), found.get(f"{name}_count", 0.0)) for stage, name in STAGES.items()}


class Flow:
    """Events that are numbered on from one rate to the next.

    Args:
        server: Where they go.
        triggers: How many there are.
        came: Waits until so many have been delivered.
    """

    def __init__(self, server: Server, triggers: int, came: Callable[[int], None]) -> None:
        self._server = server
        self._triggers = triggers
        self._came = came
        self._sent = 0

    def send(self, count: int, rate: float) -> None:
        """So many events at a rate; returns when all are delivered and written down."""
        events = [request(number, self._triggers, keyed=False) for number in range(self._sent, self._sent + count)]
        uvloop.run(publish(self._server.port, events, rate))
        self._sent += count
        self._came(self._sent)
        time.sleep(SETTLED_S)


def measure(server: Server, flow: Flow, rate: float, seconds: float, bare_us: float) -> Budget:
    """The budget of one event at a rate."""
    flow.send(int(rate * min(seconds, 5)), rate)
    idle_from, idle_s = processor_s(server), 5.0
    time.sleep(idle_s)
    began, at, before = processor_s(server), time.monotonic(), stages(server)
    idle_per_s = {role: (began[role] - idle_from[role]) / idle_s for role in ROLES}
    count = int(rate * seconds)
    flow.send(count, rate)
    ended, lasted_s, after = processor_s(server), time.monotonic() - at, stages(server)
    mean_us = {
        stage: (after[stage][0] - before[stage][0]) / max(1.0, after[stage][1] - before[stage][1]) * 1e6
        for stage in STAGES
    }
    used = {role: (ended[role] - began[role] - idle_per_s[role] * lasted_s) / count * 1e6 for role in ROLES}
    return Budget(
        rate=rate,
        store_us=round(mean_us["store"]),
        match_us=round(mean_us["match"]),
        schedule_us=max(0, round(mean_us["deliver"] - mean_us["match"] - mean_us["send"])),
        send_us=round(mean_us["send"]),
        deliver_us=round(mean_us["deliver"]),
        processor_us={role: round(max(0.0, us)) for role, us in used.items()},
        bare_us=round(bare_us),
    )


# --- limits of the machine ------------------------------------------------------------------------


def bare_server_us(rate: float, seconds: float, folder: Path) -> float:
    """Processor time of a server that only answers, for one of the POSTs that it gets at a rate."""
    count = int(rate * seconds)
    posts = [request(number, 1, keyed=False) for number in range(count)]
    with served("bare", folder / "bare") as (process, port):
        uvloop.run(publish(port, posts[: int(rate)], rate))
        before_s = own_s(process.pid)
        uvloop.run(publish(port, posts, rate))
        used_s = own_s(process.pid) - before_s
        process.communicate()
    return used_s / count * 1e6


def sync_us(folder: Path) -> Iterator[float]:
    """Each write of an event with its fdatasync."""
    fd = os.open(folder / "limit", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for number in range(LIMIT_ROUNDS):
            started = time.perf_counter()
            os.pwrite(fd, bytes(EVENT_BYTES), number * EVENT_BYTES)
            os.fdatasync(fd)
            yield (time.perf_counter() - started) * 1e6
    finally:
        os.close(fd)


async def posts_us(url: str) -> list[float]:
    """Each POST to the subscriber of the benchmark, which only answers, on one connection."""
    host, port = url.removeprefix("http://").split("/", 1)[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b"x" * 100
    asked = b"POST /limit HTTP/1.1\r\nhost: limit\r\nce-id: 0\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    took = []
    for _ in range(LIMIT_ROUNDS):
        started = time.perf_counter()
        writer.write(asked)
        await reader.readuntil(b"\r\n\r\n")
        took.append((time.perf_counter() - started) * 1e6)
    writer.close()
    return took


def wake_ups_us() -> Iterator[float]:
    """Half of each round of two threads that wake each other up by pipes."""
    (to_other, from_us), (to_us, from_other) = os.pipe(), os.pipe()

    def echo() -> None:
        while byte := os.read(to_other, 1):
            os.write(from_other, byte)

    other = threading.Thread(target=echo)
    other.start()
    for _ in range(LIMIT_ROUNDS):
        started = time.perf_counter()
        os.write(from_us, b"x")
        os.read(to_us, 1)
        yield (time.perf_counter() - started) * 1e6 / 2
    os.close(from_us)
    other.join()
    for fd in (to_other, to_us, from_other):
        os.close(fd)


def main() -> None:
    """Parses the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[50.0, 500.0, 2_000.0], help="events a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each rate")
    parser.add_argument("--triggers", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as scratch, subscriber() as (url, pipe):
        folder = Path(scratch)
        bare = {rate: bare_server_us(rate, arguments.seconds, folder) for rate in arguments.rates}
        with Server(folder / "data", log=folder / "server.log") as server:
            load(server, arguments.triggers, url)
            flow = Flow(server, arguments.triggers, lambda count: arrived(pipe, count))
            flow.send(5_000, 500.0)  # the JVM is warm after it
            budgets = [measure(server, flow, rate, arguments.seconds, bare[rate]) for rate in arguments.rates]
        limits = {
            "fdatasync": statistics.median(sync_us(folder)),
            "POST": statistics.median(uvloop.run(posts_us(url))),
            "wake-up": statistics.median(wake_ups_us()),
        }
    if arguments.json:
        print(json.dumps({"limits_us": limits, "budgets": [asdict(one) for one in budgets]}))
        return
    show(budgets, limits)


def show(budgets: list[Budget], limits: dict[str, float]) -> None:
    """Prints the tables."""
    waiting = Table(title="Mean waiting of one event, microseconds")
    for name in ("events/s", "store", "match", "schedule", "send", "from disk to answer"):
        waiting.add_column(name, justify="right")
    work = Table(title="Processor time for one event, microseconds, without what the server takes idle")
    for name in ("events/s", *ROLES, "all", "bare server"):
        work.add_column(name, justify="right")
    for one in budgets:
        parts = (one.rate, one.store_us, one.match_us, one.schedule_us, one.send_us, one.deliver_us)
        waiting.add_row(*(f"{part:,.0f}" for part in parts))
        used = Counter(one.processor_us)
        work.add_row(
            *(f"{part:,.0f}" for part in (one.rate, *(used[role] for role in ROLES), used.total(), one.bare_us))
        )
    beside = Table(title="Limits of this machine, microseconds, medians")
    for name in limits:
        beside.add_column(name, justify="right")
    beside.add_row(*(f"{us:,.0f}" for us in limits.values()))
    for table in (waiting, work, beside):
        print_whole(table)


if __name__ == "__main__":
    main()
