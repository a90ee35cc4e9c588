"""How long from an append to its match? Log, Spark's real-time mode and match link, without ingress and dispatcher.

    python -m benchmarks.match_latency [--filters 10000] [--rates 500,2000] [--seconds 10]

One event a chunk: clock, Arrow encode, write, fdatasync (another process) -> data source -> match -> socket -> clock
(this process). Every filter wants one type, every event has one of these types: one row an event. Prints a row a rate,
with the share of a core that the JVM takes; rate 0 is an idle log.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import structlog

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.compiler import compile_filter
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.match.driver_link import LinkAddress
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session, task_slots
from headgate.match.spark_runner import SparkRunner
from headgate.objects.kinds.routing import DeliveryRules, RoutingTable, Target
from headgate.outbox.link_format import FRAME_PASSED, FRAME_ROW, LinkEndpoint
from headgate_api.event.model import DataKind, Event

BROKER = "default/main/6c5b2f7e-3d0c-4a55-9d8e-2f1a7c9b0e4d"
HELLO_BYTES = 84
FRAME = struct.Struct("<BBiq")
DATA = b'{"user":{"tier":"gold","id":4711},"amount":12.5,"items":["a","b","c"]}'
DELIVERY = DeliveryRules(0, "linear", 1.0, 1.0, False)


def produce(log: Path, filters: int, orders: Connection) -> None:
    """Another process: append at a rate when asked; answer with the first offset and the clock before each append."""
    chosen = random.Random(1)
    with PartitionWriter(Partition(log / "0", "stop"), EVENT_SCHEMA) as writer:
        orders.send(writer.next_offset)
        while order := orders.recv():
            rate, count = order
            first, clocks = writer.next_offset, array("q")
            due = time.perf_counter()
            for number in range(count):
                due += 1 / rate
                while (left := due - time.perf_counter()) > 0:
                    time.sleep(left)
                clocks.append(time.perf_counter_ns())
                kind = f"com.example.type-{chosen.randrange(filters)}"
                event = Event("1.0", str(number), "/bench", kind, data_kind=DataKind.JSON, data=DATA)
                writer.append(Encoded(to_batch([StoredEvent(BROKER, event)]), [kind]))
            orders.send((first, clocks))


class Sink:
    """The dispatcher's end of one connection: when did each event's row arrive?"""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = LinkAddress((LinkEndpoint("127.0.0.1", self._server.getsockname()[1]),), os.urandom(32))
        self.arrived: dict[int, int] = {}
        self.passed = 0
        self.generation = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        sock, _ = self._server.accept()
        sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
        sock.sendall(b"\x06")
        rest = b""
        while data := sock.recv(1 << 16):
            now = time.perf_counter_ns()
            rest += data
            whole = len(rest) - len(rest) % FRAME.size
            for kind, _, _, offset in FRAME.iter_unpack(rest[:whole]):
                if kind == FRAME_ROW:
                    self.arrived[offset] = now
                elif kind == FRAME_PASSED:
                    self.passed = offset
                else:
                    self.generation = offset
            rest = rest[whole:]

    def wait_for(self, offset: int) -> None:
        """Return when the event's row is there."""
        while offset not in self.arrived:
            time.sleep(0.01)

    def wait_in_force(self, generation: int) -> None:
        """Return when the task has gone on to a generation: an event before may be matched by the one before."""
        while self.generation < generation:
            time.sleep(0.001)


def routing(filters: int) -> RoutingTable:
    targets = tuple(
        Target(
            number,
            f"default/t{number}",
            BROKER,
            compile_filter({"attributes": {"type": f"com.example.type-{number}"}}),
            "http://localhost/",
            DELIVERY,
        )
        for number in range(filters)
    )
    return RoutingTable.of(1, 1, {}, targets)


def quantiles(latencies_ns: Sequence[int]) -> str:
    ordered = sorted(latencies_ns)
    at = (0.5, 0.9, 0.99, 0.999)
    values = [ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in at] + [ordered[-1]]
    return " ".join(f"{value / 1e6:8.2f}" for value in values)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filters", type=int, default=10_000)
    parser.add_argument("--rates", default="500,2000")
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))

    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        orders, theirs = multiprocessing.get_context("spawn").Pipe()
        producer = multiprocessing.get_context("spawn").Process(target=produce, args=(log, args.filters, theirs))
        producer.start()
        orders.recv()
        spark = start_session(jar=connector_jar(), threads=task_slots(1), scratch=Path(scratch) / "spark")
        sink = Sink()
        runner = SparkRunner(spark, LogDirectory(log, "stop"), 1, Path(scratch) / "spark")
        run = runner.start(routing(args.filters), 1, {0: 0}, sink.address)

        def measure(rate: int, seconds: float) -> list[int]:
            orders.send((rate, int(rate * seconds)))
            first, clocks = orders.recv()
            sink.wait_for(first + len(clocks) - 1)
            return [sink.arrived[first + index] - clock for index, clock in enumerate(clocks)]

        measure(1_000, 5)  # the JVM compiles what is hot
        gateway = spark.sparkContext._gateway
        jvm = gateway.proc.pid if gateway is not None else 0
        print(f"append -> match, {args.filters} filters, one event a chunk, fdatasync each; ms")
        print("events/s      p50      p90      p99    p99.9      max   JVM %")
        for rate in map(int, args.rates.split(",")):
            before = cpu_s(jvm)
            shown = quantiles(measure(rate, args.seconds))
            print(f"{rate:8d} {shown} {100 * (cpu_s(jvm) - before) / args.seconds:7.1f}")
        before = cpu_s(jvm)
        time.sleep(args.seconds)
        print(f"{0:8d} {' ' * 44} {100 * (cpu_s(jvm) - before) / args.seconds:7.1f}")
        began = time.perf_counter()
        run.stop()
        print(f"stopping the run: {1000 * (time.perf_counter() - began):.0f} ms")
        orders.send(None)
        producer.join()
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
