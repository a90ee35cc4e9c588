"""A deployment on Kafka and a Spark cluster, live: one of each part is killed while events flow, and nothing is lost.

Run it with `make demo-cluster`. It starts three brokers of Kafka, a Spark master with two workers, and two servers with
every role, all on loopback. Exit status 0 when every trigger got exactly its events, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from rich.console import Console
from rich.table import Table

from examples.cluster.machines import Machines, running
from examples.demo import BROKER, NAMESPACE, Board, serving, set_up
from examples.workload import SUBSCRIPTIONS, samples
from headgate.testing import free_port

CATCH_UP_S_MAX: Final = 120.0
REST_S: Final = 3.0
"""Between two kills, so that each is seen alone."""


@dataclass(frozen=True)
class Kill:
    """A part that is killed, and what was seen then.

    Attributes:
        what: Which part.
        silence_s: The longest time without a delivery until everything accepted before and meanwhile had come.
        publish_s: The longest time that a producer waited for its 202, asking the servers in turn.
    """

    what: str
    silence_s: float
    publish_s: float


class Producer:
    """Publishes at a steady rate, to the servers in turn; asks the next one when one does not answer 202."""

    def __init__(self, machines: Machines, client: Client, board: Board, rate_per_s: float) -> None:
        self._urls = itertools.cycle([f"{one.url}/{NAMESPACE}/{BROKER}" for one in machines.servers])
        self._client = client
        self._board = board
        self._rate_per_s = rate_per_s
        self.slowest_s = 0.0
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Publishes until `stop`; returns when every event was accepted."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, sample in enumerate(samples(seed=7)):
                await asyncio.sleep(max(0.0, began + number / self._rate_per_s - time.monotonic()))
                if self._stopping.is_set():
                    return
                for one in SUBSCRIPTIONS:
                    self._board.expected[one.name] += one.wanted(sample)
                data = json.dumps(sample.data).encode()
                group.create_task(self._publish(f"demo-{number}", sample.type, data))

    def stop(self) -> None:
        """Publishes nothing more."""
        self._stopping.set()

    async def _publish(self, event_id: str, type_: str, data: bytes) -> None:
        began = time.monotonic()
        while not await self._accepted(event_id, type_, data):
            await asyncio.sleep(0.1)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self._board.accept()

    async def _accepted(self, event_id: str, type_: str, data: bytes) -> bool:
        request = self._client.post(next(self._urls)).body_bytes(data)
        attributes = {"specversion": "1.0", "id": event_id, "source": "/demo", "type": type_}
        for name, value in {**attributes, "sentus": str(time.time_ns() // 1_000)}.items():
            request = request.header(f"ce-{name}", value)
        try:
            return (await request.header("content-type", "application/json").build().send()).status == 202
        except PyreqwestError:
            return False


def missing(board: Board) -> int:
    """Deliveries that are still to come."""
    return sum(board.expected[one.name] - len(board.received[one.name]) for one in SUBSCRIPTIONS)


def delivered(board: Board) -> int:
    """Deliveries so far, repeats left out."""
    return sum(map(len, board.received.values()))


async def caught_up(board: Board) -> float:
    """Waits until everything that is due now has come; the longest time without a delivery meanwhile, in seconds."""
    due, deadline = {one.name: board.expected[one.name] for one in SUBSCRIPTIONS}, time.monotonic() + CATCH_UP_S_MAX
    seen, since, longest = delivered(board), time.monotonic(), 0.0
    settled_at = time.monotonic() + REST_S
    while True:
        await asyncio.sleep(0.05)
        now = time.monotonic()
        if delivered(board) != seen:
            seen, since = delivered(board), now
        longest = max(longest, now - since)
        has_come = all(len(board.received[name]) >= count for name, count in due.items())
        if (has_come and now >= settled_at) or now > deadline:
            return longest


def kills(machines: Machines) -> dict[str, Callable[[], object]]:
    """What is killed, one after the other."""
    first, second = machines.servers

    def control() -> None:
        machines.kill_part(machines.leader("control", "follows"), "control")

    def matcher() -> None:
        machines.kill_part(machines.leader("matcher", "another"), "matcher")

    return {
        "a front": lambda: machines.kill_part(first, "front-0"),
        "a dispatcher": lambda: machines.kill_part(second, "dispatcher-0"),
        "the leading control process": control,
        "the leading matcher": matcher,
        "a broker of Kafka": lambda: machines.kafka.kill(2),
        "a worker of Spark": lambda: machines.spark.kill_worker(1),
    }


async def run(folder: Path, rate_per_s: float, console: Console) -> int:
    """The whole demo; returns the exit status."""
    board, port = Board(), free_port()
    console.print(f"starting 3 brokers of Kafka, a Spark master with 2 workers, 2 servers; logs: {folder}")
    machines_of = running(folder)
    machines = await asyncio.to_thread(machines_of.__enter__)
    try:
        async with serving(board, port), ClientBuilder().build() as client:
            await asyncio.to_thread(set_up, machines.servers[0], port)
            console.print(f"{len(SUBSCRIPTIONS)} triggers are Ready; publishing {rate_per_s:g} events/s")
            producer = Producer(machines, client, board, rate_per_s)
            publishing = asyncio.create_task(producer.run())
            quiet_s = await caught_up(board)
            seen = [Kill("nothing", quiet_s, producer.slowest_s)]
            for what, kill in kills(machines).items():
                producer.slowest_s = 0.0
                await asyncio.to_thread(kill)
                silence_s = await caught_up(board)
                seen.append(Kill(what, silence_s, producer.slowest_s))
                console.print(f"killed {what}: {silence_s:.1f} s without a delivery, {missing(board)} to come")
            producer.stop()
            await publishing
            await caught_up(board)
    finally:
        await asyncio.to_thread(machines_of.__exit__, None, None, None)
    return summary(board, seen, console)


def summary(board: Board, seen: list[Kill], console: Console) -> int:
    """Prints what happened beside what should have happened; returns the exit status."""
    table = Table()
    for name in ("killed", "longest time without a delivery", "longest wait for a 202"):
        table.add_column(name, justify="left" if name == "killed" else "right")
    for one in seen:
        table.add_row(one.what, f"{one.silence_s:.1f} s", f"{one.publish_s:.1f} s")
    console.print(table)
    counts = Table()
    for name in ("trigger", "delivered", "expected"):
        counts.add_column(name, justify="left" if name == "trigger" else "right")
    wrong = []
    for one in SUBSCRIPTIONS:
        counts.add_row(one.name, str(len(board.received[one.name])), str(board.expected[one.name]))
        if len(board.received[one.name]) != board.expected[one.name]:
            wrong.append(one.name)
    console.print(counts)
    console.print(board.headline())
    if wrong:
        console.print(f"[bold red]WRONG[/]: the counts of {', '.join(wrong)} differ from what was expected")
        return 1
    console.print(f"[bold green]OK[/]: every trigger got exactly its events ({board.repeated} deliveries repeated)")
    return 0


def main() -> None:
    """Parses the flags and runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=20.0, help="events per second")
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    folder = Path(tempfile.mkdtemp(prefix="headgate-cluster-"))
    sys.exit(asyncio.run(run(folder, arguments.rate, console)))


if __name__ == "__main__":
    main()
