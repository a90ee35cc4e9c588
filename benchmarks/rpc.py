"""How fast is publishing over gRPC beside HTTP, and what does an idle gRPC server cost HTTP? Events a second on disk.

One server process answers both with the real ingress on a real log. HTTP: batches of 100 in JSON, one request
at a time on each of 16 keep-alive connections. gRPC: the same events, 100 a request, on 4 streams with as many requests
under way as a stream may have; without a producer's name, and with one (each event is numbered and looked up).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvicorn
import uvloop
from grpc import aio

from benchmarks.ingress import DIFFERENT, PATH, bare, drive, event, requests
from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import event_commit
from headgate.ingress.http_connection import http_config
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.producers import Producers
from headgate.ingress.publish_http import Ingress
from headgate.ingress.publish_rpc import PublishRpc
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.server.rpc import serving
from headgate.testing.server import free_port
from headgate_api.limits import GC_YOUNG_OBJECTS, PUBLISH_REQUESTS_MAX
from headgate_api.rpc.events import to_message
from headgate_api.rpc.headgate_pb2 import PublishRequest, PublishResponse

BATCH = 100
CONNECTIONS = 16
STREAMS = 4
PARTITIONS = 2
CACHED_PAGES_S = 0.5


# --- the server process --------------------------------------------------------------------------


async def serve(directory: Path, grpc: str) -> None:
    """Serves HTTP on a free port, whose number is printed, and gRPC unless it is `off`, until standard input ends."""
    writers = [
        PartitionWriter(Partition(directory / str(number), "stop"), EVENT_SCHEMA) for number in range(PARTITIONS)
    ]
    commits = [event_commit(writer) for writer in writers]
    intake = Intake(Partitions(commits), {PATH[1:]: ServedBroker(f"{PATH[1:]}/1", DEFAULT_RULE)}.get)
    server = uvicorn.Server(http_config(Ingress(intake, bare), "127.0.0.1", 0))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)

    async def until_told() -> None:
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    started_s = time.process_time()
    if grpc == "off":
        await until_told()
    else:
        async with serving([PublishRpc(intake, Producers(LogDirectory(directory, "stop"))).service()], grpc):
            await until_told()
    cpu_s = time.process_time() - started_s
    server.should_exit = True
    await running
    for commit in commits:
        await commit.close()
    print(json.dumps({"stored": sum(writer.next_offset for writer in writers), "cpu_s": cpu_s}), flush=True)
    for writer in writers:
        writer.close()


# --- the client ----------------------------------------------------------------------------------


def bodies() -> list[bytes]:
    """The events of requests, encoded; a sequence before them makes them whole."""
    found = []
    for first in range(0, DIFFERENT, BATCH):
        events = [to_message(event(number)) for number in range(first, first + BATCH)]
        found.append(PublishRequest(events=events).SerializeToString())
    return found


class Publisher:
    """One stream."""

    def __init__(self, channel: aio.Channel, producer: str, load: list[bytes]) -> None:
        self._call = channel.stream_stream("/headgate.v1.Publisher/Publish")()
        self._producer = producer
        self._load = load
        self.acknowledged = 0
        self.stopping = False

    async def run(self) -> None:
        """Publishes until it is told to stop, and takes the last acknowledgement."""
        opening = PublishRequest(open=PublishRequest.Open(broker=PATH[1:], producer=self._producer))
        await self._call.write(opening.SerializeToString())
        await self._call.read()
        writing = asyncio.create_task(self._write())
        while isinstance(data := await self._call.read(), bytes):
            if not PublishResponse.FromString(data).HasField("acknowledged"):
                raise RuntimeError(f"refused: {PublishResponse.FromString(data)}")
            self.acknowledged += 1
        await writing

    async def _write(self) -> None:
        number = 0
        while not self.stopping:
            while number - self.acknowledged >= 2 * PUBLISH_REQUESTS_MAX:
                await asyncio.sleep(0.001)
            head = PublishRequest(sequence=number * BATCH).SerializeToString()
            await self._call.write(head + self._load[number % len(self._load)])
            number += 1
        await self._call.done_writing()


async def publish(address: str, seconds: float, *, named: bool) -> tuple[float, int]:
    """Requests a second, and how many were acknowledged at all."""
    load = bodies()
    channels = [aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(STREAMS)]
    made = [Publisher(channel, f"p{number}" if named else "", load) for number, channel in enumerate(channels)]
    running = [asyncio.create_task(one.run()) for one in made]
    await asyncio.sleep(CACHED_PAGES_S)
    before, started_s = sum(one.acknowledged for one in made), time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (sum(one.acknowledged for one in made) - before) / (time.perf_counter() - started_s)
    for one in made:
        one.stopping = True
    await asyncio.gather(*running)
    for channel in channels:
        await channel.close()
    return rate, sum(one.acknowledged for one in made)


def measure(way: str, arguments: argparse.Namespace) -> str:
    """Starts a server, drives it, and checks that everything that was answered is in the log, once."""
    address = "off" if way == "http, no gRPC server" else f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        command = [sys.executable, "-m", "benchmarks.rpc", "--serve", address, "--directory", directory]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            port = int(server.stdout.readline())
            try:
                if way.startswith("http"):
                    load = requests(BATCH)
                    times_s, took_s, answered = uvloop.run(drive(port, load, CONNECTIONS, arguments.seconds))
                    rate = len(times_s) / took_s
                else:
                    rate, answered = uvloop.run(publish(address, arguments.seconds, named="named" in way))
            finally:
                server.stdin.close()
            report = json.loads(server.stdout.readline())
    if report["stored"] != answered * BATCH:
        raise RuntimeError(f"{answered * BATCH} events answered, {report['stored']} stored")
    return f"{way:24} {rate * BATCH:>12,.0f} {report['cpu_s'] / answered / BATCH * 1e6:>16.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each of the four measurements")
    parser.add_argument("--directory", type=Path, help="where the log is made and removed; a real disk, not /dev/shm")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(arguments.directory, arguments.serve))
        return
    print(f"{'way':24} {'events/s':>12} {'cpu us an event':>16}")
    for way in ("http, no gRPC server", "http, gRPC server idle", "gRPC", "gRPC, named producers"):
        print(measure(way, arguments), flush=True)


if __name__ == "__main__":
    main()
