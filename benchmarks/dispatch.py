"""How fast does a match become a POST? Deliveries/s from the link to a subscriber process, and the latency of one.

Two figures stand side by side, from the same run on the same machine: the HTTP client alone (the same requests, nothing
stored) and the dispatcher (link, outbox with fdatasync, scheduler, cursors). Run: `python -m benchmarks.dispatch`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import multiprocessing
import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import httptools
import structlog
import uvloop
from tests.outbox.frames import encode_passed, encode_row

from headgate.delivery.events import SharedEvent
from headgate.delivery.post import HttpTransport
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.plan import CompiledFilter
from headgate.log.directory import Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.kinds.routing import DeliveryRules, RoutingTable, Target, TargetReport
from headgate.outbox.link_format import Hello, encode_hello
from headgate.server import child
from headgate.server.processes.dispatcher import DispatcherOptions, opened
from headgate_api.event.model import DataKind, Event
from headgate_api.objects.kinds import Broker

BROKER = "default/default/6c5b2f7e-3d0c-4a55-9d8e-2f1a7c9b0e4d"
TOKEN = os.urandom(32)
DATA = b'{"order":{"id":4711,"total":99.5,"currency":"EUR"},"items":[' + b'{"sku":"abc"},' * 12 + b"{}]}"
TRANSFORM = '{"type": "order.v2", "data": {"id": data.order.id, "total": data.order.total}}'
PARALLEL = 64


class Routes:
    def __init__(self, table: RoutingTable) -> None:
        self.table = table

    def data_version(self) -> int:
        return 1

    def brokers(self) -> tuple[Broker, ...]:
        return ()

    def snapshot(self) -> RoutingTable:
        return self.table

    def report(self, reports: list[TargetReport]) -> None: ...

    def forget_trouble(self, owns) -> None: ...


class Sink(asyncio.Protocol):
    """A subscriber that does as little as HTTP allows; notes when each POST came."""

    arrivals: list[tuple[int, float]] = []  # noqa: RUF012

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.id = 0

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"ce-id":
            self.id = int(value)

    def on_message_complete(self) -> None:
        self.arrivals.append((self.id, time.monotonic()))
        self.transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")


def serve(pipe: Connection) -> None:
    """The subscriber process: says its port, then answers each question with all arrivals since the last."""
    gc.disable()  # its list of arrivals grows, and a look at all of it would count as the dispatcher's time

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(answer, pipe)

    with contextlib.suppress(EOFError):
        uvloop.run(main())


def answer(pipe: Connection) -> None:
    """Answers questions until there is no more."""
    while (question := pipe.recv()) is not None:
        if question == "count":
            pipe.send(len(Sink.arrivals))
        else:
            # What comes once the answer is there belongs to the next question.
            taken, Sink.arrivals = Sink.arrivals, []
            pipe.send(taken)


@contextlib.contextmanager
def subscriber() -> Iterator[tuple[str, Connection]]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{ours.recv()}/hook", ours
    ours.send(None)
    process.join(5)
    if process.is_alive():
        process.kill()


def event(number: int) -> Event:
    return Event(
        "1.0",
        str(number),
        "/benchmarks/dispatch",
        "com.example.order.placed",
        datacontenttype="application/json",
        data_kind=DataKind.JSON,
        data=DATA,
    )


async def client_alone(url: str, count: int) -> tuple[float, float]:
    """POSTs/s of the HTTP client with the same requests, PARALLEL at a time, and CPU seconds meanwhile."""
    async with HttpTransport() as transport:
        numbers = iter(range(count))

        async def worker() -> None:
            for number in numbers:
                headers, body = SharedEvent(BROKER, event(number), 0).wire
                assert (await transport.post(url, headers, body, 30.0)).status == 202

        started, used_s = time.monotonic(), cpu_s()
        await asyncio.gather(*(worker() for _ in range(PARALLEL)))
        return count / (time.monotonic() - started), cpu_s() - used_s


def routes(url: str, targets: int, transform: str) -> Routes:
    spec = DeliveryRules(0, "exponential", 0.2, 30.0, False)
    table = [
        Target(n, f"default/t{n}", BROKER, CompiledFilter("true", ()), url, spec, transform=transform)
        for n in range(1, targets + 1)
    ]
    return Routes(RoutingTable.of(1, 1, {}, table))


@contextlib.asynccontextmanager
async def dispatching(data: Path, url: str, targets: int, transform: str = ""):
    gc.collect()  # an earlier run's dispatcher is one large cycle: its end is no part of this run
    ready, stop = asyncio.Event(), asyncio.Event()

    def on_ready() -> None:
        child.spare_collector()  # as the process does
        ready.set()

    known = routes(url, targets, transform)
    options = DispatcherOptions(
        data=data, on_corrupt="stop", token=TOKEN, store=known, reports=known, on_ready=on_ready
    )

    async def work() -> None:
        async with opened(options, stop) as dispatcher:
            await dispatcher.run()

    task = asyncio.create_task(work())
    await asyncio.wait([task, asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task  # its error
    yield
    stop.set()
    await task


def link(data: Path, start: int) -> socket.socket:
    """A run's connection, blocking, as Spark's task has it."""
    address = json.loads((data / "run" / "match-link-0.json").read_text())
    connection = socket.create_connection((address["host"], address["port"]))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(encode_hello(Hello(1, 1, 0, 1, start), TOKEN))
    assert connection.recv(1) == b"\x06"
    return connection


def fill(data: Path, count: int) -> PartitionWriter:
    """A log with events, in chunks as a busy group commit makes them."""
    writer = PartitionWriter(Partition(data / "log" / "0", "stop"), EVENT_SCHEMA)
    for first in range(0, count, 50):
        events = [StoredEvent(BROKER, event(n)) for n in range(first, min(first + 50, count))]
        writer.append(Encoded(to_batch(events), ["t"] * len(events)))
    return writer


def cpu_s() -> float:
    """CPU seconds of this process, all threads and the kernel's work for them."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def throughput(
    data: Path, url: str, pipe: Connection, count: int, targets: int, transform: str = ""
) -> tuple[float, float]:
    """Deliveries/s of `count` rows over `targets` triggers, and CPU seconds meanwhile."""
    writer = fill(data, count)
    async with dispatching(data, url, targets, transform):
        connection = await asyncio.to_thread(link, data, 0)
        frames = b"".join(encode_row(3, 1 + n % targets, n) + encode_passed(n + 1) for n in range(count))
        started, used_s = time.monotonic(), cpu_s()
        sending = asyncio.create_task(asyncio.to_thread(connection.sendall, frames))
        while True:
            pipe.send("count")
            if await asyncio.to_thread(pipe.recv) >= count:
                break
            await asyncio.sleep(0.05)
        used_s = cpu_s() - used_s
        await sending
        connection.close()
    writer.close()
    pipe.send("all")
    arrivals = pipe.recv()
    assert {number for number, _ in arrivals} == set(range(count))
    return count / (max(at for _, at in arrivals) - started), used_s


