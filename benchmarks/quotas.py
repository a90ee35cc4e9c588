"""What does a tenant that sends ten times its quota cost another one? p99 of the other, beside four kinds of it.

    python -m benchmarks.quotas                 rounds of all four in one run, in turn, at one server

Two namespaces with a broker each. B sends at a steady rate and has a trigger with a subscriber: measured are its POSTs,
from when one was due to its answer, and its deliveries, from when an event was due to its arrival. A has a publish
quota, and is in turn

    alone      not there
    own rate   sends what its quota allows
    ten times  sends ten times as much, one event a request, whatever it is answered
    elsewhere  sends ten times as much to another process, which answers and does nothing: what its load costs by the
               processor alone, which both share

`--no-quota` shows what A does without a quota.
The goal: B's p99 beside ten times is at most 1.3 times that beside A's own rate, as the median of the rounds. Beside
it stands what the machine makes of the same load where no server has anything to do with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvicorn
from pyreqwest.client import Client, ClientBuilder
from rich.table import Table

from benchmarks.latency import Receiver
from benchmarks.tables import print_whole
from headgate.objects.kinds.quotas import PUBLISH_EVENTS
from headgate.testing.server import Server, free_port

TIMES = 10
GOAL = 1.3
KINDS = ("alone", "own rate", "ten times", "elsewhere")
FACTORS = (("ten times", "own rate"), ("ten times", "alone"), ("elsewhere", "alone"))
CONNECTIONS = 8
WARM_S = 2.0
DATA = json.dumps({"order": "o-1", "amount": 12.5, "items": [{"sku": "x-100", "n": 2}] * 5}).encode()


class Noise(asyncio.Protocol):
    """One connection of A: sends when it is told, and counts what is answered."""

    def __init__(self, answers: Counter[str]) -> None:
        self._answers = answers

    def data_received(self, data: bytes) -> None:
        """Counts answers; a status that two pieces share is not counted."""
        for status in ("202", "429"):
            self._answers[status] += data.count(f"HTTP/1.1 {status}".encode())


class Bare(asyncio.Protocol):
    """Answers every request with 429, and does nothing else."""

    ANSWER = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A is there."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Counts heads; a head that two pieces share is not answered."""
        self._transport.write(self.ANSWER * data.count(b"\r\n\r\n"))  # type: ignore[attr-defined]


async def serve_bare(port: int) -> None:
    """Answers until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Bare, "127.0.0.1", port)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


async def make_noise(port: int, rate_per_s: int) -> None:
    """Sends until standard input ends; prints what was answered."""
    head = f"POST /tenant-a/main HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(DATA)}\r\n"
    head += "ce-specversion: 1.0\r\nce-id: 1\r\nce-source: /a\r\nce-type: noise\r\ncontent-type: application/json"
    request = head.encode() + b"\r\n\r\n" + DATA
    loop, answers = asyncio.get_running_loop(), Counter[str]()
    made = [(await loop.create_connection(lambda: Noise(answers), "127.0.0.1", port))[0] for _ in range(CONNECTIONS)]
    ended = loop.run_in_executor(None, sys.stdin.read)
    started, number = time.monotonic(), 0
    while not ended.done():
        await asyncio.sleep(max(0.0, started + number / rate_per_s - time.monotonic()))
        made[number % CONNECTIONS].write(request)
        number += 1
    print(json.dumps({"sent": number, **answers}), flush=True)


async def send_one(client: Client, url: str, number: int, due_s: float, times_ms: list[float]) -> None:
    """One POST of B, which was due at a time."""
    request = client.post(url).body_bytes(DATA)
    due_us = time.time_ns() // 1000 - int((time.monotonic() - due_s) * 1e6)
    for name, value in (
        *(("ce-specversion", "1.0"), ("ce-id", f"e{number}"), ("ce-source", "/b"), ("ce-type", "order")),
        *(("content-type", "application/json"), ("ce-sentus", str(due_us))),
    ):
        request = request.header(name, value)
    answer = await request.build().send()
    if answer.status != 202:
        raise SystemExit(f"error: POST of B answered {answer.status}")
    times_ms.append((time.monotonic() - due_s) * 1e3)


async def one_run(server: Server, receiver: Receiver, rate_per_s: int, seconds: float) -> dict[str, float]:
    """B's figures over some seconds."""
    url, times_ms = f"{server.url}/tenant-b/main", list[float]()
    async with ClientBuilder().build() as client:
        for length_s in (WARM_S, seconds):
            times_ms.clear()
            receiver.latencies_ms.clear()
            started, count = time.monotonic(), int(rate_per_s * length_s)
            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    due_s = started + number / rate_per_s
                    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                    group.create_task(send_one(client, url, number, due_s, times_ms))
            ends = time.monotonic() + 60
            while len(receiver.latencies_ms) < count and time.monotonic() < ends:
                await asyncio.sleep(0.01)
    found = {}
    for name, values in (("post", times_ms), ("delivery", receiver.latencies_ms)):
        quantiles = statistics.quantiles(values, n=100, method="inclusive")
        found |= {f"{name}_p50_ms": quantiles[49], f"{name}_p99_ms": quantiles[98]}
    return found


