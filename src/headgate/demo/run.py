"""The main job, live: a real server, a real subscriber, a real producer, and a check of every count."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from pyreqwest.client import Client, ClientBuilder
from rich.console import Console
from rich.live import Live
from rich.table import Table

from headgate.testing.server import Server, free_port
from headgate_api.errors import UnavailableError

Filter = dict[str, Any]
Data = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One event: its type and its JSON data."""

    type: str
    data: Data


@dataclass(frozen=True)
class DemoTrigger:
    """A trigger, whose name is also the path of its subscriber, with what is true about it.

    `why` is what it shows, `filter` is `spec.filter` as a user writes it. It must get the events that are `wanted`. For
    those for which it `fails`, its filter is an error: they are not delivered, but counted.
    """

    name: str
    why: str
    filter: Filter
    wanted: Callable[[Sample], bool]
    fails: Callable[[Sample], bool] = lambda _: False


TRIGGERS = (
    DemoTrigger(
        "paid-orders",
        "attributes",
        {"attributes": {"type": "com.shop.order.paid"}},
        lambda e: e.type == "com.shop.order.paid",
    ),
    DemoTrigger(
        "big-eu-orders",
        "CEL on data",
        {"expression": 'ce.type == "com.shop.order.paid" && data.total > 150 && data.region.startsWith("eu-")'},
        lambda e: e.type == "com.shop.order.paid" and e.data["total"] > 150 and e.data["region"].startswith("eu-"),
    ),
    DemoTrigger(
        "premium-signups",
        "CEL, value in a list",
        {"expression": 'ce.type == "com.shop.user.signed-up" && data.user.tier in ["gold", "platinum"]'},
        lambda e: e.type == "com.shop.user.signed-up" and e.data["user"]["tier"] in ("gold", "platinum"),
    ),
    DemoTrigger(
        "hot-sensors",
        "CEL, numbers",
        {"expression": 'ce.type.startsWith("com.plant.") && data.celsius >= 90.0'},
        lambda e: e.type.startswith("com.plant.") and e.data["celsius"] >= 90.0,
    ),
    DemoTrigger(
        "vip-orders",
        "CEL macro, decided by cel-cpp",
        {"expression": 'ce.type.startsWith("com.shop.order.") && data.tags.exists(t, t == "vip")'},
        lambda e: e.type.startswith("com.shop.order.") and "vip" in e.data["tags"],
    ),
    DemoTrigger("nobody", "matches nothing", {"attributes": {"type": "com.shop.order.teleported"}}, lambda _: False),
    DemoTrigger(
        "adults",
        "filter error: data.age is absent",
        {"expression": 'ce.type == "com.shop.user.signed-up" && data.age >= 18'},
        lambda _: False,
        lambda e: e.type == "com.shop.user.signed-up",
    ),
)


def samples(seed: int) -> Iterator[Sample]:
    """An endless, repeatable stream of events: half orders, a third sensors, the rest users."""
    rng = random.Random(seed)
    regions = ("eu-west", "eu-central", "us-east", "ap-south")
    while True:
        kind = rng.choices(("order", "sensor", "user"), (5, 3, 2))[0]
        if kind == "order":
            verb = rng.choices(("created", "paid", "shipped"), (3, 2, 1))[0]
            tags = rng.sample(("new", "vip", "promo", "app"), rng.randrange(3))
            total = round(rng.lognormvariate(4.5, 0.8), 2)
            yield Sample(f"com.shop.order.{verb}", {"total": total, "region": rng.choice(regions), "tags": tags})
        elif kind == "sensor":
            yield Sample(
                "com.plant.sensor.reading",
                {"sensor": f"s{rng.randrange(40):02d}", "celsius": round(rng.gauss(70, 14), 1)},
            )
        else:
            tier = rng.choices(("free", "gold", "platinum"), (7, 2, 1))[0]
            yield Sample("com.shop.user.signed-up", {"user": {"id": f"u{rng.randrange(10_000)}", "tier": tier}})


# --- the demo -------------------------------------------------------------------------------------