def paced_sender(data: Path, count: int, rate: float, pipe: Connection) -> None:
    """Another process, as the matcher is: rows at a steady rate, each with the time at which it went."""
    gc.disable()
    connection = link(data, 0)
    sent = []
    start = time.monotonic() + 0.2
    for number in range(count):
        while (ahead := start + number / rate - time.monotonic()) > 0:
            time.sleep(ahead)
        sent.append(time.monotonic())
        connection.sendall(encode_row(3, 1 + number % 8, number) + encode_passed(number + 1))
    pipe.send(sent)
    pipe.recv()


async def latency(data: Path, url: str, pipe: Connection, rate: float, seconds: float) -> list[float]:
    """Seconds from a row on the link to its POST at the subscriber, sorted."""
    count = int(rate * seconds)
    writer = fill(data, count)
    async with dispatching(data, url, 8):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_sender, args=(data, count, rate, TOKEN, theirs))
        process.start()
        sent = await asyncio.to_thread(ours.recv)
        while True:
            pipe.send("count")
            if await asyncio.to_thread(pipe.recv) >= count:
                break
            await asyncio.sleep(0.05)
        ours.send(None)
        await asyncio.to_thread(process.join)
    writer.close()
    pipe.send("all")
    arrived = dict(pipe.recv())
    return sorted(arrived[number] - at for number, at in enumerate(sent))


def _sender(data: Path, count: int, rate: float, token: bytes, pipe: Connection) -> None:
    global TOKEN
    TOKEN = token
    paced_sender(data, count, rate, pipe)


def sync_ms(directory: Path) -> float:
    """What one write and fdatasync of 4 KiB costs here: the floor below every latency."""
    times = []
    with (directory / "probe").open("wb", buffering=0) as file:
        for _ in range(200):
            started = time.monotonic()
            file.write(bytes(4_096))
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - started)
    return sorted(times)[100] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as scratch, subscriber() as (url, pipe):
        base = Path(scratch)
        if not options.json:
            print(f"fdatasync of 4 KiB: p50 {sync_ms(base):.2f} ms; load {os.getloadavg()[0]:.1f}")
        child.spare_collector()
        for what, figures in measured(base, url, pipe, options):
            if options.json:
                print(json.dumps(figures), flush=True)
            else:
                print(f"{what:34s} " + "  ".join(f"{name} {value:,.6g}" for name, value in figures.items()), flush=True)


def measured(
    base: Path, url: str, pipe: Connection, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, float]]]:
    """What each part did, by its name for people."""
    alone, used_s = uvloop.run(client_alone(url, options.count))
    pipe.send("all")
    pipe.recv()
    yield "HTTP client alone", {"posts_per_s": round(alone), "cpu_us": round(used_s / options.count * 1e6, 1)}
    for targets, transform in ((1, ""), (8, ""), (100, ""), (8, TRANSFORM)):
        data = base / f"t{targets}{bool(transform)}"
        rate, used_s = uvloop.run(throughput(data, url, pipe, options.count, targets, transform))
        figures = {
            "transforming_triggers" if transform else "triggers": targets,
            "deliveries_per_s": round(rate),
            "cpu_us": round(used_s / options.count * 1e6, 1),
        }
        yield f"link to subscriber, {targets} triggers{' that transform' if transform else ''}", figures
    for pace in (200.0, 2_000.0, 5_000.0):
        times = uvloop.run(latency(base / f"l{pace}", url, pipe, pace, options.seconds))
        quantiles = {f"p{q}_ms": round(times[int(len(times) * q / 100)] * 1e3, 2) for q in (50, 90, 99)}
        yield "row to subscriber", {"rows_per_s": pace} | quantiles | {"max_ms": round(times[-1] * 1e3, 1)}


if __name__ == "__main__":
    main()
