"""For how long can one request hold an event loop? The longest hold beside the goal, for the worst requests there are.

    python -m benchmarks.holds [--rounds 5] [--json]

The front's ingress over HTTP and gRPC on a real log, and a dispatcher's API of consumers, in this process and without
sockets. A task beside them sleeps for a millisecond again and again; what it is late by is a hold. What else runs on
the machine holds the loop, too: the figure is the shortest of the rounds' longest holds, and the longest of all of them
stands beside it. First a batch, a message, and a body as they may be, then what is refused; last, the hostile filters
of the tests that hold it longest, while they are compiled and while they are evaluated.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Final, cast

from rich.table import Table
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message
from tests.filter.hostile_filters import EVALUATED, LISTS, OBJECTS, REFUSED, events

from benchmarks.ingress import PATH, bare
from benchmarks.tables import print_whole
from headgate.event.arrow import EVENT_SCHEMA
from headgate.filter.cel.evaluate import program
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.ingress.encode import event_commit
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.producers import Producers
from headgate.ingress.publish_http import Ingress
from headgate.ingress.publish_rpc import PublishRpc
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import PartitionWriter
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.rpc.service import CallContext, RpcCall
from headgate.subscriptions.api import PREFIX, SubscriptionsApi
from headgate.subscriptions.consumers import Leases
from headgate.subscriptions.messages import AckResult
from headgate.subscriptions.service import Subscriptions
from headgate.subscriptions.store import SavedCursor
from headgate_api import limits
from headgate_api.errors import HeadgateError
from headgate_api.event.http import BATCH_JSON
from headgate_api.event.json_text import allow_deep_json
from headgate_api.rpc.cloudevents_pb2 import CloudEvent
from headgate_api.rpc.headgate_pb2 import PublishRequest, PublishResponse

GOAL_MS: Final = 50.0
TICK_S: Final = 0.001
BEFORE_S: Final = 0.05
FILTERS_SHOWN: Final = 10
BROKER: Final = PATH[1:]
SUBSCRIPTION: Final = PREFIX.format(namespace="default", name="s")
PARTITIONS: Final = 2
EVENT: Final = b'{"specversion":"1.0","id":"%d","source":"/s","type":"t"%b}'
Ask = Callable[[bytes], Awaitable[str]]
"""Sends a request; what it was answered, in a word."""


@dataclass(frozen=True)
class Result:
    """The holds of one request.

    Attributes:
        way: By which it comes.
        request: What it is.
        size_bytes: Of its body, or message.
        hold_ms: The longest hold, in the round in which it was shortest.
        worst_ms: In the round in which it was longest.
        answer: A status over HTTP, a word over gRPC.
    """

    way: str
    request: str
    size_bytes: int
    hold_ms: float
    worst_ms: float
    answer: str


# --- requests ------------------------------------------------------------------------------------


def filled(begin: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    """As many units between the two as fit into so many bytes, with commas between them."""
    count = (size - len(begin) - len(end) + 1) // (len(unit) + 1)
    return begin + b",".join([unit] * count) + end


def batches() -> Iterator[tuple[str, bytes]]:
    most, size = limits.BATCH_EVENTS_MAX, limits.BATCH_BYTES_MAX
    yield "as many events as may be", b"[%b]" % b",".join(EVENT % (n, b"") for n in range(most))
    containers = b",".join([b"[]"] * (size // most // 3 - 25))
    yield "and as many arrays", b"[%b]" % b",".join(EVENT % (n, b',"data":[%b]' % containers) for n in range(most))
    lists = filled(b',"data":[', b"[]", b"]", 3 * limits.JSON_CONTAINERS_MAX - 100)
    yield "events of as many arrays as may be", b"[%b]" % b",".join(EVENT % (n, lists) for n in range(size // 300_000))
    for name, unit in (("objects", b"{}"), ("arrays", b"[]"), ("texts", b'""'), ("numbers", b"1")):
        yield f"no event but {name}", filled(b"[", unit, b"]", size)
    yield "too many events", filled(b"[", EVENT % (1, b""), b"]", size)


def tag(number: int, content: bytes) -> bytes:
    """A field of a protobuf message with a length before it."""
    sizes = [len(content) >> shift & 0x7F for shift in (0, 7, 14, 21)]
    return bytes([number << 3 | 2, *(size | 0x80 for size in sizes), 0]) + content


def messages() -> Iterator[tuple[str, bytes]]:
    most, size = limits.PUBLISH_EVENTS_MAX, limits.RPC_REQUEST_BYTES_MAX

    def events(**more: Any) -> bytes:
        made = [CloudEvent(id=str(n), source="/s", spec_version="1.0", type="t", **more) for n in range(most)]
        return PublishRequest(events=made).SerializeToString()

    def text(value: str) -> CloudEvent.CloudEventAttributeValue:
        return CloudEvent.CloudEventAttributeValue(ce_string=value)

    yield "as many events as may be", events()
    yield "with a hundred attributes each", events(attributes={f"x{n}": text("") for n in range(100)})
    arrays = "[" + "[]," * 1_300 + "1]"
    yield "and as many arrays", events(text_data=arrays, attributes={"datacontenttype": text("application/json")})
    names = ["".join(letters) for letters in islice(product(ascii_lowercase, repeat=4), 2_490)]
    largest = CloudEvent(id="1", source="/s", spec_version="1.0", type="t", attributes={n: text("") for n in names})
    yield (
        "events of as many attributes as may be",
        b"\x1a".join([b"", *[tag(3, largest.SerializeToString())[1:]] * 100]),
    )
    yield "no event but empty messages", b"\x1a\0" * (size // 2)
    yield "no event but empty texts", b"\x22\0" * (size // 2)
    unread = CloudEvent(id="1", source="/s", spec_version="1.0", type="t").SerializeToString() + b"\x2a\0" * 500_000
    yield "events of half a million attributes", tag(3, unread) * 4


def bodies() -> Iterator[tuple[str, str, bytes]]:
    size = limits.OBJECT_BYTES_MAX
    ids = b",".join([b'"1:0"'] * limits.SUBSCRIPTION_UNACKED_MAX)
    yield "ack", "as many ids as may be", b'{"ids":[%b]}' % ids
    yield "seek", "a filter of as many arrays as fit", filled(b'{"first":{"a":[', b"[]", b"]}}", size)
    yield "seek", "a filter of as many objects as fit", filled(b'{"first":{"a":[', b'{"\\u003a":1}', b"]}}", size)
    yield "ack", "as many ids as fit", filled(b'{"ids":[', b'"1:0"', b"]}", size)


def filters() -> Iterator[tuple[str, int, Callable[[], object]]]:
    """What is done with each hostile filter, its size, and that work."""
    for name, (text, _) in REFUSED.items():
        yield f"compiled: {name}", len(text), partial(compile_cel.__wrapped__, text)
    for name, text in EVALUATED.items():
        compiled = program(compile_cel(text).cel)
        yield f"compiled: {name}", len(text), partial(compile_cel.__wrapped__, text)
        for of, view in events().items():
            yield f"evaluated: {name}, on {of}", len(text), partial(compiled.evaluate_view, view)
    for value, listed in [*((value, []) for value in OBJECTS), *((None, some) for some in LISTS)]:
        written = json.dumps(value or listed)
        yield f"compiled: {written[:50]}", len(written), partial(compile_filter, value, listed)


# --- what is asked --------------------------------------------------------------------------------


class Client:
    """A gRPC client of one message, as its call sees it."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = list(messages)
        self.heard: list[PublishResponse] = []

    async def read(self) -> bytes | None:
        return self._messages.pop(0) if self._messages else None

    async def write(self, data: bytes) -> None:
        self.heard.append(PublishResponse.FromString(data))


