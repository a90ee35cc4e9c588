"""What do subscribers that hang cost those that do not? 200 triggers at 500 events/s, one in ten hanging, and memory.

    python -m benchmarks.load                   two runs of 60 s: without subscribers that hang, then with them

Each trigger wants 1 % of the events (1,000 deliveries/s in all). A hanging subscriber takes the request and never
answers. Latency is from when an event was due to its arrival at a subscriber that answers. Memory is the resident set
of each process of the server, after the first ten seconds and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httptools
import uvloop

from headgate.testing.server import Server

CLASSES = 100
"""Values of the field that the filters compare: each trigger wants one of them, 1 % of the events."""
CONNECTIONS = 16
MEMORY_FROM_S = 10.0


class Sink(asyncio.Protocol):
    """Subscribers that answer, and on /hang one that does not."""

    arrivals: list[tuple[int, float]] = []  # noqa: RUF012

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.id, self.hangs = 0, False

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.hangs = url.startswith(b"/hang")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"ce-id":
            self.id = int(value)

    def on_message_complete(self) -> None:
        if not self.hangs:
            self.arrivals.append((self.id, time.monotonic()))
            self.transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")


def serve(pipe: Connection) -> None:
    """The subscribers' process: says its port, then answers each question with all arrivals since the last."""

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(answer)

    def answer() -> None:
        while pipe.recv() is not None:
            taken, Sink.arrivals = Sink.arrivals, []
            pipe.send(taken)

    with contextlib.suppress(EOFError):
        uvloop.run(main())


@contextlib.contextmanager
def subscribers() -> Iterator[tuple[str, Connection]]:
    """Base URL and the way to ask."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{ours.recv()}", ours
    ours.send(None)
    process.join(5)
    if process.is_alive():
        process.kill()


def request(number: int) -> bytes:
    """One event in binary mode."""
    body = json.dumps({"class": number % CLASSES, "total": number % 977, "region": "eu-west-1"}).encode()
    lines = [
        "POST /default/default HTTP/1.1",
        "host: 127.0.0.1",
        f"content-length: {len(body)}",
        "content-type: application/json",
        "ce-specversion: 1.0",
        f"ce-id: {number}",
        "ce-source: /load",
        "ce-type: com.example.load",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def publish(port: int, rate: float, seconds: float) -> dict[int, float]:
    """Open loop; when each event was due."""
    due: dict[int, float] = {}
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    readers = [asyncio.create_task(reader.read(-1)) for reader, _ in connections]
    started = time.monotonic()
    for number in range(int(rate * seconds)):
        due[number] = at = started + number / rate
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        connections[number % CONNECTIONS][1].write(request(number))
    await asyncio.sleep(2.0)
    for _, writer in connections:
        writer.write_eof()
    answers = b"".join(await asyncio.gather(*readers))
    accepted = answers.count(b"HTTP/1.1 202")
    if accepted != len(due):
        raise RuntimeError(f"{accepted} of {len(due)} events were accepted")
    return due


def processes(server: Server) -> dict[str, int]:
    """Resident set of each process of the server, in MiB, by what it is."""
    found: dict[str, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            group = int(status.with_name("stat").read_text().rpartition(")")[2].split()[2])
            if group == server.pid:
                command = status.with_name("cmdline").read_bytes().split(b"\0")
                name = "jvm" if b"java" in command[0] else (command[-2] or command[0]).decode()[-24:]
                found[f"{name}/{status.parent.name}"] = int(fields["VmRSS"].split()[0]) >> 10
    return found


def run(arguments: argparse.Namespace, *, hanging: bool) -> dict[str, Any]:
    """One run on a new server."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as scratch, subscribers() as (url, pipe):
        folder = Path(scratch)
        with Server(folder / "data", log=folder / "server.log") as server:
            for number in range(arguments.triggers):
                path = "hang" if hanging and number % 10 == 0 else "well"
                spec = {
                    "broker": "default",
                    "filter": {"expression": f'ce.type == "com.example.load" && data.class == {number % CLASSES}'},
                    "subscriber": {"uri": f"{url}/{path}/{number}"},
                }
                server.create("triggers", "default", f"t{number}", spec)
            for number in range(arguments.triggers):
                server.wait_trigger_ready("default", f"t{number}", seconds=120)
            uvloop.run(publish(server.port, arguments.rate, MEMORY_FROM_S))  # the JVM is warm after it
            pipe.send("all")
            pipe.recv()
            before = processes(server)
            due = uvloop.run(publish(server.port, arguments.rate, arguments.seconds))
            after = processes(server)
            pipe.send("all")
            times_ms = sorted((at - due[number]) * 1e3 for number, at in pipe.recv() if number in due)
    healthy = sum(1 for number in range(arguments.triggers) if not (hanging and number % 10 == 0))
    p50, p99 = (round(times_ms[int(len(times_ms) * q)], 2) for q in (0.5, 0.99))
    return {
        "hanging": arguments.triggers - healthy,
        "deliveries": len(times_ms),
        "due": round(healthy * len(due) / CLASSES),
        "p50_ms": p50,
        "p99_ms": p99,
        "max_ms": round(times_ms[-1], 1),
        "mib_before_after": {name: [before[name], after.get(name, 0)] for name in sorted(before)},
    }


def main() -> None:
    """Parses the flags, runs, prints one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=200)
    parser.add_argument("--rate", type=float, default=500.0, help="events a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    alone = run(arguments, hanging=False)
    print(json.dumps(alone), flush=True)
    beside = run(arguments, hanging=True)
    print(json.dumps(beside | {"p99_ratio": round(beside["p99_ms"] / alone["p99_ms"], 2)}), flush=True)


if __name__ == "__main__":
    main()
