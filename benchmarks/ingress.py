"""How fast does ingress take events? POSTs a second that are on disk when they are answered.

A server process runs uvicorn (uvloop, httptools) with the real ingress on a real log; this process drives it with
requests encoded beforehand over keep-alive connections, one request at a time on each. The same load on an ASGI
application that does nothing but answer shows what of the time is the HTTP server's and the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import uvicorn
import uvloop

from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import event_commit
from headgate.ingress.http_connection import http_config
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.log.directory import Partition
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate_api.event.http import encode_binary
from headgate_api.event.json_format import encode_batch
from headgate_api.event.json_text import is_plain
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import GC_YOUNG_OBJECTS, THREAD_SWITCH_S

PATH = "/bench/orders"
DIFFERENT = 1_000
"""Different requests that the connections take turns with."""


@dataclass(frozen=True)
class Result:
    """One row of the table; times in milliseconds.

    `cpu_us_per_request` is the server's alone, threads and kernel included: it says what a busy machine hides.
    """

    app: str
    mode: str
    requests_per_s: float
    events_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_us_per_request: float


def event(number: int) -> Event:
    """An order of an online shop: about 370 bytes in the JSON format."""
    data = {
        "order": f"o-{number}",
        "amount": 12.5 + number % 7,
        "currency": "EUR",
        "customer": {"id": f"c-{number % 97}", "tier": "gold" if number % 3 else "basic"},
        "items": [{"sku": "x-100", "n": 2}],
    }
    return Event(
        "1.0",
        f"a1b2c3d4-0000-4000-8000-{number:012d}",
        "/shop/orders/eu-west",
        f"com.acme.order.{('created', 'paid', 'sent')[number % 3]}",
        f"order-{number}",
        "2026-03-04T05:06:07.123456Z",
        "application/json",
        None,
        {"tenant": f"t{number % 50}"},
        DataKind.JSON,
        json.dumps(data, separators=(",", ":")).encode(),
    )


def requests(batch: int) -> list[bytes]:
    """Whole HTTP/1.1 requests: single events in binary mode, or batches of `batch` events."""
    found = []
    if batch == 1:
        for number in range(DIFFERENT):
            headers, body = encode_binary(event(number))
            found.append(request(headers, body))
        return found
    numbers = itertools.count()
    for _ in range(max(1, DIFFERENT // batch)):
        body = encode_batch([event(next(numbers)) for _ in range(batch)])
        found.append(request([("content-type", "application/cloudevents-batch+json")], body))
    return found


def request(headers: list[tuple[str, str]], body: bytes) -> bytes:
    lines = [f"POST {PATH} HTTP/1.1", "host: 127.0.0.1", "user-agent: bench", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


# --- the server process --------------------------------------------------------------------------


async def bare(scope, receive, send):
    """Answers 202 to everything, having read the body and done nothing."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def serve(app_name: str, directory: Path, partitions: int) -> None:
    """Serves one application on a free port, whose number is printed, until standard input ends."""
    writers = [
        PartitionWriter(Partition(directory / str(number), "stop"), EVENT_SCHEMA) for number in range(partitions)
    ]
    commits = [event_commit(writer) for writer in writers]
    app = (
        bare
        if app_name == "bare"
        else Ingress(Intake(Partitions(commits), {PATH[1:]: ServedBroker(f"{PATH[1:]}/1", DEFAULT_RULE)}.get), bare)
    )
    server = uvicorn.Server(http_config(app, "127.0.0.1", 0))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)
    cpu_s = time.process_time()
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    cpu_s = time.process_time() - cpu_s
    server.should_exit = True
    await running
    for commit in commits:
        await commit.close()
    print(json.dumps({"stored": sum(writer.next_offset for writer in writers), "cpu_s": cpu_s}), flush=True)
    for writer in writers:
        writer.close()


# --- the client ----------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """Sends one request after the other until it is told to stop; counts and times the answers."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self._got = b""
        self._sent_s = 0.0
        self.times_s: list[float] = []
        self.stopping = False
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport) -> None:
        """Sends the first request."""
        self._transport = transport
        self._next()

    def _next(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(next(self._source))

    def data_received(self, data: bytes) -> None:
        """Counts an answer and sends the next request."""
        self._got += data
        if not self._got.endswith(b"\r\n\r\n"):
            return
        if not self._got.startswith(b"HTTP/1.1 202"):
            self.ended.set_exception(RuntimeError(f"refused: {self._got[:300]!r}"))
            self._transport.close()
            return
        self._got = b""
        self.times_s.append(time.perf_counter() - self._sent_s)
        if not self.stopping:
            self._next()
        else:
            self._transport.close()

    def connection_lost(self, error) -> None:
        """Ends this connection's part of the measurement."""
        if not self.ended.done():
            if self.stopping:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error or RuntimeError("the server closed the connection"))