class OneSubscription:
    """Acknowledges in memory; seeks nothing."""

    async def ack(self, _: str, __: str, *, ids: tuple[str, ...] = (), up_to: str = "") -> AckResult:
        return Leases(SavedCursor()).ack(ids)


def over_http(app: ASGIApp, path: str, media_type: bytes) -> Ask:
    async def ask(body: bytes) -> str:
        statuses: list[int] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        head = [(b"content-type", media_type), (b"content-length", b"%d" % len(body))]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": head}
        await app(scope, receive, send)
        return str(statuses[0])

    return ask


def over_grpc(rpc: PublishRpc) -> Ask:
    opening = PublishRequest(open=PublishRequest.Open(broker=BROKER)).SerializeToString()

    async def ask(message: bytes) -> str:
        client = Client(opening, message)
        try:
            await rpc.publish(RpcCall(cast(CallContext, client), PublishRequest))
        except HeadgateError as error:
            return error.code
        last = client.heard[-1]
        return last.refused.problem.code if last.HasField("refused") else "acknowledged"

    return ask


@contextlib.asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[Ingress, PublishRpc]]:
    """The front's ends of every producer, on a log of their own."""
    writers = [
        PartitionWriter(Partition(directory / str(number), "stop"), EVENT_SCHEMA) for number in range(PARTITIONS)
    ]
    commits = [event_commit(writer) for writer in writers]
    intake = Intake(Partitions(commits), {BROKER: ServedBroker(f"{BROKER}/1", DEFAULT_RULE)}.get)
    try:
        yield Ingress(intake, bare), PublishRpc(intake, Producers(LogDirectory(directory, "stop")))
    finally:
        for commit in commits:
            await commit.close()
        for writer in writers:
            writer.close()


