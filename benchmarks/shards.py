"""Processor time per event of one front and one dispatcher, beside that of two fronts and two dispatchers.

    python -m benchmarks.shards [--pairs 3] [--events 10000] [--rate 500] [--keyed] [--json]

A pair is two servers, one after the other, in turns the one and the other first. Each gets the same events at the same
rate, each wanted by one trigger, after a warm-up that is not counted. Processor time is that of all processes of the
server by /proc, the JVM included, from the first event until the last one is delivered and everything is written down.
Before that the server is left alone for a while: what it takes idle is a part of the figure, by its rate. With
`--keyed` the events have a `partitionkey`: with two fronts half of them come to the front that does not write theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from benchmarks.dispatch import subscriber
from benchmarks.idle import descendants
from benchmarks.system import arrived, load
from headgate.testing.server import Server, parts_of

CONNECTIONS = 16
KEYS = 64
SETTLED_S = 1.0
"""After the last delivery: cursors are written within 0.05 s, metrics within some tenths."""
ANSWER_S_MAX = 60.0
GOAL = 1.15
ROLES = ("front", "dispatcher", "matcher", "control", "reader", "supervisor")


@dataclass(frozen=True)
class Result:
    """One server.

    Attributes:
        fronts: How many.
        dispatchers: How many.
        us_per_event: Processor time of each role for an event, microseconds.
        idle_ms_per_s: Of each role while nothing happens, milliseconds a second.
        total_us: The sum of `us_per_event`.
    """

    fronts: int
    dispatchers: int
    us_per_event: dict[str, float]
    idle_ms_per_s: dict[str, float]
    total_us: float


def request(number: int, triggers: int, keyed: bool) -> bytes:
    """One event in binary mode; it is wanted by one trigger of `benchmarks.system.load`."""
    body = json.dumps({"order": number, "total": number % 977, "region": "eu-west-1"}).encode()
    lines = [
        "POST /default/default HTTP/1.1",
        "host: 127.0.0.1",
        f"content-length: {len(body)}",
        "content-type: application/json",
        "ce-specversion: 1.0",
        f"ce-id: {number}",
        "ce-source: /benchmarks/shards",
        f"ce-type: com.shop.t{number % triggers}",
        *([f"ce-partitionkey: k{number % KEYS}"] if keyed else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def publish(port: int, events: list[bytes], rate: float) -> float:
    """Open loop, the connections in turns, until all have been answered.

    Returns:
        When the first event was due, by the monotonic clock; the others follow at the rate.

    Raises:
        RuntimeError: Not every event was accepted.
    """
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    due = [len(events[number::CONNECTIONS]) for number in range(CONNECTIONS)]
    readers = [asyncio.create_task(answers(reader, count)) for (reader, _), count in zip(connections, due, strict=True)]
    started = time.monotonic()
    for number, event in enumerate(events):
        await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
        connections[number % CONNECTIONS][1].write(event)
    accepted = sum(await asyncio.gather(*readers))
    for _, writer in connections:
        writer.close()
    if accepted != len(events):
        raise RuntimeError(f"{accepted} of {len(events)} events were accepted")
    return started


async def answers(reader: asyncio.StreamReader, count: int) -> int:
    """How many of so many answers are 202; fewer are read where none comes for ANSWER_S_MAX."""
    accepted = 0
    try:
        for _ in range(count):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER_S_MAX)
            accepted += head.startswith(b"HTTP/1.1 202")
    except (asyncio.IncompleteReadError, TimeoutError):
        pass
    return accepted


def processor_s(server: Server) -> Counter[str]:
    """Processor time so far, seconds by role."""
    found: Counter[str] = Counter({"supervisor": own_s(server.pid)})
    for part, pid in parts_of(server.pid).items():
        found[part.partition("-")[0]] += sum(own_s(one) for one in [pid, *descendants(pid)])
    return found


def own_s(pid: int) -> float:
    """User and system time of a process with all its threads, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Taken:
    """Processor time by role.

    Attributes:
        us_per_event: For an event of a steady load, microseconds.
        idle_ms_per_s: While nothing happens, milliseconds a second.
    """

    us_per_event: dict[str, float]
    idle_ms_per_s: dict[str, float]