async def drive(port: int, load: list[bytes], connections: int, seconds: float) -> tuple[list[float], float, int]:
    """Drives the server, first to warm it up for 0.3 s.

    Returns:
        Times in seconds of the requests answered after that, the seconds that they took together, and how many
        requests were answered at all.
    """
    source = itertools.cycle(load)
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(lambda: Connection(source), "127.0.0.1", port))[1] for _ in range(connections)
    ]
    await asyncio.sleep(0.3)
    warm = [len(connection.times_s) for connection in made]
    started_s = time.perf_counter()
    await asyncio.sleep(seconds)
    times_s = [t for connection, skip in zip(made, warm, strict=True) for t in connection.times_s[skip:]]
    took_s = time.perf_counter() - started_s
    for connection in made:
        connection.stopping = True
    await asyncio.gather(*[connection.ended for connection in made])
    return times_s, took_s, sum(len(connection.times_s) for connection in made)


@contextlib.contextmanager
def served(app: str, directory: str | Path, partitions: int = 1) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """An application in a process of its own, and its port; `communicate` ends it and gives its report."""
    command = [sys.executable, "-m", "benchmarks.ingress", "--serve", app, "--directory", str(directory)]
    command += ["--partitions", str(partitions)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server, int(server.stdout.readline())


def measure(app: str, batch: int, arguments: argparse.Namespace) -> Result:
    """Starts a server, drives it, and checks that everything that was answered is in the log."""
    load = requests(batch)
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as directory,
        served(app, directory, arguments.partitions) as (server, port),
    ):
        times_s, took_s, answered = uvloop.run(drive(port, load, arguments.connections, arguments.seconds))
        report = json.loads(server.communicate()[0])
    if app != "bare" and report["stored"] != answered * batch:
        raise RuntimeError(f"{answered * batch} events answered, {report['stored']} stored")
    times_s.sort()
    return Result(
        app,
        "single" if batch == 1 else f"batches of {batch}",
        len(times_s) / took_s,
        len(times_s) * batch / took_s,
        times_s[len(times_s) // 2] * 1e3,
        times_s[int(len(times_s) * 0.99)] * 1e3,
        times_s[-1] * 1e3,
        report["cpu_s"] / answered * 1e6,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each of the four measurements")
    parser.add_argument("--connections", type=int, default=128, help="keep-alive connections")
    parser.add_argument("--batch", type=int, default=100, help="events in a batch")
    parser.add_argument("--partitions", type=int, default=2, help="partitions of the log")
    parser.add_argument("--directory", type=Path, help="where the log is made and removed; a real disk, not /dev/shm")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    parser.add_argument("--serve", choices=["bare", "ingress"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        sys.setswitchinterval(THREAD_SWITCH_S)  # as the front has it
        uvloop.run(serve(arguments.serve, arguments.directory, arguments.partitions))
        return
    if not arguments.json:
        print(f"headgate-native: {'used' if is_plain(b'0') else 'not installed'}")
        columns = ["requests/s", "events/s", "p50 ms", "p99 ms", "max ms", "cpu us/req"]
        print(f"{'app':8} {'mode':16} " + " ".join(f"{column:>11}" for column in columns))
    for batch in (1, arguments.batch):
        for app in ("bare", "ingress"):
            result = measure(app, batch, arguments)
            if arguments.json:
                print(json.dumps(asdict(result)), flush=True)
                continue
            numbers = [f"{result.requests_per_s:,.0f}", f"{result.events_per_s:,.0f}", f"{result.p50_ms:.2f}"]
            numbers += [f"{result.p99_ms:.2f}", f"{result.max_ms:.1f}", f"{result.cpu_us_per_request:.1f}"]
            print(f"{result.app:8} {result.mode:16} " + " ".join(f"{number:>11}" for number in numbers), flush=True)


if __name__ == "__main__":
    main()
