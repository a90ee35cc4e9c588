"""The loads on one setup, end to end: publishers, a real server, a subscriber in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.dispatch import subscriber
from benchmarks.ingress import drive
from benchmarks.objects import create_all, wait_ready
from benchmarks.published.probes import Course, Recording, written_bytes
from benchmarks.published.results import Tell
from benchmarks.published.setups import BATCH, Events, Post, Setup, brokers_of, noisy_post, quiet_post, triggers_of
from benchmarks.shards import ROLES, SETTLED_S, processor_s, publish
from benchmarks.system import arrivals, arrived
from headgate.testing.server import Server

DIFFERENT = 10_000
"""Requests that the connections of a closed loop take turns with."""
STEADY_IDS_FROM = 1_000_000_000
NOISY_IDS_FROM = 2_000_000_000
NOISY_PERCENT = 10
NOISY_TIMES = 10
SAMPLES_A_SECOND = 1.0
P99_FROM = 100
"""Samples: of fewer, the p99 is only the slowest one."""
TOLD_EVERY = 1_000


@dataclass(frozen=True)
class Bench:
    """A server with a setup loaded, and what watches it."""

    setup: Setup
    server: Server
    pipe: Connection
    course: Course
    options: argparse.Namespace
    tell: Tell


def measure(setup: Setup, options: argparse.Namespace, tell: Tell) -> dict[str, Any]:
    """Everything of one setup, on a server of its own."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as scratch, subscriber() as (url, pipe):
        folder = Path(scratch)
        with (
            Server(folder / "data", log=folder / "server.log") as server,
            Course(server, SAMPLES_A_SECOND) as course,
        ):
            course.mark("load")
            loaded_s = load(setup, server, url, tell)
            bench = Bench(setup, server, pipe, course, options, tell)
            course.mark("warm")
            made = Events(setup, 100)
            with Recording(server):  # the first one makes the JVM compile anew
                closed_loop(bench, [made.single() for _ in range(DIFFERENT)], options.warm)
            loads = [one_load(bench, percent) for percent in options.match]
            mixed = mixed_load(bench)
            noise = neighbour(bench)
    return {
        "brokers": setup.brokers,
        "filters": setup.filters,
        "loaded_s": round(loaded_s, 1),
        "loads": loads,
        "mixed": mixed,
        "neighbour": noise,
        "course": {"roles": ROLES, "marks": course.marks, "samples": course.samples},
    }


def load(setup: Setup, server: Server, url: str, tell: Tell) -> float:
    """Brokers and triggers by the API; returns the seconds until all are Ready."""
    started = time.monotonic()

    def told(kind: str, count: int) -> Callable[[int], None]:
        return lambda made: tell(f"{made:,} of {count:,} {kind}") if made % TOLD_EVERY == 0 else None

    brokers, triggers = list(brokers_of(setup)), list(triggers_of(setup, url))
    asyncio.run(create_all(server, "brokers", brokers, told("brokers", len(brokers))))
    asyncio.run(create_all(server, "triggers", triggers, told("triggers", len(triggers))))
    tell("waits until the last trigger is Ready")
    wait_ready(server, triggers)
    return time.monotonic() - started


def closed_loop(bench: Bench, posts: list[Post], seconds: float) -> dict[str, Any]:
    """As many requests as the connections send one after the other; returns when all that is wanted has come."""
    arrivals(bench.pipe)  # clears
    before, wrote = processor_s(bench.server), written_bytes(bench.server)
    started = time.monotonic()
    times_s, took_s, sent = uvloop.run(
        drive(bench.server.port, [one.bytes for one in posts], bench.options.connections, seconds)
    )
    rounds, rest = divmod(sent, len(posts))
    events, wanted = (
        rounds * sum(getattr(one, what) for one in posts) + sum(getattr(one, what) for one in posts[:rest])
        for what in ("events", "wanted")
    )
    arrived(bench.pipe, wanted)
    last = max((at for _, at in arrivals(bench.pipe)), default=started)
    time.sleep(SETTLED_S)
    after, written = processor_s(bench.server), written_bytes(bench.server)
    times_s.sort()
    return {
        "events": events,
        "wanted": wanted,
        "stored_per_s": round(len(times_s) / took_s * events / sent),
        "delivered_per_s": round(wanted / (last - started)) if wanted else None,
        "behind_s": round(max(0.0, last - started - took_s), 2) if wanted else None,
        "stored_p50_ms": _ms(times_s, 0.5),
        "stored_p99_ms": _ms(times_s, 0.99),
        "us_per_event": {role: round((after[role] - before[role]) / events * 1e6, 1) for role in ROLES},
        "written_bytes_per_event": {
            role: round(count / events) for role, count in sorted((Counter(written) - Counter(wrote)).items())
        },
    }


