"""What the dispatcher's tests share: a log with events, routing, a peer of the match link, a subscriber."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import httptools
import pytest
import uvloop

from headgate.delivery.attempt_service import AttemptService, Replies
from headgate.delivery.circuit import SubscriberHealth
from headgate.delivery.post import Transport
from headgate.delivery.retry import SYSTEM
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.kinds.routing import DeliveryRules, RoutingTable, Target, TargetReport
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.outbox.link_format import Hello, encode_hello
from headgate.outbox.writer import decode_chunk
from headgate.server.processes.dispatcher import Dispatcher, DispatcherOptions, opened
from headgate_api.event.model import DataKind, Event
from headgate_api.event.names import path_of
from tests.outbox.frames import encode_passed, encode_row

TOKEN = bytes(range(32))
BROKER = "default/default/1"
EPOCH = (1 << 20) + 1
"""The first one of the subscription whose target has the number 1."""
SECONDS_MAX = 150.0
"""Of a test: above WAIT_S_MAX, so that a wait says what it waited for."""


class NullJournal:
    """Remembers nothing."""

    def attempt(self, *_: object, **__: object) -> None:
        pass

    def end(self, *_: object) -> None:
        pass


def run(work: Coroutine[Any, Any, None], seconds_max: float = SECONDS_MAX) -> None:
    """Run a test's coroutine on uvloop, with an end."""

    async def bounded() -> None:
        await asyncio.wait_for(work, seconds_max)

    uvloop.run(bounded())


def event(number: int, *, data: bytes = b'{"n":1}', type: str = "t", **more: Any) -> Event:
    return Event(
        "1.0",
        f"e{number}",
        "/tests",
        type,
        data_kind=DataKind.JSON,
        datacontenttype="application/json",
        data=data,
        **more,
    )


def spec(**changes: Any) -> DeliveryRules:
    plain = DeliveryRules(retry=3, backoff_policy="linear", backoff_delay_s=0.01, timeout_s=5.0, ordered=False)
    return dataclasses.replace(plain, **changes)


def target(number: int, uri: str, *, broker: str = BROKER, cel: str = "true", **delivery: Any) -> Target:
    return Target(number, f"default/t{number}", broker, CompiledFilter(cel, ()), uri, spec(**delivery))


class Routes:
    """A control store that tests change by hand."""

    def __init__(self, *targets: Target) -> None:
        self.targets = {t.id: t for t in targets}
        self.brokers = {path_of(BROKER): ServedBroker(BROKER, DEFAULT_RULE)}
        self.generation = self.version = 1
        self.reports: list[TargetReport] = []
        self.snapshots = 0

    def put(self, *targets: Target) -> None:
        self.targets |= {t.id: t for t in targets}
        self.version += 1

    def change(self) -> None:
        """A generation of the same targets."""
        self.generation += 1
        self.version += 1

    def delete(self, number: int) -> None:
        del self.targets[number]
        self.version += 1

    def data_version(self) -> int:
        return self.version

    def snapshot(self) -> RoutingTable:
        self.snapshots += 1
        return RoutingTable.of(self.generation, self.version, {}, self.targets.values())

    def served(self, path: str) -> ServedBroker | None:
        return self.brokers.get(path)

    def report(self, reports: list[TargetReport]) -> None:
        self.reports += reports

    def forget_trouble(self, owns) -> None:
        pass


def attempt_service(transport: object, replies: object = None, **more: Any) -> AttemptService:
    """One that makes attempts with this client, and writes nothing down."""
    health = SubscriberHealth(lambda *_: None, SYSTEM)
    return AttemptService(cast(Transport, transport), cast(Replies, replies), NullJournal(), health, **more)


class EventLog:
    """The event log of a data directory, partition 0 (and others on demand)."""

    def __init__(self, data: Path) -> None:
        self.directory = data / "log"
        self.writers: dict[int, PartitionWriter] = {}

    def append(self, events: Sequence[Event], *, partition: int = 0, broker: str = BROKER) -> int:
        """Returns the first offset."""
        if partition not in self.writers:
            self.writers[partition] = PartitionWriter(Partition(self.directory / str(partition), "stop"), EVENT_SCHEMA)
        batch = to_batch([StoredEvent(broker, event) for event in events])
        return self.writers[partition].append(Encoded(batch, [event.type for event in events]))

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


@dataclasses.dataclass
class Request:
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    at: float

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def id(self) -> str:
        return self.header("ce-id") or ""


Behaviour = Callable[[Request], Awaitable[tuple[Any, ...]]]
"""What to answer: status, body, then headers as (name, value). ConnectionResetError: the connection is reset."""


async def refuse(_: Request) -> tuple[int, bytes]:
    return 400, b"no"


class Subscriber:
    """A subscriber on a real socket: records requests, answers as told."""

    def __init__(self, behave: Behaviour | None = None, *, port: int = 0) -> None:
        self.port = port
        self.requests: list[Request] = []
        self.behave = behave or _accept
        self.connections = 0
        self.open: set[asyncio.Transport] = set()

    @property
    def ids(self) -> list[str]:
        return [request.id for request in self.requests]

    async def __aenter__(self) -> Subscriber:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: _Peer(self), "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for transport in list(self.open):
            transport.abort()
        await self.server.wait_closed()