# --- what is measured -----------------------------------------------------------------------------


async def longest_hold_ms(ask: Ask, body: bytes) -> tuple[float, str]:
    """The longest hold while a request is answered, and the answer."""
    longest_s = 0.0

    async def tick() -> None:
        nonlocal longest_s
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            longest_s = max(longest_s, now - last - TICK_S)
            last = now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(BEFORE_S)
    longest_s = 0.0
    answer = await ask(body)
    await asyncio.sleep(TICK_S)
    await asyncio.sleep(TICK_S)  # a hold at the very end is seen as well
    ticking.cancel()
    return 1e3 * longest_s, answer


async def measure(rounds: int) -> list[Result]:
    results: list[Result] = []

    async def one(way: str, name: str, ask: Ask, body: bytes) -> None:
        await ask(body)  # warm
        found = [await longest_hold_ms(ask, body) for _ in range(rounds)]
        holds = sorted(hold for hold, _ in found)
        results.append(Result(way, name, len(body), round(holds[0], 1), round(holds[-1], 1), found[-1][1]))

    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder)) as (ingress, rpc):
            batch = over_http(ingress, PATH, BATCH_JSON.encode())
            for name, body in batches():
                await one("HTTP batch", name, batch, body)
            for name, body in messages():
                await one("gRPC message", name, over_grpc(rpc), body)
    api = SubscriptionsApi(cast(Subscriptions, OneSubscription()))
    app = Starlette(routes=list(api.routes()), exception_handlers=ERROR_HANDLERS)
    for action, name, body in bodies():
        await one(f"dispatcher, {action}", name, over_http(app, f"{SUBSCRIPTION}/{action}", b"application/json"), body)
    return results


def measure_filters(rounds: int) -> list[Result]:
    """The ones that hold longest. Nothing waits here, and no loop comes in between: CPU time is what they hold."""
    results = []
    for name, size, work in filters():
        holds, answer = [], "taken"
        for _ in range(1 + rounds):  # the first one warms
            begin = time.thread_time()
            try:
                work()
            except HeadgateError:
                answer = "refused"
            holds.append(1e3 * (time.thread_time() - begin))
        least, *_, most = sorted(holds[1:])
        results.append(Result("filter", name, size, round(least, 1), round(most, 1), answer))
    return sorted(results, key=lambda one: -one.hold_ms)[:FILTERS_SHOWN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # As in the processes of a server.
    sys.setswitchinterval(limits.THREAD_SWITCH_S)
    gc.set_threshold(limits.GC_YOUNG_OBJECTS)
    allow_deep_json()
    results = asyncio.run(measure(options.rounds)) + measure_filters(options.rounds)
    if options.json:
        for result in results:
            print(json.dumps(asdict(result)))
        return
    table = Table("way", "request", "bytes", "longest hold, ms", "of all rounds", "goal", "answer")
    for one in results:
        mark = "" if one.hold_ms <= GOAL_MS else " missed"
        goal = f"{GOAL_MS:.0f}{mark}"
        table.add_row(
            one.way, one.request, f"{one.size_bytes:,}", f"{one.hold_ms:.1f}", f"{one.worst_ms:.1f}", goal, one.answer
        )
    print_whole(table)


if __name__ == "__main__":
    main()
