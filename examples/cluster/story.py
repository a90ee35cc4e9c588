"""The story of the demo: a producer publishes, one part after the other is killed, and every event is counted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.cluster.ledger import Ledger
from examples.cluster.machines import Machines, Sizes, running, set_up, wait_until
from headgate.demo.run import BROKER, NAMESPACE, samples, serving
from headgate.testing.server import free_port

KEYS: Final = 5
"""Partition keys; the events of one are published one after the other."""
CATCH_UP_S_MAX: Final = 180.0
REST_S: Final = 3.0
"""Events flow so long after a kill before what is due then is waited for."""
_ASK_AGAIN_S: Final = 0.1
_POST_S_MAX: Final = 60.0
_NOTHING: Final = "nothing"


@dataclass(frozen=True)
class Kill:
    """A part that was killed, and what was seen then.

    Attributes:
        what: Which part.
        silence_s: The longest time without a delivery until everything accepted before and meanwhile had come.
        wait_s: The longest time that a producer waited for its 202, asking the servers in turn.
        repeated: Deliveries that came again meanwhile.
        whole_s: From then on until every part worked again; None after the last one, which is not waited for.
    """

    what: str
    silence_s: float
    wait_s: float
    repeated: int
    whole_s: float | None


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        ledger: Every event.
        kills: What was killed, in order; the first one is `nothing`, to compare with.
    """

    ledger: Ledger = field(default_factory=Ledger)
    kills: list[Kill] = field(default_factory=list)


def _front(machines: Machines) -> None:
    machines.kill_part(machines.servers[0], "front-0")


def _dispatcher(machines: Machines) -> None:
    machines.kill_part(machines.servers[-1], "dispatcher-0")


def _control(machines: Machines) -> None:
    machines.kill_part(machines.leader("control"), "control")


def _matcher(machines: Machines) -> None:
    machines.kill_part(machines.leader("matcher"), "matcher")


def _executor(machines: Machines) -> None:
    machines.kill_executor()


def _worker(machines: Machines) -> None:
    machines.spark.kill(1)


def _broker(machines: Machines) -> None:
    machines.kafka.kill(2)


KILLS: Final[Mapping[str, Callable[[Machines], None]]] = MappingProxyType(
    {
        "front": _front,
        "dispatcher": _dispatcher,
        "control": _control,
        "matcher": _matcher,
        "executor": _executor,
        "worker": _worker,
        "broker": _broker,
    }
)
"""SIGKILL to one of each part; of control processes and matchers to the one that leads."""
_MENDED: Final[Mapping[str, Callable[[Machines], None]]] = MappingProxyType(
    {
        "worker": lambda machines: machines.spark.start_worker(1),
        "broker": lambda machines: machines.kafka.restart(2, wait=False),
    }
)
"""What nobody else starts again."""