def steady(
    processor: Callable[[], Counter[str]],
    roles: Sequence[str],
    port: int,
    pipe: Connection,
    events: Sequence[bytes],
    arguments: argparse.Namespace,
) -> Taken:
    """What events at a steady rate take, behind a load that is not counted and a while of nothing.

    Args:
        processor: Processor time so far, seconds by role.
        roles: Of which it is told.
        port: Where events go.
        pipe: To the subscriber.
        events: Requests; the last `arguments.events` of them are counted.
        arguments: With `events`, `rate` and `idle`.

    Raises:
        RuntimeError: Events were refused or not delivered.
    """
    warm = len(events) - arguments.events
    uvloop.run(publish(port, events[:warm], arguments.rate))
    arrived(pipe, warm)
    time.sleep(SETTLED_S)
    idle_from = processor()
    time.sleep(arguments.idle)
    began = processor()
    uvloop.run(publish(port, events[warm:], arguments.rate))
    arrived(pipe, len(events))
    time.sleep(SETTLED_S)
    ended = processor()
    return Taken(
        {role: (ended[role] - began[role]) / arguments.events * 1e6 for role in roles},
        {role: (began[role] - idle_from[role]) / arguments.idle * 1e3 for role in roles},
    )


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """To a tenth."""
    return {role: round(figure, 1) for role, figure in figures.items()}


def measure(number: int, arguments: argparse.Namespace) -> Result:
    """One server with so many fronts and dispatchers.

    Raises:
        RuntimeError: Events were refused or not delivered, or a process was started again meanwhile.
    """
    flags = ("--fronts", str(number), "--dispatchers", str(number))
    warm = int(arguments.rate * arguments.warm)
    requests = [request(one, arguments.triggers, arguments.keyed) for one in range(warm + arguments.events)]
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as scratch, subscriber() as (url, pipe):
        folder = Path(scratch)
        with Server(folder / "data", log=folder / "server.log", arguments=flags) as server:
            load(server, arguments.triggers, url)
            parts = parts_of(server.pid)
            taken = steady(lambda: processor_s(server), ROLES, server.port, pipe, requests, arguments)
            if parts_of(server.pid) != parts:
                raise RuntimeError("a process of the server was started again")
    us, idle = rounded(taken.us_per_event), rounded(taken.idle_ms_per_s)
    return Result(number, number, us, idle, round(sum(us.values()), 1))


def main() -> None:
    """Parses the flags, runs, prints a table or one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=500.0, help="events a second")
    parser.add_argument("--warm", type=float, default=15.0, help="seconds of the same load that are not counted")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds without any load, before it")
    parser.add_argument("--triggers", type=int, default=100)
    parser.add_argument("--keyed", action="store_true", help="events have a partitionkey")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    found: dict[int, list[Result]] = {1: [], 2: []}
    if not arguments.json:
        print("processor time per event, microseconds; idle, milliseconds a second")
        print(f"{'':10}" + "".join(f"{role:>16}" for role in ROLES) + f"{'all':>16}")
    for pair in range(arguments.pairs):
        for number in (1, 2) if pair % 2 == 0 else (2, 1):
            result = measure(number, arguments)
            found[number].append(result)
            if arguments.json:
                print(json.dumps(asdict(result)), flush=True)
                continue
            cells = [f"{result.us_per_event[role]:.0f} ({result.idle_ms_per_s[role]:.0f} idle)" for role in ROLES]
            print(f"{f'{number}/{number}':10}" + "".join(f"{cell:>16}" for cell in cells), end="")
            print(f"{result.total_us:16.0f}", flush=True)
    ratio = statistics.median(two.total_us / one.total_us for one, two in zip(found[1], found[2], strict=True))
    if arguments.json:
        print(json.dumps({"ratio": round(ratio, 3), "goal": GOAL}))
    else:
        print(f"2/2 takes {ratio:.2f} times the processor time of 1/1, the median of the pairs; the goal is {GOAL}")


if __name__ == "__main__":
    main()
