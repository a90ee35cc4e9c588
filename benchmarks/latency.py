"""POST sent to subscriber received, with many triggers loaded, quietly and while generations change.

    python -m benchmarks.latency                        10,000 triggers, 500 events/s for 30 s
    python -m benchmarks.latency --changes 20           and once more while 20 triggers are added

The triggers have the shapes of the public workload (type and tier, ranges, lists, prefixes, ...) over 20,000 types; the
events' types are drawn evenly, so an event has few matches and the figure is the broker's latency, not its fan-out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from pyreqwest.client import Client, ClientBuilder
from rich.table import Table

from benchmarks.objects import create_all, wait_ready
from benchmarks.tables import print_whole
from headgate.testing.server import Server, free_port, object_of

REGIONS = ("eu-west-1", "eu-central-1", "us-east-1", "us-west-2", "ap-east-1")
TIERS = ("free", "basic", "silver", "gold", "platinum")
DOMAINS = ("shop", "billing", "ship", "crm", "auth", "stock", "mail", "risk")
TYPES = 20_000
SOURCES = 200


def type_name(number: int) -> str:
    """One of TYPES event types."""
    return f"com.{DOMAINS[number % 8]}.s{number // 8 % 250:03d}.v{number // 2000:02d}"


def filters(rng: random.Random, count: int) -> Iterator[str]:
    """CEL of `count` triggers, in the proportions of the public workload."""
    for _ in range(count):
        type_ = f'ce.type == "{type_name(rng.randrange(TYPES))}"'
        kind = rng.random()
        low = round(rng.uniform(0, 200), 1)
        regions = json.dumps(rng.sample(REGIONS, 2))
        if kind < 0.60:
            yield f'{type_} && data.user.tier == "{rng.choice(TIERS)}"'
        elif kind < 0.65:
            yield f'ce.type.startsWith("com.{rng.choice(DOMAINS)}.s{rng.randrange(250):03d}.v0")'
        elif kind < 0.75:
            yield f'ce.source.endsWith("{rng.choice(DOMAINS)}/node-{rng.randrange(SOURCES):03d}")'
        elif kind < 0.85:
            yield f"{type_} && data.order.total >= {low} && data.order.total < {low + 100}"
        elif kind < 0.95:
            yield f"{type_} && data.region in {regions}"
        elif kind < 0.975:
            yield f"{type_} && has(ce.tenant)"
        else:
            yield f"{type_} && !(data.region in {regions})"


def event(rng: random.Random) -> tuple[str, str, bytes]:
    """Type, source and data of one event."""
    data = {
        "user": {"id": f"u{rng.randrange(50_000)}", "tier": rng.choice(TIERS)},
        "order": {"total": round(rng.lognormvariate(4, 1), 2), "items": [{"sku": f"k{rng.randrange(500)}", "n": 2}]},
        "region": rng.choice(REGIONS),
        "tags": ["new", "web"],
    }
    source = f"/{rng.choice(DOMAINS)}/node-{rng.randrange(SOURCES):03d}"
    return type_name(rng.randrange(TYPES)), source, json.dumps(data).encode()


class Receiver:
    """The subscriber of all triggers: keeps when each delivery came and how long it took, in milliseconds."""

    def __init__(self) -> None:
        self.port = free_port()
        self.latencies_ms: list[float] = []

    async def app(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        """Raw ASGI: answers 202."""
        arrived_us = time.time_ns() // 1000
        while (await receive()).get("more_body"):
            pass
        for name, value in scope["headers"]:
            if name == b"ce-sentus":
                self.latencies_ms.append((arrived_us - int(value)) / 1000)
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


async def load(server: Server, count: int, url: str, seed: int) -> float:
    """Creates the triggers; returns the seconds until the last one is Ready."""
    started = time.monotonic()
    to = {"broker": "default", "subscriber": {"uri": url}}
    triggers = [
        object_of("triggers", "default", f"t{number}", {**to, "filter": {"expression": cel}})
        for number, cel in enumerate(filters(random.Random(seed), count))
    ]
    await create_all(server, "triggers", triggers)
    await asyncio.to_thread(wait_ready, server, triggers)
    return time.monotonic() - started


async def publish(client: Client, url: str, number: int, rng: random.Random) -> None:
    """One POST; the event says when it was sent."""
    type_, source, data = event(rng)
    request = client.post(url).body_bytes(data)
    for name, value in (
        ("ce-specversion", "1.0"),
        ("ce-id", f"e{number}"),
        ("ce-source", source),
        ("ce-type", type_),
        ("ce-tenant", "t1"),
        ("content-type", "application/json"),
        ("ce-sentus", str(time.time_ns() // 1000)),
    ):
        request = request.header(name, value)
    answer = await request.build().send()
    if answer.status != 202:
        raise SystemExit(f"error: POST answered {answer.status}")


async def produce(url: str, rate_per_s: int, seconds: float) -> int:
    """Open loop: the next POST is sent on time, whether or not the one before was answered."""
    client, rng = ClientBuilder().build(), random.Random(99)
    count, started = int(rate_per_s * seconds), time.monotonic()
    async with client, asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(max(0.0, started + number / rate_per_s - time.monotonic()))
            group.create_task(publish(client, url, number, rng))
    return count


async def change(server: Server, changes: int, url: str, seconds: float) -> list[float]:
    """Adds a trigger every so often; returns how long each took until it was Ready, in seconds."""
    took = []
    for number in range(changes):
        spec = {
            "broker": "default",
            "filter": {"expression": f'ce.type == "changed" && data.n == {number}'},
            "subscriber": {"uri": url},
        }
        started = time.monotonic()
        await asyncio.to_thread(server.create, "triggers", "default", f"change-{number}", spec)
        await asyncio.to_thread(server.wait_trigger_ready, "default", f"change-{number}")
        took.append(time.monotonic() - started)
        await asyncio.sleep(max(0.0, seconds / changes - took[-1]))
    return took


@contextlib.asynccontextmanager
async def serving(receiver: Receiver) -> AsyncIterator[None]:
    """A subscriber that answers while the block lasts."""
    subscriber = uvicorn.Server(
        uvicorn.Config(
            receiver.app, port=receiver.port, interface="asgi3", log_level="error", lifespan="off", access_log=False
        )
    )
    task = asyncio.create_task(subscriber.serve())
    try:
        yield
    finally:
        subscriber.should_exit = True
        await task


async def measure(server: Server, receiver: Receiver, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the load; returns the figures."""
    figures: dict[str, Any] = {"triggers": arguments.triggers}
    async with serving(receiver):
        url = f"http://127.0.0.1:{receiver.port}/all"
        figures["loaded_s"] = round(await load(server, arguments.triggers, url, 1), 1)
        publish_url = f"{server.url}/default/default"
        await produce(publish_url, arguments.rate, arguments.warm)

        async def of(changes: int) -> tuple[dict[str, Any], list[float]]:
            await asyncio.sleep(1)
            receiver.latencies_ms.clear()
            changing = asyncio.create_task(change(server, changes, url, arguments.seconds))
            events = await produce(publish_url, arguments.rate, arguments.seconds)
            ready_s = await changing
            await asyncio.sleep(2)
            quantiles = statistics.quantiles(receiver.latencies_ms, n=1000, method="inclusive")
            return {
                "events": events,
                "deliveries": len(receiver.latencies_ms),
                "p50_ms": round(quantiles[499], 2),
                "p99_ms": round(quantiles[989], 2),
                "p99.9_ms": round(quantiles[998], 2),
                "max_ms": round(max(receiver.latencies_ms), 2),
            }, ready_s

        calm, _ = await of(0)
        if not arguments.changes:
            return figures | calm
        found, ready_s = await of(arguments.changes)
    return (
        figures
        | found
        | {
            "changes": arguments.changes,
            "slowest_ready_s": round(max(ready_s), 2),
            "calm_p99_ms": calm["p99_ms"],
            "p99_ratio": round(found["p99_ms"] / calm["p99_ms"], 2),
        }
    )


def main() -> None:
    """Parses the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=500, help="events per second")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm", type=float, default=3, help="seconds of the same load that are not counted")
    parser.add_argument("--changes", type=int, default=0, help="triggers added during the run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        server = stack.enter_context(Server(folder / "data", log=folder / "server.log"))
        figures = asyncio.run(measure(server, Receiver(), arguments))
    if arguments.json:
        print(json.dumps(figures))
        return
    table = Table(title="POST sent to subscriber received")
    for name in figures:
        table.add_column(name, justify="right")
    table.add_row(*map(str, figures.values()))
    print_whole(table)


if __name__ == "__main__":
    main()
