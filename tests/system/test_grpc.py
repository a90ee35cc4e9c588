"""Do publisher, readers and consumers on a real server get over gRPC what they would over HTTP, and after a kill -9?"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from benchmarks.load import processes
from grpc import aio

from headgate.testing.server import Server
from headgate_api.event.model import DataKind, Event
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.events import to_message
from tests.calls import Client, Refused, Stream, client
from tests.system.publishing import broker

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

BROKER = "default/grpc"


@pytest.fixture(scope="module", autouse=True)
def own_broker(server: Server) -> None:
    broker(server, "grpc")


def run(server: Server, work: Any) -> None:
    async def with_client() -> None:
        async with client(server.grpc) as found:
            await work(found)

    asyncio.run(asyncio.wait_for(with_client(), 600))


def events(kind: str, first: int, count: int) -> list[Any]:
    return [
        to_message(
            Event("1.0", f"{kind}-{n}", "/s", kind, data_kind=DataKind.JSON, data=b'{"n":%d}' % n, subject=str(n))
        )
        for n in range(first, first + count)
    ]


async def opened(client: Client, producer: str = "") -> tuple[Stream, int]:
    stream = client.call("Publisher/Publish", pb.PublishResponse)
    await stream.write(pb.PublishRequest(open=pb.PublishRequest.Open(broker=BROKER, producer=producer)))
    return stream, (await stream.read()).opened.next_sequence


async def publish(client: Client, kind: str, count: int) -> None:
    stream, _ = await opened(client)
    await stream.write(pb.PublishRequest(events=events(kind, 0, count)))
    [response] = await stream.rest()
    assert (response.acknowledged.first, response.acknowledged.last) == (0, count - 1)


async def read(client: Client, kind: str) -> list[str]:
    """Ids of all events of a type, in the order of their partitions."""
    stream = client.call("Reader/Read", pb.ReadResponse)
    wanted = pb.Filter(cel=f'ce.type == "{kind}"')
    await stream.write(pb.ReadRequest(open=pb.ReadRequest.Open(broker=BROKER, filter=wanted), credits=1_000_000))
    found = [(one.partition, one.offset, one.event.id) for response in await stream.rest() for one in response.events]
    assert [place[:2] for place in found] == sorted({place[:2] for place in found}), "each once, in order"
    return [id_ for _, _, id_ in found]


def test_what_is_published_is_read_and_consumed_through_the_front(server: Server) -> None:
    server.create("subscriptions", "default", "grpc", {"broker": "grpc", "filter": {"expression": "data.n >= 90"}})
    server.wait_object_ready("subscriptions", "default", "grpc", seconds=120.0)

    async def work(client: Client) -> None:
        await publish(client, "one", 100)
        assert sorted(await read(client, "one")) == sorted(f"one-{n}" for n in range(100))
        stream = client.call("Subscriptions/Subscribe", pb.SubscribeResponse)
        await stream.write(
            pb.SubscribeRequest(open=pb.SubscribeRequest.Open(subscription="default/grpc"), credits=1_000)
        )
        found: list[Any] = []
        while len(found) < 10:
            found += (await stream.read()).events
        assert sorted(one.event.id for one in found) == [f"one-{n}" for n in range(90, 100)]
        await stream.write(pb.SubscribeRequest(ack=[one.ack_id for one in found], number=1))
        while (await stream.read()).settled < 1:
            pass
        asking = client.call("Subscriptions/Stats", pb.StatsResponse)
        await asking.write(pb.StatsRequest(subscription="default/grpc"))
        [stats] = await asking.rest()
        assert (stats.acknowledged, stats.backlog) == (10, 0)

    run(server, work)


def test_the_example_of_the_docs_runs(server: Server) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/grpc.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = example.replace("127.0.0.1:8081", server.grpc).replace("default/default", BROKER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "acknowledged" in done.stdout
    assert re.search(r"^\d+ \d+ 1$", done.stdout, re.MULTILINE)


def test_errors_of_other_processes_come_through_the_front_with_their_reasons(server: Server) -> None:
    async def work(client: Client) -> None:
        for method, message, code in (
            ("Reader/Read", pb.ReadRequest(open=pb.ReadRequest.Open(broker="no/no")), "unknown-broker"),
            ("Subscriptions/Stats", pb.StatsRequest(subscription="no/no"), "subscription-not-found"),
            ("Publisher/Publish", pb.PublishRequest(open=pb.PublishRequest.Open(broker="no/no")), "unknown-broker"),
        ):
            stream = client.call(method, pb.PublishResponse)
            await stream.write(message)
            with pytest.raises(Refused) as refused:
                await stream.rest()
            assert (refused.value.status, refused.value.code) == (grpc.StatusCode.NOT_FOUND, code)
            assert refused.value.hint
        with pytest.raises(Refused) as refused:
            await client.call("Reader/Write", pb.ReadResponse).rest()
        assert refused.value.status is grpc.StatusCode.UNIMPLEMENTED

    run(server, work)


def test_each_event_of_a_producer_is_stored_once_over_kill_9_and_reconnects(server: Server) -> None:
    batch, batches = 20, 60

    async def send(client: Client, first: int, acknowledged: list[int], until: int) -> None:
        """Sends batches from one on, without waiting; notes what is acknowledged until there is so much or the end."""
        stream, following = await opened(client, "shop")
        assert following >= (acknowledged[-1] + 1 if acknowledged else 0), "what is acknowledged is known"

        async def write() -> None:
            for number in range(first, batch * batches, batch):
                await stream.write(pb.PublishRequest(sequence=number, events=events("shop", number, batch)))
            await stream.end()

        writing = asyncio.create_task(write())
        try:
            with contextlib.suppress(Refused):
                while len(acknowledged) < until and (response := await stream.read()) is not None:
                    assert response.HasField("acknowledged")
                    acknowledged.append(response.acknowledged.last)
        finally:
            writing.cancel()
            stream.cancel()

    def next_first(acknowledged: list[int]) -> int:
        return acknowledged[-1] + 1 if acknowledged else 0

    acknowledged: list[int] = []
    run(server, lambda client: send(client, 0, acknowledged, 5))  # the client goes, with much under way
    assert len(acknowledged) == 5

    async def killed(client: Client) -> None:
        sending = asyncio.create_task(send(client, next_first(acknowledged), acknowledged, batches))
        while len(acknowledged) < 15 and not sending.done():
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.kill)
        await sending

    run(server, killed)
    server.start()
    assert len(acknowledged) >= 15
    run(server, lambda client: send(client, next_first(acknowledged), acknowledged, 10 * batches))
    assert acknowledged[-1] == batch * batches - 1

    async def check(client: Client) -> None:
        assert await read(client, "shop") == [f"shop-{n}" for n in range(batch * batches)]
        _, following = await opened(client, "shop")
        assert following == batch * batches

    run(server, check)


METHODS = (
    *(f"headgate.v1.{one}" for one in ("Publisher/Publish", "Reader/Read")),
    *(f"headgate.v1.Subscriptions/{one}" for one in ("Subscribe", "Seek", "Stats", "Analyze")),
    *(f"grpc.health.v1.Health/{one}" for one in ("Check", "Watch")),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
REFUSED_BYTES = 4 << 20
ROUNDS, CALLS_OF_A_ROUND = 4, 20


def resident_mib(server: Server) -> int:
    """What all processes of a server but its JVM have in memory."""
    return sum(size for name, size in processes(server).items() if not name.startswith("jvm/"))


@pytest.mark.slow
def test_what_refused_calls_of_every_method_sent_is_gone_with_them(server: Server) -> None:
    """As many as would fill a gigabyte in each round; the first round is what a server takes once."""
    junk = b"\xff" * REFUSED_BYTES

    async def refused_calls() -> list[int]:
        sizes = []
        async with aio.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            for _ in range(ROUNDS):
                for method in METHODS * CALLS_OF_A_ROUND:
                    call: Any = channel.stream_stream(f"/{method}")()
                    with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                        await call.write(junk)
                        await call.done_writing()
                    assert await call.code() is not grpc.StatusCode.OK, method
                sizes.append(resident_mib(server))
        return sizes

    sizes = asyncio.run(asyncio.wait_for(refused_calls(), 600))
    assert sizes[-1] - sizes[0] < 100, sizes