class Producer:
    """Publishes at a steady rate, to the servers in turn; asks the next one when one does not answer 202."""

    def __init__(self, machines: Machines, client: Client, ledger: Ledger, rate_per_s: float) -> None:
        self._urls = itertools.cycle([f"{one.url}/{NAMESPACE}/{BROKER}" for one in machines.servers])
        self._client = client
        self._ledger = ledger
        self._pause_s = KEYS / rate_per_s
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Publishes until `stop`; returns when every event was accepted."""
        async with asyncio.TaskGroup() as group:
            for key in range(KEYS):
                group.create_task(self._publish_key(key))

    def stop(self) -> None:
        """Publishes no further event."""
        self._stopping.set()

    async def _publish_key(self, key: int) -> None:
        began = time.monotonic() + key * self._pause_s / KEYS
        for number, sample in enumerate(samples(seed=key)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), began + number * self._pause_s - time.monotonic())
            if self._stopping.is_set():
                return
            event_id, asked = f"k{key}-{number}", time.monotonic()
            self._ledger.expect(event_id, sample)
            while not await self._accepted(event_id, f"k{key}", sample.type, json.dumps(sample.data).encode()):
                await asyncio.sleep(_ASK_AGAIN_S)
            self._ledger.accept(time.monotonic() - asked)

    async def _accepted(self, event_id: str, key: str, type_: str, data: bytes) -> bool:
        request = self._client.post(next(self._urls)).body_bytes(data).header("content-type", "application/json")
        attributes = {"specversion": "1.0", "id": event_id, "source": "/demo", "type": type_, "partitionkey": key}
        for name, value in {**attributes, "sentus": str(time.time_ns() // 1_000)}.items():
            request = request.header(f"ce-{name}", value)
        try:
            return (await request.build().send()).status == 202
        except PyreqwestError:
            return False


async def run(folder: Path, sizes: Sizes, kills: Sequence[str], console: Console) -> Outcome:
    """The whole demo.

    Args:
        folder: Where data and logs go.
        sizes: Of the deployment.
        kills: Names of `KILLS`, in order.
        console: What is printed on.
    """
    outcome, port, began = Outcome(), free_port(), time.monotonic()

    def tell(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.0f} s[/]  {line}")

    tell(f"logs: {folder}")
    async with _machines(folder, sizes, tell) as machines, serving(outcome.ledger.deliver, port):
        tell("every part works; creating triggers")
        await asyncio.to_thread(set_up, machines.servers[0], port)
        tell(f"every trigger is Ready; publishing {sizes.rate_per_s:g} events/s")
        client = ClientBuilder().timeout(timedelta(seconds=_POST_S_MAX)).build()
        async with client, _showing(outcome.ledger, console):
            producer = Producer(machines, client, outcome.ledger, sizes.rate_per_s)
            publishing = asyncio.create_task(producer.run())
            try:
                for number, what in enumerate((_NOTHING, *kills)):
                    seen = await _kill(what, machines, outcome.ledger)
                    if number < len(kills):
                        seen = await _mended(seen, machines, sizes, outcome.ledger)
                    outcome.kills.append(seen)
                    tell(_line(seen))
            finally:
                producer.stop()
                await publishing
            await _caught_up(outcome.ledger)
    _summary(outcome, console)
    return outcome


@contextlib.asynccontextmanager
async def _machines(folder: Path, sizes: Sizes, tell: Callable[[str], None]) -> AsyncIterator[Machines]:
    """Everything that runs, started and stopped in a thread; also where this task is cancelled meanwhile."""
    held = running(folder, sizes, tell)
    starting = asyncio.ensure_future(asyncio.to_thread(held.__enter__))
    try:
        yield await asyncio.shield(starting)
    finally:
        await asyncio.wait([starting])
        if starting.exception() is None:
            tell("stopping everything")
            await asyncio.to_thread(held.__exit__, None, None, None)


async def _kill(what: str, machines: Machines, ledger: Ledger) -> Kill:
    """Kills a part, and waits until everything has come."""
    repeated = ledger.repeated
    ledger.silences()
    if what in KILLS:
        await asyncio.to_thread(KILLS[what], machines)
    await asyncio.sleep(REST_S)
    await _caught_up(ledger)
    silence_s, wait_s = ledger.silences()
    return Kill(what, silence_s, wait_s, ledger.repeated - repeated, None)


async def _mended(kill: Kill, machines: Machines, sizes: Sizes, ledger: Ledger) -> Kill:
    """Waits until every part works again, so that the next kill is seen alone."""
    began = time.monotonic()
    if kill.what in _MENDED:
        await asyncio.to_thread(_MENDED[kill.what], machines)
    whole = f"every part works after the kill of: {kill.what}"

    def works() -> bool:
        return machines.is_whole(sizes.brokers, machines.spark.workers) and machines.is_warm()

    await asyncio.to_thread(wait_until, works, whole)
    whole_s = time.monotonic() - began
    await _caught_up(ledger)
    return replace(kill, whole_s=whole_s)


async def _caught_up(ledger: Ledger) -> None:
    """Waits until everything that is due now has come, CATCH_UP_S_MAX at most: what is lost is seen at the end."""
    due, deadline = ledger.due(), time.monotonic() + CATCH_UP_S_MAX
    while not ledger.has(due) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _showing(ledger: Ledger, console: Console) -> AsyncIterator[None]:
    """Shows on a terminal what has come so far; elsewhere the lines of each kill are enough."""
    if not console.is_terminal:
        yield
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:

        async def draw() -> None:
            while True:
                live.update(
                    f"[bold]{ledger.accepted}[/] events accepted, [bold]{ledger.delivered}[/] delivered,"
                    f" {ledger.to_come} to come, {ledger.repeated} repeated",
                    refresh=True,
                )
                await asyncio.sleep(0.25)

        drawing = asyncio.create_task(draw())
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.wait([drawing])


def _line(kill: Kill) -> str:
    what = "nothing killed" if kill.what == _NOTHING else f"kill -9 of [bold]{kill.what}[/]"
    return (
        f"{what}: {kill.silence_s:.1f} s of silence, {kill.wait_s:.1f} s for the slowest 202,"
        f" {kill.repeated} repeated, whole after {_whole(kill)}"
    )


def _whole(kill: Kill) -> str:
    return "-" if kill.whole_s is None else f"another {kill.whole_s:.0f} s"


def _rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    for one in outcome.kills:
        yield one.what, f"{one.silence_s:.1f} s", f"{one.wait_s:.1f} s", str(one.repeated), _whole(one)


def _summary(outcome: Outcome, console: Console) -> None:
    """Prints what happened beside what should have happened."""
    ledger = outcome.ledger
    heads = ("killed", "longest silence", "slowest 202", "repeated", "whole again after")
    console.print(_table(heads, list(_rows(outcome))))
    counts = [tuple(map(str, row)) for row in ledger.counts()]
    console.print(_table(("trigger", "delivered", "expected", "lost", "wrong"), counts))
    console.print(f"{ledger.accepted} events accepted, {ledger.delivered} delivered, {ledger.repeated} repeated")
    if ledger.is_exact:
        console.print("[bold green]OK[/]: every trigger got exactly its events, and the ordered ones in their order")
    else:
        console.print(f"[bold red]WRONG[/]: see the columns lost and wrong; {ledger.disordered} out of order")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table()
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table