def recorded(bench: Bench, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Work with a flight recording of the JVM."""
    with Recording(bench.server) as recording:
        found = work()
    pauses = recording.pauses
    if pauses is None:
        return found
    found["jvm"] = asdict(pauses) | {"allocated_bytes_per_event": round(pauses.allocated_bytes / found["events"])}
    return found


def one_load(bench: Bench, percent: float) -> dict[str, Any]:
    """So many events in a hundred match: events/s in a closed loop, then latency at a steady rate."""
    options = bench.options
    bench.course.mark(f"{percent:g} %")
    bench.tell(f"{percent:g} % match: {options.connections} connections for {options.seconds:g} s")
    made = Events(bench.setup, percent)
    posts = [made.single() for _ in range(DIFFERENT)]
    found = recorded(bench, lambda: closed_loop(bench, posts, options.seconds))
    bench.course.mark(f"{percent:g} %, steady")
    bench.tell(f"{percent:g} % match: {options.rate:g} events/s for {options.steady:g} s")
    made = Events(bench.setup, percent, first=STEADY_IDS_FROM)
    steady = [made.single() for _ in range(int(options.rate * options.steady))]
    return {"percent": percent, **found, "rate": options.rate, **latency(bench, steady)}


def latency(bench: Bench, posts: list[Post]) -> dict[str, Any]:
    """From when an event was due to its arrival, in milliseconds; the ids count from STEADY_IDS_FROM."""
    rate = bench.options.rate
    arrivals(bench.pipe)
    started = uvloop.run(publish(bench.server.port, [one.bytes for one in posts], rate))
    arrived(bench.pipe, sum(one.wanted for one in posts))
    times_s = sorted(
        at - started - (number - STEADY_IDS_FROM) / rate
        for number, at in arrivals(bench.pipe)
        if STEADY_IDS_FROM <= number < NOISY_IDS_FROM
    )
    return {"deliveries": len(times_s), "p50_ms": _ms(times_s, 0.5), "p99_ms": _ms(times_s, 0.99)}


def mixed_load(bench: Bench) -> dict[str, Any]:
    """Half of the events come in batches: after BATCH single ones comes one of BATCH.

    A batch goes to one broker. So where only the quiet brokers want events, those of batches match nothing.
    """
    bench.course.mark("mixed")
    bench.tell(f"batches of {BATCH} and single events")
    made = Events(bench.setup, NOISY_PERCENT)
    posts = [
        made.batch() if number % (BATCH + 1) == BATCH else made.single()
        for number in range(DIFFERENT // 2 // BATCH * (BATCH + 1))
    ]
    found = closed_loop(bench, posts, bench.options.seconds)
    return {"percent": round(found["wanted"] / found["events"] * 100), **found}


def neighbour(bench: Bench) -> dict[str, Any]:
    """Latency of the quiet brokers, alone and beside one broker that sends NOISY_TIMES as much as all of them."""
    options, setup = bench.options, bench.setup
    quiet = [quiet_post(STEADY_IDS_FROM + number) for number in range(int(options.rate * options.steady))]
    noisy = [
        noisy_post(setup, NOISY_IDS_FROM + number, wanted=number * NOISY_PERCENT % 100 == 0)
        for number in range(len(quiet) * NOISY_TIMES)
    ]
    noisy_rate = options.rate * NOISY_TIMES
    bench.course.mark("quiet alone")
    bench.tell(f"quiet brokers at {options.rate:g} events/s, alone")
    alone = latency(bench, quiet)
    bench.course.mark("beside a noisy one")
    bench.tell(f"beside a noisy one at {noisy_rate:g} events/s")
    arrivals(bench.pipe)

    async def both() -> float:
        port = bench.server.port
        started, _ = await asyncio.gather(
            publish(port, [one.bytes for one in quiet], options.rate),
            publish(port, [one.bytes for one in noisy], noisy_rate),
        )
        return started

    began = time.monotonic()
    started = uvloop.run(both())
    took_s = time.monotonic() - began
    arrived(bench.pipe, sum(one.wanted for one in (*quiet, *noisy)))
    times_s = sorted(
        at - started - (number - STEADY_IDS_FROM) / options.rate
        for number, at in arrivals(bench.pipe)
        if number < NOISY_IDS_FROM
    )
    return {
        "rate": options.rate,
        "noisy_rate": noisy_rate,
        "noisy_sent_per_s": round(len(noisy) / took_s),
        "noisy_percent": NOISY_PERCENT if setup.triggers else 0,
        "alone": alone,
        "beside": {"deliveries": len(times_s), "p50_ms": _ms(times_s, 0.5), "p99_ms": _ms(times_s, 0.99)},
    }


def _ms(times_s: list[float], quantile: float) -> float | None:
    """A quantile of sorted seconds in milliseconds; None where there are too few."""
    if not times_s or (quantile > 0.5 and len(times_s) < P99_FROM):
        return None
    return round(times_s[int(len(times_s) * quantile)] * 1e3, 2)
