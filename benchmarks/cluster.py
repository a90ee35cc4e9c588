"""A deployment on Kafka beside one that keeps everything itself: latency, events a second, processor time of each role.

    python -m benchmarks.cluster                  embedded; then one broker, the matcher on local[N]
    python -m benchmarks.cluster --full           then three brokers, a Spark master with two workers, two servers, too

Of each form, one after the other on the same machine:

* Latency, from before the POST to its arrival at a subscriber, with `--triggers` triggers and `--rate` events/s, as in
  `benchmarks.latency`, when the JVM has compiled the query of that many filters. The goal of one broker is p50 8 ms and
  p99 40 ms on a quiet machine with two cores.
* A steady load of single POSTs, one match each, as in `benchmarks.shards`: the processor time of every process for an
  event, from /proc, from the first event to the last delivery.
* As many single POSTs as `--connections` connections send one after the other: events/s stored, and delivered.

Two cores cannot carry the full set; its figures say where the time goes. The brokers' JVM compiles with C1 alone
(`clusters.kafka`), so a broker in production needs less.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import uvloop
from clusters.kafka import Kafka
from examples.cluster.machines import Sizes, running
from rich.console import Console
from rich.table import Table

from benchmarks import latency
from benchmarks.dispatch import subscriber
from benchmarks.idle import descendants
from benchmarks.ingress import drive
from benchmarks.shards import own_s, processor_s, request, rounded, steady
from benchmarks.system import arrived, load
from benchmarks.tables import print_whole
from headgate.testing.server import Server

ROLES: Final = ("front", "control", "matcher", "dispatcher", "reader", "supervisor", "broker", "executor", "spark")
"""`matcher` is the driver; `executor` runs its tasks in the full set; `spark` is the master and the workers."""
GOALS_MS: Final = {"p50_ms": 8.0, "p99_ms": 40.0}
"""Of one broker, on a quiet machine with two cores."""
WANTED: Final = 100
"""Triggers of the steady load: each event is wanted by one."""
PARTITIONS: Final = 2
DIFFERENT: Final = 10_000


@dataclass(frozen=True)
class Form:
    """A deployment that runs.

    Attributes:
        name: What it is called.
        servers: Events are sent to the first one.
        others: Processes that are no server's, by role.
    """

    name: str
    servers: tuple[Server, ...]
    others: Callable[[], dict[str, list[int]]]

    def processor_s(self) -> Counter[str]:
        """Processor time so far, seconds by role."""
        found: Counter[str] = Counter()
        for server in self.servers:
            found += processor_s(server)
        for role, pids in self.others().items():
            found[role] += sum(map(own_s, pids))
        return found


@dataclass(frozen=True)
class Result:
    """What was measured of one form.

    Attributes:
        form: Its name.
        triggers: While latency was measured.
        rate: Events a second then.
        deliveries: Then.
        p50_ms: From before a POST to its delivery.
        p99_ms: The same.
        us_per_event: Processor time of each role for an event of the steady load, microseconds.
        idle_ms_per_s: Of each role while nothing happens, milliseconds a second.
        total_us: The sum of `us_per_event`.
        stored_per_s: Events that were answered with 202.
        delivered_per_s: Of the same events, until the last one was delivered.
    """

    form: str
    triggers: int
    rate: int
    deliveries: int
    p50_ms: float
    p99_ms: float
    us_per_event: dict[str, float]
    idle_ms_per_s: dict[str, float]
    total_us: float
    stored_per_s: int
    delivered_per_s: int


@contextlib.contextmanager
def embedded(folder: Path) -> Iterator[Form]:
    """One server that keeps everything itself."""
    with Server(folder / "data", log=folder / "server.log") as server:
        yield Form("embedded", (server,), dict)


@contextlib.contextmanager
def one_broker(folder: Path) -> Iterator[Form]:
    """One server with every role, one broker, the matcher on `local[N]`."""
    sizes = Sizes(servers=1, brokers=1, partitions=PARTITIONS)
    with Kafka(folder / "kafka") as kafka:
        config = sizes.config(kafka.bootstrap, "", "one") | {"spark": {"master": f"local[{sizes.slots}]"}}
        file = folder / "headgate.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        headgate = Path(sys.executable).with_name("headgate")
        subprocess.run([headgate, "cluster", "init", "--config", file], check=True, stdout=subprocess.DEVNULL)
        with Server(folder / "data", log=folder / "server.log", arguments=("--config", str(file))) as server:
            yield Form("kafka, one broker", (server,), lambda: {"broker": list(kafka.pids.values())})


@contextlib.contextmanager
def full_set(folder: Path) -> Iterator[Form]:
    """Three brokers, a Spark master with two workers, two servers of which one matches."""
    sizes = Sizes(servers=2, brokers=3, partitions=PARTITIONS)
    with running(folder, sizes, lambda _: None) as machines:

        def others() -> dict[str, list[int]]:
            daemons = machines.spark.pids
            executors = [below for pid in daemons for below in descendants(pid)]
            return {"broker": list(machines.kafka.pids.values()), "spark": daemons, "executor": executors}

        yield Form("kafka, full set", machines.servers, others)


def paced(form: Form, pipe: Connection, arguments: argparse.Namespace) -> dict[str, Any]:
    """Processor time per event at a steady rate; see `shards.steady`."""
    events = [
        request(number, WANTED, keyed=False)
        for number in range(int(arguments.rate * arguments.warm) + arguments.events)
    ]
    taken = steady(form.processor_s, ROLES, form.servers[0].port, pipe, events, arguments)
    us, idle = rounded(taken.us_per_event), rounded(taken.idle_ms_per_s)
    return {"us_per_event": us, "idle_ms_per_s": idle, "total_us": round(sum(us.values()), 1)}


def throughput(form: Form, pipe: Connection, arguments: argparse.Namespace) -> dict[str, Any]:
    """Events/s in a closed loop."""
    pipe.send("all")
    pipe.recv()
    events = [request(number, WANTED, keyed=False) for number in range(DIFFERENT)]
    started = time.monotonic()
    times_s, took_s, sent = uvloop.run(
        drive(form.servers[0].port, events, arguments.connections, arguments.seconds / 3)
    )
    arrived(pipe, sent)
    return {
        "stored_per_s": round(len(times_s) / took_s),
        "delivered_per_s": round(sent / (time.monotonic() - started)),
    }


def measure(form: Form, arguments: argparse.Namespace, tell: Callable[[str], None]) -> Result:
    """Everything of one form."""
    tell(f"{form.name}: {arguments.triggers:,} triggers, then latency at {arguments.rate} events/s")
    found = asyncio.run(latency.measure(form.servers[0], latency.Receiver(), arguments))
    with subscriber() as (url, pipe):
        tell(f"{form.name}: processor time of {arguments.events:,} events")
        load(form.servers[0], WANTED, url, prefix="w")
        by_role = paced(form, pipe, arguments)
        tell(f"{form.name}: events/s of {arguments.connections} connections")
        rates = throughput(form, pipe, arguments)
    return Result(
        form=form.name,
        triggers=arguments.triggers,
        rate=arguments.rate,
        deliveries=found["deliveries"],
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        **by_role,
        **rates,
    )


def show(results: list[Result]) -> None:
    """A column a form."""
    table = Table(title="A deployment on Kafka beside one that keeps everything itself")
    for head in ("", *(one.form for one in results)):
        table.add_column(head, justify="right" if head else "left")
    rows: dict[str, Callable[[Result], str]] = {
        "POST to subscriber, p50 ms": lambda one: f"{one.p50_ms:.1f}",
        "p99 ms": lambda one: f"{one.p99_ms:.1f}",
        "events/s stored": lambda one: f"{one.stored_per_s:,}",
        "events/s delivered": lambda one: f"{one.delivered_per_s:,}",
    }
    for name, cell in rows.items():
        table.add_row(name, *map(cell, results))
    for role in ROLES:
        cells = [f"{one.us_per_event[role]:.0f} ({one.idle_ms_per_s[role]:.0f})" for one in results]
        table.add_row(f"{role}, us of processor an event (idle ms/s)", *cells)
    table.add_row("all of them", *(f"{one.total_us:.0f}" for one in results))
    print_whole(table)
    goals = ", ".join(f"{name.removesuffix('_ms')} {goal:g} ms" for name, goal in GOALS_MS.items())
    print(f"the goal of one broker, on a quiet machine with two cores: {goals}")


def main() -> None:
    """Parses the flags, runs, prints a table or one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=10_000, help="where latency is measured (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=300, help="events a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="of the latency; the closed loop takes a third of it")
    parser.add_argument("--events", type=int, default=6_000, help="of the steady load (default: %(default)s)")
    parser.add_argument(
        "--warm", type=float, default=60, help="seconds of each load that are not counted (default: %(default)g)"
    )
    parser.add_argument("--idle", type=float, default=5, help="seconds without any load, before it")
    parser.add_argument("--connections", type=int, default=16, help="of the closed loop (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="the whole set as well")
    parser.add_argument("--only", choices=["embedded", "one", "full"], help="this form alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    arguments.changes = 0  # as `latency.measure` has it
    forms = {"embedded": embedded, "one": one_broker, "full": full_set}
    chosen = [arguments.only] if arguments.only else ["embedded", "one", *(["full"] if arguments.full else [])]
    console, results = Console(stderr=True), []
    for name in chosen:
        with contextlib.ExitStack() as stack:
            status = stack.enter_context(console.status(f"{name}: starts"))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
            form = stack.enter_context(forms[name](folder))
            results.append(measure(form, arguments, status.update))
        if arguments.json:
            print(json.dumps(asdict(results[-1])), flush=True)
    if not arguments.json:
        show(results)


if __name__ == "__main__":
    main()
