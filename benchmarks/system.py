"""How fast is the whole system? 100 triggers, one match an event. `benchmarks.peers` has other systems beside it.

    python -m benchmarks.system

`headgate serve` on a real disk, every event synced before its 202, each matched by Spark and POSTed to one subscriber
process. First as many events as 16 or more connections send one after the other (events a second that are stored, and
that are delivered), then 50 a second at a steady pace (from when an event was due to its arrival).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.dispatch import subscriber
from benchmarks.ingress import drive
from headgate.testing.server import Server

BODY = (
    b'{"user":{"id":"u6151","tier":"basic"},"order":{"total":23.74,"items":[{"sku":"k221","n":1}]},'
    b'"region":"sa-central-1","tags":["app"]}'
)
DIFFERENT = 10_000
LATENCY_IDS_FROM = 1_000_000_000
DRAIN_S_MAX = 120.0


def request(number: int, triggers: int) -> bytes:
    """One event in binary mode; it is wanted by one trigger."""
    lines = [
        "POST /default/default HTTP/1.1",
        "host: 127.0.0.1",
        f"content-length: {len(BODY)}",
        "content-type: application/json",
        "ce-specversion: 1.0",
        f"ce-id: {number}",
        "ce-source: /ship/node-115",
        f"ce-type: com.shop.t{number % triggers}",
        "ce-subject: s/61898",
        "ce-time: 2026-11-21T00:00:00Z",
        "ce-partitionkey: p48",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + BODY


def load(server: Server, triggers: int, url: str, prefix: str = "t") -> None:
    """Makes the triggers, one exact type each, their names with a prefix; returns when all are Ready."""
    for number in range(triggers):
        spec = {
            "broker": "default",
            "filters": [{"exact": {"type": f"com.shop.t{number}"}}],
            "subscriber": {"uri": url},
        }
        server.create("triggers", "default", f"{prefix}{number}", spec)
    for number in range(triggers):
        server.wait_trigger_ready("default", f"{prefix}{number}", seconds=120)


def arrived(pipe: Connection, count: int) -> None:
    """Returns when so many POSTs have come."""
    deadline = time.monotonic() + DRAIN_S_MAX
    while True:
        pipe.send("count")
        if (came := pipe.recv()) >= count:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{came} of {count} events were delivered within {DRAIN_S_MAX} s")
        time.sleep(0.02)


def arrivals(pipe: Connection) -> list[tuple[int, float]]:
    """(event, monotonic seconds) of every POST since the last question."""
    pipe.send("all")
    found: list[tuple[int, float]] = pipe.recv()
    return found


def throughput(server: Server, pipe: Connection, triggers: int, connections: int, seconds: float) -> dict[str, Any]:
    """Closed loop."""
    events = [request(number, triggers) for number in range(DIFFERENT)]
    started = time.monotonic()
    times_s, took_s, sent = uvloop.run(drive(server.port, events, connections, seconds))
    arrived(pipe, sent)
    last = max(at for _, at in arrivals(pipe))
    return {
        "connections": connections,
        "stored_per_s": round(len(times_s) / took_s),
        "delivered_per_s": round(sent / (last - started)),
        "behind_s": round(max(0.0, last - started - took_s), 2),
        "sent": sent,
    }


async def paced(port: int, triggers: int, rate: float, seconds: float) -> dict[int, float]:
    """Open loop; when each event was due, by its id."""
    due: dict[int, float] = {}
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
    started = time.monotonic()
    for number in range(int(rate * seconds)):
        at = started + number / rate
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        reader, writer = connections[number % len(connections)]
        due[LATENCY_IDS_FROM + number] = at
        writer.write(request(LATENCY_IDS_FROM + number, triggers))
        if number % len(connections) == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0.5)
    for reader, writer in connections:
        answered = await reader.read(1 << 20)
        assert answered.startswith(b"HTTP/1.1 202"), answered[:100]
        writer.close()
    return due


def latency(server: Server, pipe: Connection, triggers: int, rate: float, seconds: float) -> dict[str, Any]:
    """From when an event was due to its arrival, in milliseconds."""
    uvloop.run(paced(server.port, triggers, rate, 2.0))  # warm
    arrived(pipe, int(rate * 2.0))
    arrivals(pipe)
    due = uvloop.run(paced(server.port, triggers, rate, seconds))
    arrived(pipe, len(due))
    times_ms = sorted((at - due[number]) * 1e3 for number, at in arrivals(pipe))
    p50, p99 = (round(times_ms[int(len(times_ms) * q)], 2) for q in (0.5, 0.99))
    return {"rate": rate, "deliver_p50_ms": p50, "deliver_p99_ms": p99, "deliver_max_ms": round(times_ms[-1], 1)}


def main() -> None:
    """Parses the flags, runs, prints one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=100)
    parser.add_argument("--connections", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rate", type=float, default=50.0, help="events a second where latency is measured")
    arguments = parser.parse_args()
    print(json.dumps({"load": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}), flush=True)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as scratch, subscriber() as (url, pipe):
        folder = Path(scratch)
        with Server(folder / "data", log=folder / "server.log") as server:
            load(server, arguments.triggers, url)
            named = {"system": "headgate", "triggers": arguments.triggers}
            throughput(server, pipe, arguments.triggers, 16, 2.0)  # the JVM is warm after it
            for connections in arguments.connections:
                figures = throughput(server, pipe, arguments.triggers, connections, arguments.seconds)
                print(json.dumps(named | figures), flush=True)
            figures = latency(server, pipe, arguments.triggers, arguments.rate, arguments.seconds)
            print(json.dumps(named | figures), flush=True)


if __name__ == "__main__":
    main()