async def beside(
    server: Server, receiver: Receiver, arguments: argparse.Namespace, port: int, times: int
) -> tuple[dict[str, float], dict[str, int]]:
    """B's figures while A sends so many times its quota to a port, and what A was answered."""
    command = [sys.executable, "-m", "benchmarks.quotas", "--noise", str(port)]
    command += ["--quota", str(arguments.quota * times)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as noise:
        assert noise.stdin is not None
        assert noise.stdout is not None
        found = await one_run(server, receiver, arguments.rate, arguments.seconds)
        noise.stdin.close()
        return found, json.loads(await asyncio.to_thread(noise.stdout.readline))


async def measure(server: Server, bare: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every round: B beside all kinds of A, in turn which of them is first."""
    receiver = Receiver()
    config = uvicorn.Config(
        receiver.app, port=receiver.port, interface="asgi3", log_level="error", lifespan="off", access_log=False
    )
    subscriber = uvicorn.Server(config)
    task = asyncio.create_task(subscriber.serve())
    for namespace in ("tenant-a", "tenant-b"):
        await asyncio.to_thread(server.create, "brokers", namespace, "main", {})
    if not arguments.no_quota:
        hard = {"hard": {PUBLISH_EVENTS: arguments.quota}}
        await asyncio.to_thread(server.create, "resourcequotas", "tenant-a", "quota", hard)
    spec = {"broker": "main", "subscriber": {"uri": f"http://127.0.0.1:{receiver.port}/"}}
    await asyncio.to_thread(server.create, "triggers", "tenant-b", "all", spec)
    await asyncio.to_thread(server.wait_trigger_ready, "tenant-b", "all")
    await one_run(server, receiver, arguments.rate, WARM_S)
    rounds = []
    for number in range(arguments.rounds):
        found: dict[str, Any] = {}
        for turn in range(len(KINDS)):
            kind = KINDS[(turn + number) % len(KINDS)]
            if kind == "alone":
                found[kind] = await one_run(server, receiver, arguments.rate, arguments.seconds)
                continue
            port, times = (bare if kind == "elsewhere" else server.port), (1 if kind == "own rate" else TIMES)
            found[kind], answers = await beside(server, receiver, arguments, port, times)
            if kind == "ten times":
                found["noise"] = answers
        rounds.append(found)
        if arguments.json:
            print(json.dumps(found), flush=True)
    subscriber.should_exit = True
    await task
    return rounds


def show(rounds: list[dict[str, Any]]) -> None:
    """A row a figure: medians of the rounds, and of their factors."""
    sent, stored = (sum(one["noise"].get(name, 0) for one in rounds) for name in ("sent", "202"))
    title = f"B beside A: medians of {len(rounds)} rounds; {stored:,} of {sent:,} events of A at ten times were stored"
    table = Table(title=title)
    for name in ("ms", *KINDS, *(f"{loud} / {quiet}" for loud, quiet in FACTORS)):
        table.add_column(name, justify="right")
    for name in rounds[0]["alone"]:
        row = [f"{statistics.median(one[kind][name] for one in rounds):.2f}" for kind in KINDS]
        for loud, quiet in FACTORS:
            factors = [one[loud][name] / one[quiet][name] for one in rounds]
            row.append(f"{statistics.median(factors):.2f} ({min(factors):.2f} to {max(factors):.2f})")
        table.add_row(name.removesuffix("_ms"), *row)
    print_whole(table)


def main() -> None:
    """Parses the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10, help="of each run (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=200, help="events/s of B (default: %(default)s)")
    parser.add_argument("--quota", type=int, default=100, help="events/s that A may send (default: %(default)s)")
    parser.add_argument("--no-quota", action="store_true", help="A has none, and sends as much")
    parser.add_argument("--json", action="store_true", help="print a JSON line a round")
    parser.add_argument("--noise", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--bare", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.noise:
        asyncio.run(make_noise(arguments.noise, arguments.quota))
        return
    if arguments.bare:
        asyncio.run(serve_bare(arguments.bare))
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        server = stack.enter_context(Server(folder / "data", log=folder / "server.log"))
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.quotas", "--bare", str(port)]
        bare = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert bare.stdout is not None
        assert bare.stdout.readline() == "ready\n"
        rounds = asyncio.run(measure(server, port, arguments))
        assert bare.stdin is not None
        bare.stdin.close()
    if not arguments.json:
        show(rounds)


if __name__ == "__main__":
    main()