async def _accept(_: Request) -> tuple[int, bytes]:
    return 202, b""


class _Peer(asyncio.Protocol):
    def __init__(self, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.subscriber.connections += 1
        self.subscriber.open.add(transport)
        self.parser = httptools.HttpRequestParser(self)
        self.headers: list[tuple[str, str]] = []
        self.body = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.subscriber.open.discard(self.transport)
        for task in self.tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        now = asyncio.get_running_loop().time()
        request = Request(self.parser.get_method().decode(), self.url, self.headers, self.body, now)
        self.headers, self.body = [], b""
        self.subscriber.requests.append(request)
        task = asyncio.get_running_loop().create_task(self.answer(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def answer(self, request: Request) -> None:
        try:
            status, body, *headers = await self.subscriber.behave(request)
        except ConnectionResetError:
            self.transport.abort()
            return
        extra = b"location: /elsewhere\r\n" if 300 <= status < 400 else b""
        extra += b"".join(b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in headers)
        self.transport.write(b"HTTP/1.1 %d X\r\n%scontent-length: %d\r\n\r\n%s" % (status, extra, len(body), body))


class Peer:
    """One connection to the match link."""

    def __init__(self, data: Path) -> None:
        address = json.loads((data / "run" / "match-link-0.json").read_text())
        self.address = (address["host"], address["port"])

    async def __aenter__(self) -> Peer:
        self.reader, self.writer = await asyncio.open_connection(*self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def hello(self, hello: Hello, token: bytes = TOKEN) -> bytes:
        """Returns the answer, b"" when there is none."""
        self.writer.write(encode_hello(hello, token))
        with contextlib.suppress(ConnectionError):
            return await self.reader.read(1)
        return b""

    async def driver(self) -> Peer:
        assert await self.hello(Hello(0, 0, -1, 1, 0)) == b"\x06"
        return self

    async def ask(self, **line: object) -> dict[str, Any]:
        self.writer.write(json.dumps(line).encode() + b"\n")
        return await self.line()

    def started(self, *runs: int) -> None:
        """Say that these runs were started (the generation is the run's number here)."""
        for run in runs:
            self.writer.write(json.dumps({"op": "started", "run": run, "generation": run}).encode() + b"\n")

    async def line(self) -> dict[str, Any]:
        return json.loads(await self.reader.readline())  # type: ignore[no-any-return]

    def match(self, *rows: tuple[int, int], verdict: int = Verdict.MATCH) -> None:
        """Rows (offset, target), in order of offset, and passed behind the last."""
        self.writer.write(b"".join(encode_row(verdict, t, offset) for offset, t in rows))
        if rows:
            self.writer.write(encode_passed(rows[-1][0] + 1))

    def passed(self, offset: int) -> None:
        self.writer.write(encode_passed(offset))

    async def closed(self) -> bool:
        """Waits for the other side to close."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1_024):
                pass
        return True


class Running:
    """A dispatcher at work.

    Attributes:
        dispatcher: Set when it is ready.
    """

    dispatcher: Dispatcher

    def __init__(self, data: Path, routes: Routes, **settings: Any) -> None:
        self.data = data
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()
        options = DispatcherOptions(
            data=data,
            token=TOKEN,
            store=routes,
            reports=routes,
            on_ready=self.ready.set,
            **{"on_corrupt": "stop", **settings},
        )
        self.task = asyncio.create_task(self._run(options))

    async def _run(self, options: DispatcherOptions) -> None:
        async with opened(options, self.stop) as self.dispatcher:
            await self.dispatcher.run()

    def peer(self) -> Peer:
        return Peer(self.data)

    async def end(self) -> None:
        self.stop.set()
        await self.task


def outbox_rows(data: Path) -> list[tuple[int, int, int]]:
    """(offset, target, verdict) of everything in the outbox on disk, progress left out."""
    rows = []
    with PartitionReader(Partition(data / "dispatcher/0/outbox", "stop"), start=0) as reader:
        while (chunk := reader.read()) is not None:
            for row_group in decode_chunk(chunk.first_offset, chunk.batch).row_groups:
                rows += row_group.rows
    return rows


@contextlib.asynccontextmanager
async def running(data: Path, routes: Routes, **settings: Any) -> AsyncIterator[Running]:
    """A dispatcher in this process; stopped in the end, and what it failed with is raised."""
    work = Running(data, routes, **settings)
    ready = asyncio.create_task(work.ready.wait())
    await asyncio.wait([ready, work.task], return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        yield work
    finally:
        await work.end()


@contextlib.asynccontextmanager
async def matcher(
    work: Running, number: int = 1, *, start: int | None = None, partition: int = 0
) -> AsyncIterator[Peer]:
    """A run of the matcher with one partition, at the offset that the dispatcher asks for."""
    if start is None:
        async with work.peer() as driver:
            offsets = (await (await driver.driver()).ask(op="resume"))["offsets"]
            start = offsets.get(str(partition), 0)
    async with work.peer() as peer:
        assert await peer.hello(Hello(number, number, partition, 1, start)) == b"\x06"
        yield peer


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    """An empty log of events, where the dispatcher looks for it."""
    log = EventLog(tmp_path)
    yield log
    log.close()