NAMESPACE: Final = "shop"
BROKER: Final = "events"
_SETTLE_S_MAX: Final = 60.0

Deliver = Callable[[str, str, int], None]
"""Hears of a POST that reached the subscriber: the trigger, the event's id, when it was sent (Unix microseconds)."""


class Board:
    """What has happened so far."""

    def __init__(self) -> None:
        self.accepted = 0
        self.expected: Counter[str] = Counter()
        self.expected_errors: Counter[str] = Counter()
        self.received: dict[str, set[str]] = {s.name: set() for s in TRIGGERS}
        self.repeated = 0
        self.latencies_ms: list[float] = []
        self.filter_errors: Counter[str] = Counter()
        self.told = ""

    def accept(self) -> None:
        self.accepted += 1

    def deliver(self, trigger: str, event_id: str, sent_us: int) -> None:
        if event_id in self.received[trigger]:
            self.repeated += 1
        self.received[trigger].add(event_id)
        self.latencies_ms.append((time.time_ns() // 1000 - sent_us) / 1000)

    @property
    def settled(self) -> bool:
        """True when everything that should have come has come, or more."""
        return all(
            len(self.received[s.name]) >= self.expected[s.name]
            and self.filter_errors[s.name] >= self.expected_errors[s.name]
            for s in TRIGGERS
        )

    def wrong(self) -> list[str]:
        """The triggers whose counts differ from the truth."""
        return [
            s.name
            for s in TRIGGERS
            if len(self.received[s.name]) != self.expected[s.name]
            or self.filter_errors[s.name] != self.expected_errors[s.name]
        ]

    def percentile_ms(self, percent: int) -> float:
        """Latency from before the POST to the subscriber's receipt."""
        if len(self.latencies_ms) < 2:
            return 0.0
        return statistics.quantiles(self.latencies_ms, n=100, method="inclusive")[percent - 1]

    def headline(self) -> str:
        return (
            f"accepted {self.accepted} events, delivered {sum(map(len, self.received.values()))}, "
            f"latency POST to delivery p50 {self.percentile_ms(50):.1f} ms, p99 {self.percentile_ms(99):.1f} ms"
        )

    def table(self, title: str) -> Table:
        table = Table(title=title or None, title_justify="left")
        for name in ("trigger", "shows"):
            table.add_column(name)
        for name in ("delivered", "expected", "filter errors"):
            table.add_column(name, justify="right")
        for s in TRIGGERS:
            table.add_row(
                s.name,
                s.why,
                str(len(self.received[s.name])),
                str(self.expected[s.name]),
                str(self.filter_errors[s.name]),
            )
        return table


def subscriber(deliver: Deliver) -> Callable[..., Awaitable[None]]:
    """A subscriber of every trigger (the path says whose): a raw ASGI application that answers 202."""

    async def app(
        scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = dict(scope["headers"])
        deliver(scope["path"][1:], headers[b"ce-id"].decode(), int(headers[b"ce-sentus"]))
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return app


@contextlib.asynccontextmanager
async def serving(deliver: Deliver, port: int) -> AsyncIterator[None]:
    """Runs the subscriber on `port`."""
    config = uvicorn.Config(subscriber(deliver), port=port, log_level="error", lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:
        yield
    finally:
        server.should_exit = True
        await task


async def publish(client: Client, url: str, event_id: str, type_: str, data: bytes) -> None:
    """Publishes one event in binary mode; its `sentus` extension says when."""
    request = client.post(url).body_bytes(data)
    for name, value in (
        ("ce-specversion", "1.0"),
        ("ce-id", event_id),
        ("ce-source", "/demo"),
        ("ce-type", type_),
        ("ce-sentus", str(time.time_ns() // 1000)),
        ("content-type", "application/json"),
    ):
        request = request.header(name, value)
    answer = await request.build().send()
    if answer.status != 202:
        raise UnavailableError(f"event {event_id} was answered {answer.status}: {await answer.text()}")


def trigger_spec(s: DemoTrigger, subscriber_port: int) -> dict[str, Any]:
    """`spec` of the trigger of `s`."""
    return {
        "broker": BROKER,
        "filter": s.filter,
        "subscriber": {"uri": f"http://127.0.0.1:{subscriber_port}/{s.name}"},
    }


def set_up(server: Server, subscriber_port: int) -> None:
    """Creates the broker and the triggers, and waits until the matcher evaluates every one of them."""
    server.create("brokers", NAMESPACE, BROKER, {})
    for s in TRIGGERS:
        server.create("triggers", NAMESPACE, s.name, trigger_spec(s, subscriber_port))
    for s in TRIGGERS:
        server.wait_trigger_ready(NAMESPACE, s.name)


async def produce(client: Client, url: str, board: Board, events: int, rate_per_s: float) -> None:
    """Publishes at a steady rate, without waiting for the answer before the next event."""
    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, sample in zip(range(events), samples(seed=7), strict=False):
            await asyncio.sleep(max(0.0, started + number / rate_per_s - time.monotonic()))
            for s in TRIGGERS:
                board.expected[s.name] += s.wanted(sample)
                board.expected_errors[s.name] += s.fails(sample)
            data = json.dumps(sample.data).encode()
            task = group.create_task(publish(client, url, f"demo-{number}", sample.type, data))
            task.add_done_callback(lambda _: board.accept())


async def watch_filter_errors(server: Server, board: Board) -> None:
    """Reads the errors of each filter from its trigger's status, where an operator would look."""
    while True:
        for trigger in await asyncio.to_thread(server.list, "triggers", NAMESPACE):
            board.filter_errors[trigger["metadata"]["name"]] = trigger["status"].get("filterErrors", 0)
        await asyncio.sleep(0.5)


def tell(board: Board, console: Console) -> None:
    """Prints the headline, unless it is the line that was printed last."""
    if (line := board.headline()) != board.told:
        console.print(line)
        board.told = line


async def show(board: Board, console: Console) -> None:
    """Draws the board: a live table on a terminal, a line every two seconds elsewhere."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(2)
            tell(board, console)
    with Live(board.table(board.headline()), console=console, transient=True, auto_refresh=False) as live:
        while True:
            live.update(board.table(board.headline()), refresh=True)
            await asyncio.sleep(0.25)


async def settle(board: Board) -> None:
    """Waits until everything expected has come, and a little longer for what should not come."""
    deadline = time.monotonic() + _SETTLE_S_MAX
    while not board.settled and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)


async def run(events: int, rate_per_s: float, console: Console) -> int:
    """The whole demo; returns the exit status."""
    board, subscriber_port = Board(), free_port()
    async with contextlib.AsyncExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-demo-")))
        await stack.enter_async_context(serving(board.deliver, subscriber_port))
        log = Path(tempfile.gettempdir()) / f"headgate-demo-{data.name[-8:]}.log"
        console.print(f"starting headgate serve (Spark takes some 15 s); its log: {log}")
        server = Server(data, log=log)
        await asyncio.to_thread(server.start)
        stack.push_async_callback(asyncio.to_thread, server.stop)
        await asyncio.to_thread(set_up, server, subscriber_port)
        console.print(f"{len(TRIGGERS)} triggers are Ready; publishing {events} events at {rate_per_s:g}/s")
        client = await stack.enter_async_context(ClientBuilder().build())
        helpers = [asyncio.create_task(watch_filter_errors(server, board)), asyncio.create_task(show(board, console))]
        await produce(client, f"{server.url}/{NAMESPACE}/{BROKER}", board, events, rate_per_s)
        await settle(board)
        for helper in helpers:
            helper.cancel()
    return summary(board, console)


def summary(board: Board, console: Console) -> int:
    """Prints what happened beside what should have happened; returns the exit status."""
    tell(board, console)
    console.print(board.table(title=""))
    if wrong := board.wrong():
        console.print(f"[bold red]WRONG[/]: the counts of {', '.join(wrong)} differ from what was expected")
        return 1
    console.print(f"[bold green]OK[/]: every trigger got exactly its events ({board.repeated} deliveries repeated)")
    return 0
