"""Producers' wait while hostile bodies are sent to the API: the worst POST, beside that of an idle server.

    python -m benchmarks.bodies [--bodies 40] [--seconds 10] [--json]

One producer POSTs events, one after the other, on a connection of its own. Meanwhile clients send the API a body each,
all at the same time, and the next ones when all are answered: levels without an end, as many values as a body may have,
and the same in JSON. Baselines in the same run: the producer alone, and beside bodies of the same size that nobody
parses, which are refused for their type.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headgate.testing.server import Server
from headgate_api.limits import OBJECT_BYTES_MAX, OBJECT_NODES_MAX

EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
PAUSE_S = 0.002
ROUND_PAUSE_S = 0.2
BODIES = {
    "none": ("", b""),
    "256 KiB that nobody parses": ("text/plain", b"x" * OBJECT_BYTES_MAX),
    "YAML, 5,000 levels": ("application/yaml", b"[" * 5_000),
    "YAML, as many values as may be": ("application/yaml", b"- 1\n" * (OBJECT_NODES_MAX - 1)),
    "YAML, too many objects": ("application/yaml", (b"- {a: b, c: d}\n" * (OBJECT_BYTES_MAX // 15))),
    "JSON, as many lists as fit": ("application/json", b"[" + b"[]," * (OBJECT_BYTES_MAX // 3 - 2) + b"[]]"),
    "JSON, many numbers": ("application/json", b"[" + b"1," * (OBJECT_BYTES_MAX // 2 - 2) + b"1]"),
    "JSON, levels without an end": ("application/json", b"[" * OBJECT_BYTES_MAX),
}


@dataclass(frozen=True)
class Result:
    """How long POSTs of events took.

    Attributes:
        bodies: What was sent to the API meanwhile.
        answered: How many bodies were answered.
        posts: POSTs of events, all answered with 202.
        median_ms: Their median.
        worst_ms: Their slowest.
        ratio: The slowest beside that of the producer alone.
    """

    bodies: str
    answered: int
    posts: int
    median_ms: float
    worst_ms: float
    ratio: float


def post(port: int, seconds: float) -> list[float]:
    """How long each POST took, in milliseconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    took: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.perf_counter()
        connection.request("POST", "/default/default", b"", EVENT)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 202:
            raise SystemExit(f"wrong: a POST was answered with {answer.status}")
        took.append(1e3 * (time.perf_counter() - began))
        time.sleep(PAUSE_S)
    connection.close()
    return took


def send(port: int, count: int, media_type: str, body: bytes, stop: Event, answered: Queue[int]) -> None:
    """The process of the clients that send a body, each again and again."""
    path = "/apis/eventing.knative.dev/v1/namespaces/default/triggers"

    def one(_: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("POST", path, body, {"content-type": media_type})
        status = connection.getresponse().status
        connection.close()
        if status not in (400, 415, 422):
            raise SystemExit(f"wrong: the body was answered with {status}")
        return 1

    done = 0
    with ThreadPoolExecutor(count) as pool:
        while not stop.is_set():
            done += sum(pool.map(one, range(count)))
            stop.wait(ROUND_PAUSE_S)
    answered.put(done)


@contextlib.contextmanager
def sending(port: int, count: int, media_type: str, body: bytes, answered: list[int]) -> Iterator[None]:
    """Clients in a process of their own for as long as the block lasts; then how many bodies were answered."""
    context = multiprocessing.get_context("spawn")
    stop, queue = context.Event(), context.Queue()
    process = context.Process(target=send, args=(port, count, media_type, body, stop, queue))
    process.start()
    try:
        yield
    finally:
        stop.set()
        answered.append(queue.get())
        process.join()


def measure(port: int, bodies: int, seconds: float) -> list[Result]:
    results: list[Result] = []
    post(port, 1.0)  # warm
    for name, (media_type, body) in BODIES.items():
        answered = [0]
        with sending(port, bodies, media_type, body, answered) if body else contextlib.nullcontext():
            took = sorted(post(port, seconds))
        alone_ms = results[0].worst_ms if results else took[-1]
        median_ms, worst_ms = took[len(took) // 2], took[-1]
        ratio = round(worst_ms / alone_ms, 1)
        results.append(Result(name, answered[-1], len(took), round(median_ms, 1), round(worst_ms, 1), ratio))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bodies", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "data", log=Path(folder) / "log") as server:
        results = measure(server.port, options.bodies, options.seconds)
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
        return
    table = Table("bodies meanwhile", "answered", "POSTs", "median ms", "worst ms", "to alone")
    for one in results:
        numbers = (f"{one.median_ms:.1f}", f"{one.worst_ms:.1f}", f"{one.ratio:.1f}")
        table.add_row(one.bodies, f"{one.answered:,}", f"{one.posts:,}", *numbers)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
